"""What the volume of a shard was used with, so that wrong numbers of shards are refused before anything is served.

With a wrong number a job's owner would be another shard, which has none of its logs and would begin them anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest, WeftError
from services.core.domain.shards import Shards
from services.core.runtime.durable_files import read_json, write_json

FILE: Final = "shards.json"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Agreed:
    """The numbers on which all shards have agreed."""

    count: int
    before: int | None
    moved: bool = False
    """No job has to be moved to this shard any more."""

    @property
    def shards(self) -> Shards:
        return Shards(self.count, self.before)


class Volume:
    """The file ``shards.json`` in the folder of the metric store."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def read(self) -> Agreed | None:
        """None: the volume is new, or of a service without shards. Raises InvalidRequest if the file is malformed."""
        try:
            document = read_json(self._path)
            return None if document is None else Agreed(document["count"], document["before"], document["moved"])
        except MALFORMED as error:
            raise InvalidRequest(f"{self._path} cannot be read ({error!r}); restore it from a backup") from error

    def record(self, agreed: Agreed) -> bool:
        """Writes it durably. False, and a line in the log, if the volume is full or cannot be written."""
        try:
            write_json(self._path, asdict(agreed))
        except (WeftError, OSError) as error:
            log.warning("shards.not_recorded", why=str(error))
            return False
        return True


def check(shards: Shards, shard: int, agreed: Agreed | None, job_ids: Iterable[str]) -> None:
    """Raises InvalidRequest if these numbers do not continue what the volume was used with.

    ``shard``: the number of this one. ``job_ids``: the jobs of which the volume has anything.
    """
    if shard not in shards.numbers:
        raise InvalidRequest(
            f"WEFT_METRICS_SHARD is {shard}, but there are {len(shards.numbers)} shards, numbered from 0"
        )
    if agreed is not None and agreed.count not in {shards.count, shards.before}:
        raise InvalidRequest(
            f"this volume belongs to {agreed.count} shards: set WEFT_METRICS_SHARDS={agreed.count}, or, to move its "
            f"jobs, WEFT_METRICS_SHARDS_BEFORE={agreed.count}"
        )
    if agreed is not None and agreed.before not in {None, shards.before} and not agreed.moved:
        raise InvalidRequest(
            f"the move from {agreed.before} to {agreed.count} shards is not complete: set "
            f"WEFT_METRICS_SHARDS={agreed.count} and WEFT_METRICS_SHARDS_BEFORE={agreed.before} until it is"
        )
    for job_id in job_ids:
        if shard not in (shards.owner(job_id), shards.former_owner(job_id)):
            raise InvalidRequest(
                f"this volume has logs of job {job_id}, which belongs to shard {shards.owner(job_id)} of "
                f"{shards.count}: set WEFT_METRICS_SHARDS_BEFORE to the number of shards until now (1 without shards)"
            )

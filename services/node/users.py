"""Records which tenant each user id of learners has served. It serves another one only when nothing of it is left.

A user id without a record may have served an earlier installation, whose records are gone: it serves only when nothing
of it is left, too. The agent looks for all of them in one pass at its start, so no job waits. One without traces then
gets none later: it runs nothing before it has a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from services.core.domain.codec import MALFORMED
from services.core.runtime.durable_files import read_json, write_json
from services.node.allocation import Pool, Taken, pick_uid

log = structlog.get_logger()


class Users:
    """One small file per uid below ``folder``: ``{tenant}``."""

    def __init__(
        self, folder: Path, pool: Pool, trace_of: Callable[[int], str], traced: Callable[[range], Collection[int]]
    ) -> None:
        """``trace_of``: what is left of a uid; empty: nothing. ``traced``: those of which something is left."""
        self._folder = folder
        self._pool = pool
        self._trace_of = trace_of
        self._traced = traced
        self._traced_at_first: Collection[int] | None = None

    def pick(self, job: str, tenant: str, taken: Taken) -> int:
        """A uid for the job, recorded durably. ResourceExhausted if there is none, NoSpace.

        May take a second: it looks through processes and files of a uid that has served another tenant.
        """
        uid = pick_uid(job, taken, self._pool, lambda uid: self._is_clean(uid, tenant))
        if self._tenant(uid) != tenant:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_json(self._folder / f"{uid}.json", {"tenant": tenant})
        return uid

    def _is_clean(self, uid: int, tenant: str) -> bool:
        before = self._tenant(uid)
        if before == tenant or (before is None and uid not in self._of_earlier_installations()):
            return True
        trace = self._trace_of(uid)
        if trace:
            log.warning("user.not_reused", uid=uid, tenant=before, trace=trace)
        return not trace

    def _of_earlier_installations(self) -> Collection[int]:
        if self._traced_at_first is None:
            self._traced_at_first = self._traced(range(self._pool.first, self._pool.first + self._pool.count))
        return self._traced_at_first

    def _tenant(self, uid: int) -> str | None:
        """None if it has served nobody. A record that cannot be read is of a tenant without a name."""
        try:
            document = read_json(self._folder / f"{uid}.json")
            return None if document is None else str(document["tenant"])
        except MALFORMED:
            return ""

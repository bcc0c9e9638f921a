"""What a learner's attempt has in the store: its snapshots, and each object that may exist, also after a crash.

Saved in the spool before anything that depends on it is sent or removed. If the spool and the index in the store do
not agree, the store is right: everything is then read from there. Of each object the last snapshot that names it is
known: the kept snapshots are the newest ones, so an object is needed while that snapshot is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.checkpoint import Index, SavedFile, SnapshotRecord
from services.core.domain.codec import MALFORMED, dump, load
from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import read_json, write_json
from services.helper.log import log_event

FILE: Final = "checkpoints.json"


@dataclass(slots=True)
class Catalog:
    path: Path
    """The file in the spool."""
    records: list[SnapshotRecord] = field(default_factory=list)
    """The snapshots that the index names, oldest first."""
    last_use: dict[str, int] = field(default_factory=dict)
    """sha256 of an object that may exist -> number of the last snapshot that names it."""
    unsure: set[str] = field(default_factory=set)
    """Those that may be missing: their upload was not confirmed."""
    manifests: set[int] = field(default_factory=set)
    """Numbers of the manifests that may exist."""
    garbage: set[str] = field(default_factory=set)
    """sha256 of objects that are being removed."""
    is_saved: bool = True
    """Whether the spool has all this. If not, nothing may be removed: the next helper would not know it."""

    @classmethod
    def load(cls, path: Path) -> Catalog | None:
        """As it was saved; None where nothing was, or it cannot be read."""
        try:
            document = read_json(path)
            return None if document is None else cls._parse(path, document)
        except (OSError, *MALFORMED) as error:
            log_event("spool.unreadable", file=FILE, why=str(error))
            return None

    @classmethod
    def _parse(cls, path: Path, document: dict[str, Any]) -> Catalog:
        return cls(
            path,
            records=[load(SnapshotRecord, entry) for entry in document["records"]],
            last_use={str(digest): int(seq) for digest, seq in document["last_use"].items()},
            unsure=set(map(str, document["unsure"])),
            manifests=set(map(int, document["manifests"])),
            garbage=set(map(str, document["garbage"])),
        )

    @classmethod
    def of_store(
        cls, path: Path, index: Index, manifests: Iterable[tuple[int, Sequence[SavedFile]]], saved: Catalog | None
    ) -> Catalog:
        """From the index and the manifests that it names. ``saved``: an older catalog, for objects that it knows."""
        catalog = cls(path, records=list(index.records))
        if saved is not None:
            catalog.last_use |= saved.last_use
            catalog.unsure |= saved.last_use.keys()
            catalog.manifests |= saved.manifests
        for seq, files in manifests:
            catalog.manifests.add(seq)
            for file in files:
                catalog.last_use[file.sha256] = max(seq, catalog.last_use.get(file.sha256, 0))
                catalog.unsure.discard(file.sha256)
        if saved is not None:
            catalog.garbage = saved.garbage - catalog.last_use.keys()
        return catalog

    @property
    def next_seq(self) -> int:
        return self.records[-1].seq + 1 if self.records else 1

    def save(self) -> None:
        """A spool that cannot be written (a full disk) is recorded in ``is_saved``."""
        document = {
            "records": [dump(record) for record in self.records],
            "last_use": self.last_use,
            "unsure": sorted(self.unsure),
            "manifests": sorted(self.manifests),
            "garbage": sorted(self.garbage),
        }
        try:
            write_json(self.path, document, durable=False)
        except (OSError, WeftError) as error:
            if self.is_saved:
                log_event("spool.failed", why=str(error))
            self.is_saved = False
        else:
            self.is_saved = True

    def has(self, digest: str) -> bool:
        """Whether the object is surely in the store."""
        return digest in self.last_use and digest not in self.unsure

    def with_record(self, record: SnapshotRecord, keep: int) -> list[SnapshotRecord]:
        """The records of the index with this snapshot: the ``keep`` newest complete ones, and what came after them."""
        records = [*self.records, record]
        complete = [entry.seq for entry in records if entry.complete]
        oldest = complete[-keep] if len(complete) > keep else 0
        return [entry for entry in records if entry.seq >= oldest]

    def unneeded(self) -> tuple[set[str], set[int]]:
        """(sha256 of objects, numbers of manifests) that no snapshot of the index needs."""
        oldest = self.records[0].seq if self.records else 0
        objects = {digest for digest, seq in self.last_use.items() if seq < oldest}
        return objects, {seq for seq in self.manifests if seq < oldest}

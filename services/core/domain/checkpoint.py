"""Stored checkpoints: what the documents beside their objects mean, and which versions a new attempt restores.

    <attempt>/checkpoints/<learner>.manifest.json   index: the snapshots that count, oldest first
    <attempt>/checkpoints/<learner>/<seq>.json      manifest: the files of one snapshot
    <attempt>/checkpoints/<learner>/<sha256>        the content of a file, stored once

A snapshot counts once the index names it, which is written last. An index of schema 1 is itself the manifest of the
learner's only snapshot, and its objects are named by their files' paths. docs/adr/0022-checkpoints-while-training.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from services.core.domain.codec import dump, load

SCHEMA: Final = 2
INDEX: Final = ".manifest.json"
"""The end of an index's key."""
FIRST_SCHEMA_SEQ: Final = 0
"""The number of the only snapshot of an index of schema 1."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a snapshot."""

    path: str
    """Relative to CHECKPOINT_DIR, '/'-separated."""
    size: int
    """Bytes."""
    sha256: str
    changed: int = 0
    """When its content or name last changed on the learner's machine (mtime or ctime, the later), Unix ms."""
    mtime: int | None = None
    """Its modification time, Unix ms; None: not recorded."""

    @property
    def entry(self) -> str:
        """The first part of its path: a checkpoint is one entry of CHECKPOINT_DIR, a file or a folder."""
        return self.path.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot that counts: a line of the index."""

    seq: int
    """Rises with each snapshot of the learner in the attempt."""
    time: int
    """Every file that had changed at or before this time is in it. Unix ms, by the learner's machine."""
    until: int
    """The same, later: nothing else changed until then."""
    final: bool
    """It was stored after the learner's process had ended."""
    complete: bool
    """Nothing of the checkpoint is missing. One that is not is shown, but never restored."""
    files: int
    size: int
    """Bytes of all files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """The newest stored checkpoint of a learner, as it reports it."""

    time: int
    """When it was stored, Unix ms."""
    files: int
    size: int
    """Bytes of all files."""
    learner: str = ""
    """``worker-0``; set in a job's document."""
    attempt: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Index:
    """The snapshots of one learner in one attempt that count, oldest first."""

    records: tuple[SnapshotRecord, ...] = ()
    first_schema: tuple[SavedFile, ...] | None = None
    """The files of an index of schema 1, which has no manifest of its own."""

    @property
    def restorable(self) -> tuple[SnapshotRecord, ...]:
        return tuple(record for record in self.records if record.complete)

    @property
    def shown(self) -> SnapshotRecord | None:
        """The snapshot that people see: the newest complete one, else the newest."""
        return next(reversed(self.restorable or self.records), None)


def checkpoint_base(*, tenant: str, job: str, attempt: int, learner: str) -> str:
    """The beginning of the keys of a learner's checkpoints."""
    return f"tenants/{tenant}/jobs/{job}/attempts/{attempt}/checkpoints/{learner}"


def index_key(base: str) -> str:
    """``base``: as of ``checkpoint_base``."""
    return base + INDEX


def manifest_key(base: str, seq: int) -> str:
    """The key of the manifest of the snapshot ``seq``."""
    return f"{base}/{seq}.json"


def object_key(base: str, file: SavedFile, seq: int) -> str:
    """The key of the content of a file of the snapshot ``seq``."""
    return f"{base}/{file.path if seq == FIRST_SCHEMA_SEQ else file.sha256}"


def dump_index(records: Iterable[SnapshotRecord]) -> bytes:
    """The content of an index. ``records``: oldest first."""
    return json.dumps({"schema": SCHEMA, "snapshots": [dump(record) for record in records]}).encode()


def dump_manifest(record: SnapshotRecord, files: Iterable[SavedFile]) -> bytes:
    """The content of a snapshot's manifest."""
    about = {"time": record.time, "final": record.final, "complete": record.complete}
    return json.dumps({"schema": SCHEMA, "seq": record.seq, **about, "files": [dump(file) for file in files]}).encode()


def parse_index(content: bytes) -> Index:
    """Raises ValueError or TypeError for content that is no index."""
    document = _document(content)
    if document.get("schema", 1) >= SCHEMA:
        records = tuple(load(SnapshotRecord, entry) for entry in _list(document, "snapshots"))
        if list(records) != sorted(records, key=lambda record: record.seq) or any(
            record.seq <= FIRST_SCHEMA_SEQ for record in records
        ):
            raise ValueError("its snapshots are not in order")
        return Index(records)
    files = parse_manifest(content)
    time = document.get("time", 0)
    if not isinstance(time, int):
        raise TypeError("its time is no number")
    record = SnapshotRecord(
        seq=FIRST_SCHEMA_SEQ,
        time=time,
        until=time,
        final=True,
        complete=True,
        files=len(files),
        size=sum(file.size for file in files),
    )
    return Index((record,), files)


def parse_manifest(content: bytes) -> tuple[SavedFile, ...]:
    """Raises ValueError or TypeError for content that is no manifest."""
    return tuple(load(SavedFile, entry) for entry in _list(_document(content), "files"))


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema", 1), int):
        raise TypeError("it is no document")
    return document


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    entries = document.get(name)
    if not isinstance(entries, list):
        raise TypeError(f"it has no {name}")
    return entries


# --- which versions are restored --------------------------------------------------------------------------------------


def cut_of(indexes: Iterable[Index]) -> float:
    """The time of a cut through a gang: each learner's checkpoints are restored as they were then. Unix ms.

    The smallest ``until`` of the learners' newest snapshots: later, one of them may have had files that nobody stored.
    Infinite where each of them is final. ``indexes``: of the learners of one attempt that have stored anything.
    """
    newest = [index.restorable[-1] for index in indexes if index.restorable]
    return min((record.until for record in newest if not record.final), default=math.inf)


def records_for(index: Index, cut: float) -> list[SnapshotRecord]:
    """The snapshots that restoring at the cut reads, newest first: those after the cut and the last one before it."""
    needed: list[SnapshotRecord] = []
    for record in reversed(index.restorable):
        needed.append(record)
        if record.time <= cut:
            break
    return needed


def files_at(
    snapshots: Sequence[tuple[SnapshotRecord, Sequence[SavedFile]]], cut: float
) -> list[tuple[int, SavedFile]]:
    """The files of one learner at the cut, each with the number of its snapshot.

    ``snapshots``: those of ``records_for``. Of one that was stored after the cut, an entry counts if none of its files
    changed after the cut: it existed then, and was stored later. Entries are never mixed from two snapshots.
    """
    chosen: dict[str, list[tuple[int, SavedFile]]] = {}
    for record, files in snapshots:
        entries: dict[str, list[tuple[int, SavedFile]]] = {}
        for file in files:
            entries.setdefault(file.entry, []).append((record.seq, file))
        for name, versions in entries.items():
            if record.time <= cut or all(file.changed <= cut for _, file in versions):
                chosen.setdefault(name, versions)
    return [version for versions in chosen.values() for version in versions]

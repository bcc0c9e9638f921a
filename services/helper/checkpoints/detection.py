"""Decides from listings of CHECKPOINT_DIR when a snapshot is due, and of which files: pure, the caller has the clocks.

By markers, once the training uses ``weft.checkpoint_saved``: a snapshot has all files that had changed up to the
marker. Without markers an entry of CHECKPOINT_DIR counts as saved when none of its files has changed for a while.

Files of an earlier attempt, which were there before the process started, are part of a snapshot but no reason for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from services.helper.learner_files import LearnerFile, SkippedFile

MARKER: Final = ".weft-checkpoint-saved"
"""The file in CHECKPOINT_DIR that ``weft.checkpoint_saved`` writes."""
_TEMPORARY: Final = ("*.tmp", "tmp-checkpoint-*", "*.orbax-checkpoint-tmp*")
"""Names under which frameworks write what they rename when it is whole."""
_CLOCK_MS: Final = 10
"""A change may carry a time that is so much earlier: file systems stamp with the time of the last tick."""
_WHOLE_TREE: Final = frozenset({".", "..."})
"""Names of what a listing left out, where it concerns all entries."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Changes whenever the file does."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def state_of(file: LearnerFile) -> FileState:
    """The state of a file as it was listed."""
    return FileState(file.size, file.mtime_ns, file.ctime_ns, file.inode)


def changed_ns(file: LearnerFile) -> int:
    """When its content or its name last changed, Unix ns. A learner can set its mtime, but not its ctime."""
    return max(file.mtime_ns, file.ctime_ns)


def changed_ms(file: LearnerFile) -> int:
    """As ``changed_ns``, in Unix ms, rounded down."""
    return changed_ns(file) // 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot that is due."""

    files: tuple[LearnerFile, ...]
    kept: frozenset[str]
    """Entries whose version of the previous snapshot, if it has one, belongs to this one: they change now, or were just
    removed."""
    time: int
    """Every file that had changed at or before this time is in ``files``. Unix ms."""


@dataclass(slots=True)
class _Entry:
    """An entry of CHECKPOINT_DIR as it was last listed."""

    files: list[LearnerFile] = field(default_factory=list)
    whole: bool = True
    """False: a part of it could not be listed."""


class Detector:
    def __init__(self, *, started_ms: int, quiet_s: float) -> None:
        """``started_ms``: when the learner's process was started, Unix ms."""
        self._started_ms = started_ms - _CLOCK_MS
        self._quiet_s = quiet_s
        self._states: dict[str, tuple[object, float]] = {}
        """Entry -> (its state, since when it has had it, in monotonic seconds)."""
        self._stored: Mapping[str, FileState] = {}
        """Name -> state of the files of the last snapshot."""
        self._changed_s: float | None = None
        """When a listing last differed from the one before it, or the first was made, in monotonic seconds."""

    @property
    def has_stored(self) -> bool:
        """Whether a snapshot was stored since this was made."""
        return bool(self._stored)

    def still_s(self, now_s: float) -> float:
        """For how long no listing has differed from the one before it, in seconds."""
        return 0.0 if self._changed_s is None else now_s - self._changed_s

    def record_stored(self, plan: Plan) -> None:
        """The plan's snapshot is stored."""
        self._stored = {file.name: state_of(file) for file in plan.files}

    def observe(self, listing: Iterable[LearnerFile | SkippedFile], *, now_s: float, listed_ms: int) -> Plan | None:
        """Returns the snapshot that is due. ``now_s``: monotonic; ``listed_ms``: when the listing began, Unix ms."""
        if self._changed_s is None:
            self._changed_s = now_s
        entries = _entries(listing)
        if entries is None:
            return None
        for name, entry in entries.items():
            state = (entry.whole, tuple((file.name, state_of(file)) for file in entry.files))
            if name not in self._states or self._states[name][0] != state:
                self._states[name] = (state, now_s)
                self._changed_s = now_s
        if gone := self._states.keys() - entries.keys():
            self._states = {name: state for name, state in self._states.items() if name not in gone}
            self._changed_s = now_s
        if MARKER in entries:
            return self._by_marker(entries, listed_ms)
        return self._by_quiet(entries, now_s, listed_ms)

    def unchanged_until(self, listing: Iterable[LearnerFile | SkippedFile], *, listed_ms: int) -> int | None:
        """Every file that had changed at or before this time is in the last snapshot. None: not known."""
        entries = _entries(listing)
        if entries is None or not all(entry.whole for entry in entries.values()):
            return None
        return self._horizon([file for entry in entries.values() for file in entry.files], self._stored, listed_ms)

    def _by_marker(self, entries: Mapping[str, _Entry], listed_ms: int) -> Plan | None:
        (marker,) = entries[MARKER].files or (None,)
        if marker is None or changed_ms(marker) < self._started_ms:
            return None
        if self._stored.get(marker.name) == state_of(marker) or not all(entry.whole for entry in entries.values()):
            return None
        files = [file for entry in entries.values() for file in entry.files]
        # A file written after the marker within one tick of the kernel's clock has its time: it counts as saved.
        saved = tuple(file for file in files if changed_ns(file) <= changed_ns(marker))
        later = [file for file in files if changed_ns(file) > changed_ns(marker)]
        if any(file.name in self._stored for file in later):
            return None  # saved, and overwritten since: this checkpoint is gone, the next marker comes with a new one
        states = {file.name: state_of(file) for file in saved}
        return Plan(saved, frozenset(), self._horizon(files, states, listed_ms))

    def _by_quiet(self, entries: Mapping[str, _Entry], now_s: float, listed_ms: int) -> Plan | None:
        quiet = {
            name
            for name, entry in entries.items()
            if entry.whole and (now_s - self._states[name][1] >= self._quiet_s or self._is_stored(entry.files))
        }
        saved = tuple(file for name, entry in entries.items() if name in quiet for file in entry.files)
        if not any(
            changed_ms(file) >= self._started_ms and self._stored.get(file.name) != state_of(file) for file in saved
        ):
            return None
        changing = entries.keys() - quiet
        earlier = {name.partition("/")[0] for name in self._stored}
        # While something is being saved, a checkpoint that was just removed may be the only whole one.
        removed = earlier - entries.keys() if changing else frozenset[str]()
        states = {file.name: state_of(file) for file in saved}
        every = [file for entry in entries.values() for file in entry.files]
        return Plan(saved, frozenset(changing | removed), self._horizon(every, states, listed_ms))

    def _is_stored(self, files: Sequence[LearnerFile]) -> bool:
        return bool(files) and all(self._stored.get(file.name) == state_of(file) for file in files)

    @staticmethod
    def _horizon(files: Sequence[LearnerFile], stored: Mapping[str, FileState], listed_ms: int) -> int:
        unstored = (changed_ms(file) - 1 for file in files if stored.get(file.name) != state_of(file))
        return max(0, min((*unstored, listed_ms - _CLOCK_MS)))


def _entries(listing: Iterable[LearnerFile | SkippedFile]) -> dict[str, _Entry] | None:
    """The entries by name, without temporary files. None: the folder itself cannot be listed as a whole."""
    entries: dict[str, _Entry] = {}
    for file in listing:
        if isinstance(file, SkippedFile):
            if file.name in _WHOLE_TREE:
                return None
            if file.has_data and not is_temporary(file.name):
                entries.setdefault(file.name.partition("/")[0], _Entry()).whole = False
        elif not is_temporary(file.name):
            entries.setdefault(file.name.partition("/")[0], _Entry()).files.append(file)
    return entries


def is_temporary(path: str) -> bool:
    """Whether a part of the path is a name of a save that is not finished."""
    return any(fnmatchcase(part, pattern) for part in path.split("/") for pattern in _TEMPORARY)

"""Bounds the caches of this machine: environments, packages that uv has downloaded, and data, the oldest use first.

Nothing that is in use is removed. An entry is removed under the lock that its users hold (``services.helper.fetch``),
an environment only if no learner of this machine names it, and none that may name it soon is being prepared. A
half-built environment is removed as soon as nobody builds it. Data is handed to learners under a second name, so
removing the cache's own takes nothing away from them. Data sets of many small objects are bounded by their number, too:
a disk has a number of files, and walking through them takes time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.codec import MALFORMED
from services.core.runtime.learner_folder import LEARNER_FILE, PREPARED_FILE
from services.core.runtime.tree_removal import remove_tree
from services.node.disk import measure
from services.node.learner import Learner, is_folder

ENVIRONMENTS, PACKAGES, DATA = "environments", "packages", "data"
KINDS: Final = (ENVIRONMENTS, PACKAGES, DATA)
MOST_DATA: Final = 200_000
"""Files of data, each with three more entries of the disk: two of the largest inputs of type s3."""
_SHARE_OF_INODES: Final = 16
"""A quarter of the disk's, as of its bytes, at four for each file of data."""
_OK: Final = ".ok"
_ENDLESS: Final = 2**62
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that is removed whole."""

    kind: str
    place: Path
    lock: Path
    """Held by its users."""
    stamp: Path
    """The file whose time of change is ``used``."""
    used: float
    """When it was used last, Unix seconds."""
    size: int
    """Bytes."""

    @property
    def is_half_built(self) -> bool:
        """True for an environment that is being built, or whose build was killed."""
        return self.kind == ENVIRONMENTS and not self.used


class Caches:
    """``folder``: WEFT_HOME/cache. ``learners`` returns those of this machine."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        learners: Callable[[], Collection[Learner]],
        *,
        most_data: int = MOST_DATA,
    ) -> None:
        """``most_data``: files of data."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._most_data = most_data
        self._learners = learners
        self._sizes: dict[Path, tuple[float, int]] = {}
        """Version and bytes of what has been measured."""

    def bound(self) -> tuple[dict[str, int], int]:
        """Removes what exceeds the bound, and half-built environments.

        Returns kind -> bytes that are left, and the number of removed entries. Takes as long as walking through new
        entries: call it in a thread.
        """
        self._remove_half_removed()
        entries = list(self._entries())
        total, removed = sum(entry.size for entry in entries), 0
        data, most_data = sum(entry.kind == DATA for entry in entries), self._most_files_of_data()
        left = {kind: sum(entry.size for entry in entries if entry.kind == kind) for kind in KINDS}
        for entry in sorted(entries, key=lambda entry: entry.used):
            is_too_much = total > self._max_bytes or (entry.kind == DATA and data > most_data)
            if (is_too_much or entry.is_half_built) and self._remove(entry):
                total -= entry.size
                data -= entry.kind == DATA
                left[entry.kind] -= entry.size
                removed += 1
        return left, removed

    def _most_files_of_data(self) -> int:
        try:
            inodes = os.statvfs(self._folder).f_files
        except OSError:  # there is no cache yet
            inodes = 0
        return min(self._most_data, inodes // _SHARE_OF_INODES) if inodes else self._most_data

    def _entries(self) -> Iterator[Entry]:
        envs = self._folder / "envs"
        for place in _folders(envs):
            stamp, lock = place / _OK, envs / f"{place.name}.lock"
            used = _time(stamp)
            # It does not change once it is complete.
            yield Entry(ENVIRONMENTS, place, lock, stamp, used, self._size(place, lock, version=float(used > 0)))
        packages, lock = self._folder / "uv", self._folder / "uv.lock"
        if packages.is_dir():
            yield self._locked_entry(PACKAGES, packages, lock)
        for tenant in _folders(self._folder / "data"):
            for place in _folders(tenant):
                yield self._locked_entry(DATA, place, place / "lock")

    def _locked_entry(self, kind: str, place: Path, lock: Path) -> Entry:
        """An entry that changes only while its lock is held. Its users set the lock's time before they change it."""
        used = _time(lock)
        return Entry(kind, place, lock, lock, used, self._size(place, lock, version=used))

    def _size(self, place: Path, lock: Path, *, version: float) -> int:
        """Bytes of an entry, which may be some hundred thousand files. Each version is measured once.

        ``version`` 0: unknown, or not complete. Then, and while the lock is held, it is measured each time.
        """
        known, size = self._sizes.get(place, (0.0, 0))
        if version and known == version:
            return size
        is_free = False
        if version:
            with _locked(lock) as is_free:
                pass
        size = measure(place, None, max_bytes=_ENDLESS, max_files=_ENDLESS).size
        if is_free:
            self._sizes[place] = (version, size)
        return size

    def _remove(self, entry: Entry) -> bool:
        """False if it is in use."""
        with _locked(entry.lock) as is_free:
            if not is_free or not entry.place.exists() or _time(entry.stamp) != entry.used:
                return False
            if entry.kind == ENVIRONMENTS and self._is_named(entry):
                return False
            gone = entry.place.with_name(f".gone-{secrets.token_hex(8)}")
            entry.place.rename(gone)
            remove_tree(gone)
        self._sizes.pop(entry.place, None)
        log.info("cache.entry_removed", kind=entry.kind, place=str(entry.place), size=entry.size)
        return True

    def _is_named(self, entry: Entry) -> bool:
        """True if a learner uses the environment, or may: it was used since a learner came that is not prepared yet."""
        for learner in self._learners():
            try:
                prepared = learner.files.read(PREPARED_FILE)
                paths = None if prepared is None else prepared.get("path", ())
                came = (learner.folder / LEARNER_FILE).stat().st_mtime
            except (*MALFORMED, OSError):
                return True
            if paths is None and entry.used >= came:
                return True
            if paths is not None and any(Path(path).is_relative_to(entry.place) for path in paths):
                return True
        return False

    def _remove_half_removed(self) -> None:
        for folder in (self._folder, self._folder / "envs", *_folders(self._folder / "data")):
            for place in _folders(folder, hidden=True):
                if place.name.startswith(".gone-"):
                    with suppress(OSError):
                        remove_tree(place)


def _folders(folder: Path, *, hidden: bool = False) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if is_folder(path) and path.name.startswith(".") == hidden]


def _time(path: Path) -> float:
    """0 if it is missing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


@contextmanager
def _locked(path: Path) -> Generator[bool]:
    """False if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)

"""ObjectStore on a folder: the key is the path.

It does not use obstore's LocalStore, which renames without fsync, cannot refuse to overwrite when it streams, leaves
``name#1`` after the death of a writer, follows symbolic links out of its root and lists in no order: it keeps none of
the port's promises by itself. obstore is used for remote stores.

Unfinished objects are in ``.weft-staging`` at the root, which no key may contain: a list never includes them, and those
of dead writers are swept at the first write. A link is not an object: it is neither listed nor followed.

``.weft-staging`` is made once, with the store. A root without it is a mount point whose volume is away: every call
raises Unavailable, for an empty store would look as if all objects had been deleted.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Container, Generator, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Final, Self

from services.core.adapters.folder import files
from services.core.domain.errors import Conflict, Duplicate, InvalidRequest, NoSpace, NotFound, Unavailable
from services.core.ports.object_store import CONTROL, ObjectMeta, check_key
from services.core.runtime.threads import in_thread

STAGING: Final = ".weft-staging"
_CHUNK: Final = 2**20
"""Bytes passed to a thread in one call, and the port's largest chunk."""
_NAME_MAX: Final = 255
"""Bytes of one part of a key that every file system of Linux allows."""
_TRIES: Final = 100
_BATCH: Final = 1000
"""Entries of a folder that are removed before it is read again."""
_UNNAMED: Final = re.compile(rf"{CONTROL.pattern}|[\ud800-\udfff]")
"""File names that no key has: with control characters, or not UTF-8. They are not listed."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderObjectStore:
    """See ``services.core.ports.object_store.ObjectStore``. Touches no file before its first call.

    ``keep_free``: bytes of the file system that it does not use; beyond them a put raises NoSpace.
    """

    def __init__(self, root: Path, *, keep_free: int = 0) -> None:
        self._root = root
        self._keep_free = keep_free
        self._is_swept = False

    @classmethod
    def make(cls, root: Path) -> Self:
        """A new store, or the one that is there. Only for a folder that is known to be mounted. Raises Unavailable."""
        with _errors(str(root)):
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(root, _FOLDER)
            try:
                with files.folder(descriptor, (STAGING,), create=True):
                    return cls(root)
            finally:
                os.close(descriptor)

    async def put(
        self,
        key: str,
        chunks: AsyncIterable[bytes],
        *,
        create_only: bool = False,
        size: int | None = None,  # noqa: ARG002
    ) -> None:
        parts = _parts(key)
        writer = _Writer(self, parts, key, create_only=create_only)
        try:
            await in_thread(writer.begin)
            buffer = bytearray()
            async for chunk in chunks:
                buffer += chunk
                if len(buffer) >= _CHUNK:
                    full, buffer = buffer, bytearray()
                    await in_thread(writer.write, full)
            await in_thread(writer.finish, buffer)
        finally:
            await in_thread(writer.close)

    async def head(self, key: str) -> ObjectMeta | None:
        parts = _parts(key)

        def stat() -> ObjectMeta | None:
            with _errors(key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with self.folder(parts[:-1]) as place:
                    status = os.stat(parts[-1], dir_fd=place, follow_symlinks=False)
                return _meta(key, status) if files.is_file(status) else None
            return None

        return await in_thread(stat)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        parts = _parts(key)
        with await in_thread(self._open, key, parts) as opened:
            place = max(start, 0)
            while end is None or place < end:
                size = _CHUNK if end is None else min(_CHUNK, end - place)
                chunk = await in_thread(_read, key, opened, size, place)
                if not chunk:
                    break
                place += len(chunk)
                yield chunk

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        parts = _prefix(prefix)

        def walk() -> list[ObjectMeta]:
            absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
            with _errors(prefix), absent, self.folder(parts) as place:
                return list(itertools.islice(_walk(place, prefix, after or "", limit), limit))
            return []

        return await in_thread(walk)

    async def delete(self, key: str) -> None:
        parts = _parts(key)

        def remove() -> None:
            with _errors(key), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                with self.folder(parts[:-1]) as place:
                    os.unlink(parts[-1], dir_fd=place)
                self.prune(parts[:-1])

        await in_thread(remove)

    async def delete_prefix(self, prefix: str) -> int:
        parts = _prefix(prefix)

        def remove() -> int:
            count = 0
            with _errors(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with self.folder(parts) as place:
                    count = _empty(place)
                self.prune(parts)
            return count

        return await in_thread(remove)

    async def ping(self) -> None:
        def check() -> None:
            with _errors(str(self._root)), self.staging():
                if not os.access(self._root, os.W_OK):
                    raise Unavailable(f"{self._root} cannot be written")

        await in_thread(check)

    def check_space(self, descriptor: int, more: int) -> None:
        """Raises NoSpace if ``more`` bytes in the open file would leave less than ``keep_free``."""
        if self._keep_free:
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < self._keep_free + more:
                raise NoSpace(
                    f"the disk of the objects is almost full: {self._keep_free // 2**20} MiB are kept for the platform"
                )

    def prune(self, parts: Sequence[str]) -> None:
        """Removes folders that have become empty, from the innermost outwards."""
        for depth in range(len(parts), 0, -1):
            try:
                with self.folder(parts[: depth - 1]) as place:
                    os.rmdir(parts[depth - 1], dir_fd=place)
            except OSError:
                return  # it contains another object

    @contextlib.contextmanager
    def folder(self, parts: Sequence[str], *, create: bool = False) -> Generator[int]:
        """A descriptor of a folder below the root. Raises Unavailable without a store; else as ``files.folder``."""
        with contextlib.ExitStack() as resources:
            try:
                root = os.open(self._root, _FOLDER)
                resources.callback(os.close, root)
                os.stat(STAGING, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                raise Unavailable(
                    f"the object store is not there: {self._root / STAGING} is missing; mount its volume"
                    " (only for a new, empty store: make that folder)"
                ) from None
            except OSError as error:
                raise files.translated(error, str(self._root)) from error
            yield resources.enter_context(files.folder(root, parts, create=create))

    @contextlib.contextmanager
    def staging(self) -> Generator[int]:
        """A descriptor of the folder of unfinished objects. Those of dead writers are removed at the first call."""
        with self.folder((STAGING,)) as place:
            if not self._is_swept:
                files.sweep(place)
                self._is_swept = True
            yield place

    def _open(self, key: str, parts: Sequence[str]) -> FileIO:
        missing = NotFound(f"there is no object {key}")
        with _errors(key):
            try:
                with self.folder(parts[:-1]) as place:
                    if files.is_file(os.stat(parts[-1], dir_fd=place, follow_symlinks=False)):
                        return FileIO(os.open(parts[-1], _READ, dir_fd=place))
            except (FileNotFoundError, NotADirectoryError):
                raise missing from None
        raise missing


class _Writer:
    """Writes one object. Its methods are called from one thread at a time."""

    def __init__(self, store: FolderObjectStore, parts: Sequence[str], key: str, *, create_only: bool) -> None:
        self._store = store
        self._parts = parts
        self._key = key
        self._create_only = create_only
        self._resources = contextlib.ExitStack()
        self._name = secrets.token_hex(16)
        self._staging = -1
        self._descriptor = -1

    def begin(self) -> None:
        with _errors(self._key):
            self._staging = self._resources.enter_context(self._store.staging())
            self._descriptor = self._resources.enter_context(files.scratch(self._staging, self._name))

    def write(self, data: bytes | bytearray) -> None:
        self._store.check_space(self._descriptor, len(data))
        with _errors(self._key):
            files.write_all(self._descriptor, data)

    def finish(self, rest: bytearray) -> None:
        self.write(rest)
        with _errors(self._key):
            os.fsync(self._descriptor)
            try:
                self._publish()
            except FileExistsError:
                raise Duplicate(f"there is an object {self._key}") from None
            except (NotADirectoryError, IsADirectoryError):
                raise Conflict(
                    f"{self._key} cannot be stored in a folder: a part of it is an object, or objects lie below it"
                ) from None
            except OSError:
                self._store.prune(self._parts[:-1])
                raise

    def close(self) -> None:
        self._resources.close()

    def _publish(self) -> None:
        for _ in range(_TRIES):
            try:
                with self._store.folder(self._parts[:-1], create=True) as place:
                    files.publish(self._staging, self._name, place, self._parts[-1], create_only=self._create_only)
            except FileNotFoundError:
                continue  # the folder was removed meanwhile, because its last object was deleted
            else:
                return
        raise Unavailable(f"{self._key} could not be stored: its folder is removed repeatedly; try again")


@contextlib.contextmanager
def _errors(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise files.translated(error, what) from error


def _parts(key: str) -> list[str]:
    check_key(key)
    parts = key.split("/")
    if STAGING in parts:
        raise InvalidRequest(f"'{STAGING}' is reserved and cannot be part of a key")
    if any(len(part.encode()) > _NAME_MAX for part in parts):
        raise InvalidRequest(f"a part of a key has at most {_NAME_MAX} bytes if objects are kept in a folder")
    return parts


def _prefix(prefix: str) -> list[str]:
    if not prefix.endswith("/"):
        raise InvalidRequest(f"a prefix ends with '/': '{prefix[:200]}/'")
    return _parts(prefix[:-1])


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(
        key=key,
        size=status.st_size,
        modified=status.st_mtime_ns // 1_000_000,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )


def _read(key: str, opened: FileIO, size: int, place: int) -> bytes:
    with _errors(key):
        return os.pread(opened.fileno(), size, place)


def _walk(place: int, prefix: str, after: str, batch: int) -> Iterator[ObjectMeta]:
    """Objects below an open folder in the order of their keys. A folder is sorted as its name with '/'.

    A folder is read again for each ``batch`` of its names, so that one with millions is never in memory.
    """
    last = ""
    while True:
        beyond = (key for key in _keys(place, prefix) if key > last and (key > after or after.startswith(key)))
        keys = heapq.nsmallest(batch, beyond)
        for key in keys:
            name = key[len(prefix) :]
            if name.endswith("/"):
                absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
                with absent, files.folder(place, (name[:-1],)) as below:
                    yield from _walk(below, key, after, batch)
            elif key > after:
                with contextlib.suppress(FileNotFoundError):
                    yield _meta(key, os.stat(name, dir_fd=place, follow_symlinks=False))
        if len(keys) < batch:
            return
        last = keys[-1]


def _keys(place: int, prefix: str) -> Iterator[str]:
    """The keys of the objects in an open folder, and those of its folders with '/', in no order."""
    with os.scandir(place) as scanned:
        for entry in scanned:
            if entry.name == STAGING or _UNNAMED.search(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield f"{prefix}{entry.name}/"
            elif entry.is_file(follow_symlinks=False):
                yield prefix + entry.name


def _empty(place: int) -> int:
    """Removes everything below an open folder; returns the number of objects removed."""
    count, kept = 0, set[str]()
    while entries := _some(place, kept):
        for name, is_folder in entries:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not is_folder:
                    count += files.is_file(os.stat(name, dir_fd=place, follow_symlinks=False))
                    os.unlink(name, dir_fd=place)
                    continue
                with files.folder(place, (name,)) as below:
                    count += _empty(below)
                try:
                    os.rmdir(name, dir_fd=place)
                except OSError:
                    kept.add(name)  # not empty: an object was put there meanwhile
    return count


def _some(place: int, kept: Container[str]) -> list[tuple[str, bool]]:
    """(name, is a folder) of some entries of an open folder that are not ``kept``; none once all are."""
    with os.scandir(place) as scanned:
        present = (entry for entry in scanned if entry.name not in kept)
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(present, _BATCH)]

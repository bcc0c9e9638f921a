"""Results on the claim of a data store (``outputs`` of a spec), which only the helper's container can write to.

    <path>/<job>/attempts/<attempt>/<learner>/...   the files of RESULT_DIR

Each attempt has a folder of its own, so what an earlier one still writes spoils nothing of a later one, and learners of
a gang do not meet. A file is whole or absent: it is written beside the learner's folder, and renamed. Links on the
claim are not followed: another writer of the claim cannot redirect results to another place of the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from services.core.domain.errors import NoSpace, PermissionDenied, Unavailable, WeftError
from services.core.domain.plan import Output
from services.core.runtime.durable_files import FULL
from services.core.runtime.learner_folder import Assignment, LearnerFolder
from services.core.runtime.pod_layout import RESULTS
from services.helper.threads import call_in_thread

T = TypeVar("T")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_PAUSE_S: Final = 1.0
_CLOSE_S: Final = 5.0
_REFUSED: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EILSEQ,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors that do not pass by themselves."""

Wait = Callable[[float, str], Awaitable[None]]
"""As of ``services.helper.objects``."""


def results_key(assignment: Assignment, output: Output) -> str:
    """The folder of the learner's results on the claim."""
    above = f"{output.path}/" if output.path else ""
    return f"{above}{assignment.plan.job}/attempts/{assignment.plan.attempt}/{assignment.learner.name}"


def claim_of(folder: LearnerFolder, assignment: Assignment, output: Output) -> Claim:
    """The claim for this learner's results."""
    return Claim(folder.root / Path(RESULTS).name, results_key(assignment, output))


class Claim:
    """The volume of the claim, for one learner. Blocks. Raises NoSpace, Unavailable, PermissionDenied."""

    def __init__(self, root: Path, own: str) -> None:
        """``own``: the folder of the learner's results."""
        self._root = root
        self._own = own.split("/")
        self._part = f".{self._own[-1]}.part"
        """The file that is being written: of the helper of this learner alone, beside its folder."""
        self._file = -1

    def make_folder(self) -> None:
        """Makes the folder of the learner's results."""
        with _errors(self._own), self._folder(self._own):
            pass

    def size(self, parts: Sequence[str]) -> int | None:
        """Bytes of a file; None without it."""
        absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with _errors(parts), absent, self._folder(parts[:-1], create=False) as place:
            return os.stat(parts[-1], dir_fd=place, follow_symlinks=False).st_size
        return None

    def begin(self) -> None:
        """Begins a file, in place of one that was begun and not published."""
        self.close()
        with _errors(self._own), self._folder(self._own[:-1]) as place:
            self._file = os.open(self._part, _NEW, 0o644, dir_fd=place)

    def write(self, data: bytes) -> None:
        """Adds to the file that was begun."""
        with _errors(self._own):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def publish(self, parts: Sequence[str]) -> None:
        """Gives the file its name. It is durable when this returns."""
        with _errors(parts), self._folder(self._own[:-1]) as above, self._folder(parts[:-1]) as place:
            os.fsync(self._file)
            os.rename(self._part, parts[-1], src_dir_fd=above, dst_dir_fd=place)
            os.fsync(place)
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Removes a file that was begun and not published."""
        if self._file == -1:
            return
        os.close(self._file)
        self._file = -1
        with contextlib.suppress(OSError), self._folder(self._own[:-1], create=False) as place:
            os.unlink(self._part, dir_fd=place)

    @contextlib.contextmanager
    def _folder(self, parts: Sequence[str], *, create: bool = True) -> Generator[int]:
        """A descriptor of a folder of the claim."""
        current = os.open(self._root, _FOLDER)
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=current)
                below = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)


class ClaimObjects:
    """What ``store`` needs of ``services.helper.objects.Objects``. A key is a path on the claim."""

    def __init__(self, claim: Claim, wait: Wait) -> None:
        self._claim = claim
        self._wait = wait

    async def size(self, key: str) -> int | None:
        """Bytes; None without such a file."""
        return await self._retried(lambda: call_in_thread(lambda: self._claim.size(key.split("/"))))

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:  # noqa: ARG002 - as of Objects
        """Durable when this returns. ``read`` may be called again. Raises NoSpace and other permanent errors."""

        async def put() -> None:
            await call_in_thread(self._claim.begin)
            async with aclosing(read()) as chunks:
                async for chunk in chunks:
                    await call_in_thread(partial(self._claim.write, chunk))
            await call_in_thread(lambda: self._claim.publish(key.split("/")))

        await self._retried(put)

    async def close(self) -> None:
        """Removes a file that was begun and not published, unless the file system hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await call_in_thread(self._claim.close)

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except Unavailable as error:
                await self._wait(_PAUSE_S, error.message)


@contextlib.contextmanager
def _errors(parts: Sequence[str]) -> Generator[None]:
    """Translates errors of the claim's file system."""
    try:
        yield
    except OSError as error:
        raise _translated(error, "/".join(parts)) from error


def _translated(error: OSError, path: str) -> WeftError:
    if error.errno in FULL:
        return NoSpace(f"the claim has no space left for {path}")
    if error.errno in _REFUSED:
        return PermissionDenied(f"{path} on the claim cannot be written: {error.strerror}")
    return Unavailable(f"{path} on the claim cannot be written now: {error.strerror}")

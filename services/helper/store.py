"""What a learner leaves behind, into the object store: logs, results, checkpoints, and the checkpoints' manifest last.

    <attempt>/logs/learner-<rank+1>/training-log.txt   both streams by time (FfDL's layout)
    <attempt>/logs/learner-<rank+1>/stdout.<run> ...   the streams as they were, and whatever lies in LOG_DIR
    <attempt>/results/<name>/...                       RESULT_DIR
    <attempt>/checkpoints/<name>/...                   CHECKPOINT_DIR; they count once <name>.manifest.json is there

May be killed at any point and done again: an object is whole or absent, and one of the right size is not sent twice.
One file that cannot be stored (no space, a name that is no key) is told and does not keep the others from it. While
room is missing, all is gone through again and again: somebody may make some.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import NoSpace, WeftError
from services.helper.folder import Assignment, LearnerFolder
from services.helper.journal import note
from services.helper.learner_files import open_file, walk
from services.helper.objects import Objects, Urls, objects_of
from services.helper.ship.lines import LINE_BYTES, split
from services.helper.ship.times import TimeIndex
from services.helper.spool import Known, Spool

_CHUNK: Final = 2**20
_STREAMS: Final = ("stdout", "stderr")
_MERGED: Final = "training-log.txt"
_BEGUN: Final = "spool/storing"
_ROOM_FIRST_S: Final = 1.0
_ROOM_MOST_S: Final = 60.0
"""Between two tries to store what a full store has refused: each reads anew whatever is stored already."""


@dataclass(slots=True)
class _Outcome:
    """What went wrong, so far."""

    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    full: bool = False

    def message(self) -> str:
        """For people; empty where all is well."""
        parts = []
        if self.failed:
            name, why = self.failed[0]
            count = f"{len(self.failed)} files" if len(self.failed) > 1 else "one file"
            reason = "NoSpace: " if self.full else ""
            parts.append(f"{reason}{count} could not be stored, the first is {name}: {why}")
        if self.skipped:
            name, why = self.skipped[0]
            count = f"{len(self.skipped)} files were" if len(self.skipped) > 1 else "one file was"
            parts.append(f"{count} left out, the first is {name}: {why}")
        return "; ".join(parts)


async def store(
    folder: LearnerFolder, assignment: Assignment, spool: Spool, run: int, *, urls: Urls, say: Callable[[str], None]
) -> str:
    """All of it; in words what of it could not be stored ("": nothing). ``say``: what is waited for meanwhile."""
    plan = assignment.plan
    prefix = f"tenants/{plan.tenant}/jobs/{plan.job}/attempts/{plan.attempt}"
    waiting = _Waiting(say)
    objects = objects_of(assignment, urls, waiting.wait, spool)
    storing = _Storing(objects, folder.root, assignment.learner_uid, waiting, again=folder.has(_BEGUN))
    with contextlib.suppress(OSError):  # without it, what is there already is sent again
        (folder.root / _BEGUN).touch()
    try:
        async with asyncio.timeout(plan.store_timeout / 1000):
            wait_s = _ROOM_FIRST_S
            while True:
                await _logs(storing, f"{prefix}/logs/learner-{assignment.learner.rank + 1}", spool, run)
                await storing.tree(("job", "results"), f"{prefix}/results/{assignment.learner.name}")
                await _checkpoints(storing, f"{prefix}/checkpoints/{assignment.learner.name}")
                if not storing.outcome.full:
                    break
                await waiting.wait(wait_s, storing.outcome.message())
                wait_s = min(2 * wait_s, _ROOM_MOST_S)
                storing.begin_again()
    except TimeoutError:
        if not storing.outcome.full:  # else that is why
            allowed = plan.store_timeout // 1000
            why = f": {waiting.trouble}" if waiting.trouble else ""
            storing.outcome.failed.append(
                ("...", f"storing took longer than the job's store_timeout ({allowed} s){why}")
            )
    await objects.close()
    for name, why in (*storing.outcome.failed, *storing.outcome.skipped):
        note("store.left_out", file=name, why=why)
    return storing.outcome.message()


class _Waiting:
    """For what has kept us waiting, and may pass."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.trouble = ""
        self._say = say

    async def wait(self, seconds: float, trouble: str) -> None:
        if trouble != self.trouble:  # once: it may last for long
            self.trouble = trouble
            note("store.waits", why=trouble)
            self._say(f"storing waits: {trouble}")
        await asyncio.sleep(seconds)

    def over(self) -> None:
        if self.trouble:
            self.trouble = ""
            self._say("")


class _Storing:
    """Files of one learner's folder on their way into the store."""

    def __init__(self, objects: Objects, root: Path, uid: int, waiting: _Waiting, *, again: bool) -> None:
        """``again``: a helper before us has begun, and some objects may be there."""
        self.root = root
        self._again = again
        self._waiting = waiting
        self.outcome = _Outcome()
        self._objects = objects
        self.uid = uid

    def begin_again(self) -> None:
        """All of it once more; what is there already is only looked at."""
        self.outcome, self._again = _Outcome(), True

    async def tree(
        self, parts: tuple[str, ...], to: str, *, taken: frozenset[str] = frozenset()
    ) -> list[dict[str, Any]]:
        """Every plain file below the folder; what is stored, as the manifest lists it. ``taken``: names left out."""
        done: list[dict[str, Any]] = []
        found = walk(self.root, parts, lambda path, why: self.outcome.skipped.append((path, why)))
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            if each.path in taken:
                self.outcome.skipped.append((each.path, "the name is taken by the platform's own logs"))
                continue
            digest = await self.file((*parts, *each.path.split("/")), f"{to}/{each.path}", each.size)
            if digest is not None:
                done.append({"path": each.path, "size": each.size, "sha256": digest})
        return done

    async def file(self, parts: tuple[str, ...], key: str, size: int) -> str | None:
        """The digest of a file that is now stored; None where it could not be."""
        digest = ""

        def read() -> Iterator[bytes]:
            nonlocal digest
            hashing = hashlib.sha256()
            # No more than it had when it was listed: nobody is left who might still write, but it costs nothing.
            fd, left = open_file(self.root, parts, self.uid), size
            with os.fdopen(fd, "rb", buffering=0) as file:
                while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                    hashing.update(chunk)
                    left -= len(chunk)
                    yield chunk
            digest = hashing.hexdigest()

        return digest if await self.put(key, read, size) else None

    async def put(self, key: str, read: Callable[[], Iterator[bytes]], size: int | None = None) -> bool:
        """Whether the object is there; why it is not is noted. One of that size is there from an interrupted try."""
        try:
            if self._again and size is not None and await self._objects.size(key) == size:
                async with aclosing(_in_thread(read())) as chunks:
                    async for _ in chunks:  # only its digest is missing
                        pass
            else:
                await self._objects.put(key, lambda: _in_thread(read()), size)
        except (WeftError, OSError) as error:
            self.outcome.full = self.outcome.full or isinstance(error, NoSpace)
            self.outcome.failed.append((key.split("/", 6)[-1], str(error)))
            return False
        self._waiting.over()
        return True


async def _in_thread(chunks: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Read beside the event loop, which has signs of life to give meanwhile."""
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


async def _logs(storing: _Storing, to: str, spool: Spool, run: int) -> None:
    streams = ("runs", str(run))
    sizes = {found.path: found.size for found in walk(storing.root, streams, lambda *_: None)}
    present = [name for name in _STREAMS if name in sizes]
    for name in present:
        await storing.file((*streams, name), f"{to}/{name}.{run}", sizes[name])
    if present:
        await storing.put(f"{to}/{_MERGED}", lambda: _chunked(_merged(storing, streams, present, spool, run)))
    taken = frozenset({_MERGED, *(f"{name}.{run}" for name in present)})
    await storing.tree(("job", "logs"), to, taken=taken)


def _merged(
    storing: _Storing, streams: tuple[str, ...], names: Iterable[str], spool: Spool, run: int
) -> Iterator[bytes]:
    """The lines of both streams in the order they were seen; of the same moment, stdout's first."""

    def lines(order: int, name: str) -> Iterator[tuple[int, int, int, bytes]]:
        key = f"{run}/{name}"
        times = TimeIndex(spool.times(f"{key}.{(spool.source(key) or Known()).generation}"))
        fd = open_file(storing.root, (*streams, name), storing.uid)
        try:
            place = 0
            while data := os.pread(fd, _CHUNK, place):
                ended = len(data) < _CHUNK
                for piece in split(data, place, ended=ended, limit=LINE_BYTES):
                    place = piece.end
                    yield times.at(piece.end), order, piece.end, piece.raw + (b"" if piece.partial else b"\n")
        finally:
            os.close(fd)
            times.close()

    for *_, line in heapq.merge(*(lines(order, name) for order, name in enumerate(names))):
        yield line


def _chunked(lines: Iterator[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


async def _checkpoints(storing: _Storing, to: str) -> None:
    """Files first: a manifest promises that what it lists can be restored."""
    failed = len(storing.outcome.failed)
    files = await storing.tree(("job", "checkpoints"), to)
    if files and len(storing.outcome.failed) == failed:
        document = {"schema": 1, "files": files, "time": time.time_ns() // 1_000_000}
        await storing.put(f"{to}.manifest.json", lambda: iter([json.dumps(document).encode()]))

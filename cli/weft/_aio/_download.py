"""Fetches files so that a name in the target folder always means a whole file.

Bytes go to a hidden part file beside the target, named after the content's ETag; it is renamed when it has its full
size and is on disk. A cut download goes on where its part file ends (`Range` with `If-Range`); if the content has
changed since, the platform sends the whole and the part starts anew. One download at a time writes to a part file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

from weft._aio._http import AsyncHttp
from weft._aio._to_thread import to_thread
from weft._choosing import KINDS, choose, inside, part_file
from weft._download_record import DownloadRecord
from weft._errors import ConnectionFailed, InvalidRequest, NotFound
from weft._part_file import locked_part, size_of, written_twice
from weft._records import Artifact
from weft._unpack import unpack

# How often one file is gone on with after a cut that brought nothing new.
_FRUITLESS: Final = 5


async def download(
    http: AsyncHttp,
    path: str,
    listed: Sequence[Artifact],
    folder: Path,
    *,
    what: str,
    on_bytes: Callable[[int, int], None],
    force: bool = True,
    unpacked: bool = False,
) -> list[Path]:
    """Fetch what of ``listed`` (of any attempts) is ``what``, of the newest attempt that has any, into ``folder``.

    Raises Conflict, before anything is fetched, where local files would be replaced, unless ``force``. ``unpacked``:
    code as its files.
    """
    if what not in KINDS:
        raise InvalidRequest(f"there is no '{what}' to download; there are: {', '.join(KINDS)}")
    chosen = choose(listed, what)
    if not chosen:
        raise NotFound(f"the job has left no {what} (yet)")
    record = DownloadRecord(folder)
    if not force:
        record.check(inside(folder, name) for name, _artifact in chosen)
    fetched = await _fetch_all(http, path, chosen, record, on_bytes=on_bytes)
    if what == "code" and unpacked:
        etag = chosen[0][1].etag
        return await to_thread(partial(unpack, fetched[0], folder, record, etag=etag, force=force))
    return fetched


async def _fetch_all(
    http: AsyncHttp,
    path: str,
    chosen: Sequence[tuple[str, Artifact]],
    record: DownloadRecord,
    *,
    on_bytes: Callable[[int, int], None],
) -> list[Path]:
    total, done = sum(artifact.size for _name, artifact in chosen), 0
    fetched: list[Path] = []
    for name, artifact in chosen:
        before = done

        def count(so_far: int, before: int = before) -> None:
            on_bytes(before + so_far, total)

        target = inside(record.folder, name)
        if not record.has(target, artifact.etag):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = part_file(target, artifact.etag)
            with locked_part(part, target) as file:  # until the file has its name: nothing else may write to it
                if not await _fetch(http, f"{path}/{quote(artifact.path)}", artifact, file, count):
                    raise written_twice(target)
                record.place(part, target, artifact.etag)
        fetched.append(target)
        done += artifact.size
        on_bytes(done, total)
    return fetched


async def _fetch(http: AsyncHttp, url: str, artifact: Artifact, file: IO[bytes], count: Callable[[int], None]) -> bool:
    """Complete a part file. False if something else writes to it as well."""
    fruitless, had = 0, -1
    while True:
        try:
            return await _go_on(http, url, artifact, file, count)
        except ConnectionFailed:
            now = size_of(file)
            fruitless = 0 if now > had else fruitless + 1
            had = now
            if fruitless >= _FRUITLESS:
                raise


async def _go_on(http: AsyncHttp, url: str, artifact: Artifact, file: IO[bytes], count: Callable[[int], None]) -> bool:
    """Fetch what is missing of one file and see it to the disk. False as in `_fetch`."""
    have = size_of(file)
    if have > artifact.size:
        file.truncate(0)
        have = 0
    if have < artifact.size:
        headers = {"Range": f"bytes={have}-", "If-Range": _quoted(artifact.etag)} if have else {}
        # Bytes as they are stored: a length that was compressed on the way could not be gone on with.
        async with http.open(url, headers={"Accept-Encoding": "identity", **headers}) as response:
            if have and response.status != 206:
                file.truncate(0)
                have = 0
            async for chunk in response.aiter_bytes():  # as they come: a cut must not cost what is here already
                file.write(chunk)
                have += len(chunk)
                count(have)
    if size_of(file) != have:
        return False
    if have != artifact.size:
        file.truncate(0)
        raise ConnectionFailed(f"{artifact.path} came with {have} bytes instead of {artifact.size}; try again")
    await to_thread(os.fsync, file.fileno())
    return True


def _quoted(etag: str) -> str:
    """The ETag as a header has it: the list of files gives it without quotes."""
    return f'"{etag.strip(chr(34))}"'

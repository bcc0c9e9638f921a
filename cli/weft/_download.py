"""Fetches files so that a name in the target folder always means a whole file.

Bytes go to a hidden part file beside the target, named after the content's ETag; it is renamed when it has its full
size and is on disk. A cut download goes on where its part file ends (`Range` with `If-Range`); if the content has
changed since, the platform sends the whole and the part starts anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

from weft._errors import ConnectionFailed, Internal, InvalidRequest, NotFound
from weft._http import Http
from weft._records import Artifact

KINDS: Final = ("results", "logs", "checkpoints", "code")
# How often one file is gone on with after a cut that brought nothing new.
_FRUITLESS: Final = 5


def download(
    http: Http,
    path: str,
    listed: Sequence[Artifact],
    folder: Path,
    *,
    what: str,
    on_bytes: Callable[[int, int], None],
) -> list[Path]:
    """Fetch what of ``listed`` (of any attempts) is ``what``, of the newest attempt that has any, into ``folder``."""
    if what not in KINDS:
        raise InvalidRequest(f"there is no '{what}' to download; there are: {', '.join(KINDS)}")
    chosen = choose(listed, what)
    if not chosen:
        raise NotFound(f"the job has left no {what} (yet)")
    total, done = sum(artifact.size for _name, artifact in chosen), 0
    fetched: list[Path] = []
    for name, artifact in chosen:
        before = done

        def count(so_far: int, before: int = before) -> None:
            on_bytes(before + so_far, total)

        fetched.append(_fetch(http, f"{path}/{quote(artifact.path)}", artifact, _inside(folder, name), count))
        done += artifact.size
        on_bytes(done, total)
    return fetched


def choose(listed: Sequence[Artifact], what: str) -> list[tuple[str, Artifact]]:
    """The artifacts to fetch, each with its path below the target folder."""
    if what == "code":
        return [("code.zip", artifact) for artifact in listed if artifact.path == "code.zip"]
    by_attempt: dict[int, list[tuple[str, Artifact]]] = {}
    for artifact in listed:
        parts = artifact.path.split("/", 3)
        if len(parts) == 4 and parts[0] == "attempts" and parts[1].isdigit() and parts[2] == what:
            by_attempt.setdefault(int(parts[1]), []).append((parts[3], artifact))
    return by_attempt[max(by_attempt)] if by_attempt else []


def _inside(folder: Path, name: str) -> Path:
    """Where a file goes. The platform's word is not taken for it: nothing is written outside the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise Internal(f"the platform lists a file with a path that leads outside: {name!r}")
    return folder.joinpath(*parts)


def _fetch(http: Http, url: str, artifact: Artifact, target: Path, count: Callable[[int], None]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    version = hashlib.sha256(artifact.etag.encode()).hexdigest()[:12]
    part = target.with_name(f".{target.name[:200]}.{version}.weft-part")
    fruitless, had = 0, -1
    while True:
        try:
            _go_on(http, url, artifact, part, count)
            break
        except ConnectionFailed:
            now = part.stat().st_size if part.exists() else 0
            fruitless = 0 if now > had else fruitless + 1
            had = now
            if fruitless >= _FRUITLESS:
                raise
    part.replace(target)
    return target


def _go_on(http: Http, url: str, artifact: Artifact, part: Path, count: Callable[[int], None]) -> None:
    """Fetch what is missing of one file and see it to the disk."""
    with part.open("ab") as file:
        have = file.tell()
        if have > artifact.size:
            file.truncate(0)
            have = 0
        if have < artifact.size:
            headers = {"Range": f"bytes={have}-", "If-Range": artifact.etag} if have else {}
            # Bytes as they are stored: a length that was compressed on the way could not be gone on with.
            with http.open(url, headers={"Accept-Encoding": "identity", **headers}) as response:
                if have and response.status_code != 206:
                    file.truncate(0)
                    have = 0
                for chunk in response.iter_bytes():  # as they come: a cut must not cost what is here already
                    file.write(chunk)
                    have += len(chunk)
                    count(have)
        file.flush()
        os.fsync(file.fileno())
    if have != artifact.size:
        part.unlink(missing_ok=True)
        raise ConnectionFailed(f"{artifact.path} came with {have} bytes instead of {artifact.size}; try again")

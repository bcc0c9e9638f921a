"""The job's code: taken from the object store, checked against its digest, unpacked into MODEL_DIR."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Generator
from contextlib import aclosing
from io import BufferedReader
from pathlib import Path
from typing import IO, Final

from services.core.domain.errors import InvalidArchive, NotFound
from services.core.formats.archive import unpack
from services.helper.fetch.watched import Cannot, Watched
from services.helper.folder import Assignment
from services.helper.objects import Urls, objects_of

_ALGORITHM: Final = "sha256:"


def fetch_code(assignment: Assignment, model_dir: Path, urls: Urls, watched: Watched) -> None:
    """MODEL_DIR holds the code, whole; an empty folder for a job without any."""
    digest = assignment.plan.code_digest
    if not digest:
        model_dir.mkdir(exist_ok=True)
        return
    beside = model_dir.with_name(f".{model_dir.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    key = f"tenants/{assignment.plan.tenant}/code/{digest.removeprefix(_ALGORITHM)}"
    try:
        with _opened(assignment, key, urls, watched) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if _ALGORITHM + found != digest:
                raise Cannot(
                    "CodeInvalid", f"the stored code is not what was uploaded ({digest}); submit the job again"
                )
            unpack(file, beside, owner=assignment.owner)
    except (FileNotFoundError, NotFound):
        raise Cannot("CodeInvalid", f"the code {digest} is not in the object store; submit the job again") from None
    except InvalidArchive as invalid:
        raise Cannot("CodeInvalid", invalid.message) from invalid
    # What a helper before us has put there is the same; nobody else has been here yet.
    shutil.rmtree(model_dir, ignore_errors=True)
    beside.rename(model_dir)


@contextlib.contextmanager
def _opened(assignment: Assignment, key: str, urls: Urls, watched: Watched) -> Generator[BufferedReader]:
    """The archive: where it lies, or a copy that is gone afterwards."""
    if assignment.objects:
        with Path(assignment.objects, key).open("rb") as file:
            yield file
        return
    cache = Path(assignment.cache)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache) as copy:
        asyncio.run(_copy(assignment, key, copy, urls, watched))
        copy.seek(0)
        with open(copy.fileno(), "rb", closefd=False) as file:
            yield file


async def _copy(assignment: Assignment, key: str, to: IO[bytes], urls: Urls, watched: Watched) -> None:
    objects = objects_of(assignment, urls, watched.objects_away)
    try:
        async with aclosing(objects.get(key)) as chunks:
            async for chunk in chunks:
                to.write(chunk)
                watched.check()
    finally:
        await objects.close()

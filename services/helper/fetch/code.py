"""The job's code in MODEL_DIR: taken from the object store, checked against its digest, unpacked; and its link to the
checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Generator
from contextlib import aclosing
from io import BufferedReader
from pathlib import Path
from typing import IO, Final

from services.core.domain.errors import InvalidArchive, NotFound
from services.core.domain.outages import Outage
from services.core.domain.plan import Folder
from services.core.formats.archive import unpack
from services.core.runtime.learner_folder import JOB_FOLDERS, Assignment
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.objects import UrlSigner, open_objects

_ALGORITHM: Final = "sha256:"


def fetch_code(assignment: Assignment, target: Path, signer: UrlSigner, progress: FetchProgress) -> None:
    """Unpacks the code into ``target``, which must not exist; does nothing for a job without code.

    Raises FetchFailed if the code is missing or damaged, or the store away (an outage), FetchCancelled.
    """
    digest = assignment.plan.code_digest
    if not digest:
        return
    key = f"tenants/{assignment.plan.tenant}/code/{digest.removeprefix(_ALGORITHM)}"
    try:
        with _open_archive(assignment, key, signer, progress) as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
            if _ALGORITHM + actual != digest:
                raise FetchFailed(
                    "CodeInvalid", f"the stored code is not what was uploaded ({digest}); submit the job again"
                )
            unpack(file, target, owner=assignment.owner)
    except (FileNotFoundError, NotFound):
        if _is_store_away(assignment):
            raise FetchFailed(
                Outage.OBJECT_STORE_UNAVAILABLE, "the folder of the object store is not there; it may not be mounted"
            ) from None
        raise FetchFailed(
            "CodeInvalid", f"the code {digest} is not in the object store; submit the job again"
        ) from None
    except InvalidArchive as invalid:
        raise FetchFailed("CodeInvalid", invalid.message) from invalid


def link_checkpoints(assignment: Assignment, model_dir: Path) -> None:
    """Makes ``checkpoint.path`` in the code a link to CHECKPOINT_DIR, relative, so that it holds in a container, too.

    ``model_dir``: the code, below a folder that learners cannot write; made if there is no code. Raises FetchFailed
    where the code has something at this path.
    """
    parts = [part for part in assignment.plan.checkpoint_path.split("/") if part not in {"", "."}]
    folder = model_dir
    for missing in (model_dir, *(model_dir.joinpath(*parts[:count]) for count in range(1, len(parts)))):
        if not missing.exists():
            missing.mkdir(mode=0o755)
            if assignment.owner is not None:
                os.chown(missing, *assignment.owner)
        folder = missing
    link = folder / parts[-1]
    if not folder.is_dir() or link.exists():
        path = assignment.plan.checkpoint_path
        raise FetchFailed(
            "CodeInvalid", f"checkpoint.path is {path}, and the code has that itself; remove it there, or name another"
        )
    link.symlink_to(Path(*[".."] * len(parts), JOB_FOLDERS[Folder.CHECKPOINT]))
    if assignment.owner is not None:
        os.chown(link, *assignment.owner, follow_symlinks=False)


def _is_store_away(assignment: Assignment) -> bool:
    """Whether the store is a folder that is not there. A store has a folder for staging."""
    from services.core.adapters.folder.objects import STAGING  # noqa: PLC0415 - only after a failure

    return bool(assignment.objects) and not Path(assignment.objects, STAGING).is_dir()


@contextlib.contextmanager
def _open_archive(
    assignment: Assignment, key: str, signer: UrlSigner, progress: FetchProgress
) -> Generator[BufferedReader]:
    """The archive in the store's folder, or a temporary copy of it."""
    if assignment.objects:
        with Path(assignment.objects, key).open("rb") as file:
            yield file
        return
    cache = Path(assignment.cache)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache) as copy:
        asyncio.run(_download(assignment, key, copy, signer, progress))
        copy.seek(0)
        with open(copy.fileno(), "rb", closefd=False) as file:
            yield file


async def _download(
    assignment: Assignment, key: str, target: IO[bytes], signer: UrlSigner, progress: FetchProgress
) -> None:
    objects = open_objects(assignment, signer, progress.wait_for_objects)
    try:
        async with aclosing(objects.get(key)) as chunks:
            async for chunk in chunks:
                target.write(chunk)
                progress.report_bytes(target.tell(), None)
    finally:
        await objects.close()

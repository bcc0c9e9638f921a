"""The job's code: taken from the object store, checked against its digest, unpacked into MODEL_DIR."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from services.core.archive import unpack
from services.core.domain.errors import InvalidArchive
from services.helper.fetch.watched import Cannot
from services.helper.folder import Assignment

_ALGORITHM: Final = "sha256:"


def fetch_code(assignment: Assignment, model_dir: Path) -> None:
    """MODEL_DIR holds the code, whole; an empty folder for a job without any."""
    digest = assignment.plan.code_digest
    if not digest:
        model_dir.mkdir(exist_ok=True)
        return
    archive = Path(assignment.objects) / "tenants" / assignment.plan.tenant / "code" / digest.removeprefix(_ALGORITHM)
    beside = model_dir.with_name(f".{model_dir.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if _ALGORITHM + found != digest:
                raise Cannot(
                    "CodeInvalid", f"the stored code is not what was uploaded ({digest}); submit the job again"
                )
            unpack(file, beside, owner=assignment.owner)
    except FileNotFoundError:
        raise Cannot("CodeInvalid", f"the code {digest} is not in the object store; submit the job again") from None
    except InvalidArchive as invalid:
        raise Cannot("CodeInvalid", invalid.message) from invalid
    # What a helper before us has put there is the same; nobody else has been here yet.
    shutil.rmtree(model_dir, ignore_errors=True)
    beside.rename(model_dir)

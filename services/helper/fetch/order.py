"""What is fetched, in which order: the cheap before the long, so that a wrong job fails fast."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

from services.core.domain.plan import Input
from services.helper.fetch.code import fetch_code
from services.helper.fetch.watched import Cannot, Fetched, Watched
from services.helper.folder import Assignment, LearnerFolder
from services.helper.objects import Urls

# ruff: noqa: PLC0415 - what a job does not ask for is not imported: its learner would wait for it


def fetch_all(folder: LearnerFolder, assignment: Assignment, urls: Urls, watched: Watched) -> Fetched:
    """Cannot with a reason for whatever goes wrong for good; Cancelled."""
    job = folder.root / "job"
    out = Fetched()
    try:
        fetch_code(assignment, job / "model-code", urls, watched)
        watched.check()
        if assignment.plan.inputs:
            out.data_digest = _data(assignment, job / "data", watched)
        if assignment.plan.framework or (job / "model-code" / "requirements.txt").exists():
            _environment(assignment, job / "model-code", out, watched)
        if assignment.plan.checkpoint_attempts:
            from services.helper.fetch.checkpoints import restore

            restore(assignment, job / "checkpoints", urls, watched)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Cannot("NoSpace", "this machine's disk is full; make room, and submit the job again") from error
        raise
    return out


def _environment(assignment: Assignment, model_dir: Path, out: Fetched, watched: Watched) -> None:
    from services.helper import environment

    want = environment.wanted(assignment.plan.framework, model_dir)
    if want is not None:
        venv = environment.prepare(want, Path(assignment.cache), watched) / "venv"
        out.env_digest = f"sha256:{want.digest}"
        out.path = [str(venv / "bin")]
        out.env = {"VIRTUAL_ENV": str(venv)}


def _data(assignment: Assignment, data_dir: Path, watched: Watched) -> str:
    """The digest of all inputs. Each is made anew: what a killed helper has left may be half of it."""
    from services.helper.fetch.http_data import fetch_http
    from services.helper.fetch.local_data import fetch_local
    from services.helper.settings import read

    settings = read()
    ways = {"local": fetch_local, "http": fetch_http}
    hashing = hashlib.sha256()
    for one in sorted(assignment.plan.inputs, key=lambda each: each.mount):
        if one.type not in ways:
            raise Cannot("DataStoreDenied", f"data stores of type {one.type} are not available on this platform yet")
        target = _cleared(data_dir, one)
        digest = ways[one.type](one, target, assignment, settings, watched)
        hashing.update(f"{one.mount}\0{one.type}\0{one.location}\0{one.path}\0{digest}\n".encode())
        watched.check()
    return f"sha256:{hashing.hexdigest()}"


def _cleared(data_dir: Path, one: Input) -> Path:
    """The input's place below DATA_DIR, its parents made and itself not there."""
    parts = one.mount.split("/")
    if one.mount.startswith("/") or {"", ".", ".."} & set(parts):
        raise Cannot("DataStoreDenied", f"'{one.mount}' is no folder below DATA_DIR")
    target = data_dir.joinpath(*parts)
    for parent in reversed(target.relative_to(data_dir).parents[:-1]):
        (data_dir / parent).mkdir(exist_ok=True)
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif os.path.lexists(target):
        shutil.rmtree(target)
    return target

"""Everything a learner needs, in an order that lets a wrong job fail early: the cheap before the long.

Made in ``fetched/``, which the learner cannot enter, and handed over by a rename of whole folders into its ``job/``.
Nothing that the learner has or could have made there is opened, followed or removed: what is in the way is renamed
to ``replaced/``, and goes with the learner's folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import WeftError
from services.core.domain.outages import Outage
from services.core.domain.plan import Folder, Input
from services.core.domain.startup import Step
from services.core.runtime.learner_folder import JOB_FOLDER, JOB_FOLDERS, Assignment, LearnerFolder
from services.helper.fetch.code import fetch_code, link_checkpoints
from services.helper.fetch.faults import outage_of
from services.helper.fetch.progress import FetchFailed, FetchProgress, FetchResult
from services.helper.fetch.versions import DataVersions
from services.helper.learner_files import open_folder
from services.helper.objects import UrlSigner

# ruff: noqa: PLC0415 - modules that a job does not need are not imported: its learner would wait for them


def fetch_all(folder: LearnerFolder, assignment: Assignment, signer: UrlSigner, progress: FetchProgress) -> FetchResult:
    """Fetches and hands over. May be done again from the start. Raises FetchFailed, FetchCancelled."""
    try:
        staging = _empty_staging(folder.staging)
        result = _fetch_into(staging, folder, assignment, signer, progress)
        _hand_over(staging, folder)
    except (OSError, WeftError) as error:
        if (outage := outage_of(error)) is not None:
            raise outage from error
        raise
    return result


def _fetch_into(
    staging: Path, folder: LearnerFolder, assignment: Assignment, signer: UrlSigner, progress: FetchProgress
) -> FetchResult:
    result = FetchResult()
    if assignment.plan.output is not None:
        from services.helper.fetch.claim_check import check_claim

        check_claim(folder, assignment, assignment.plan.output)
    model_dir = staging / JOB_FOLDERS[Folder.MODEL]
    if assignment.plan.code_digest:
        with progress.step(Step.CODE, "fetching its code"):
            fetch_code(assignment, model_dir, signer, progress)
    if assignment.plan.checkpoint_path:
        link_checkpoints(assignment, model_dir)
    progress.check()
    if assignment.plan.inputs:
        versions = DataVersions(folder.data_versions)
        with progress.step(Step.DATA, "fetching its data"):
            data = staging / JOB_FOLDERS[Folder.DATA]
            result.data_digest = _fetch_data(assignment, data, versions, signer, progress)
    if folder.has_image:
        _refuse_requirements(model_dir)
    elif assignment.plan.framework or (model_dir / "requirements.txt").exists():
        with progress.step(Step.ENVIRONMENT, "looking for its environment"):
            _prepare_environment(assignment, model_dir, result, progress)
    if assignment.checkpoint_attempts:
        from services.helper.fetch.checkpoints import restore

        with progress.step(Step.CHECKPOINT, "looking for checkpoints of earlier attempts"):
            restore(assignment, _gang(folder, assignment), staging / JOB_FOLDERS[Folder.CHECKPOINT], signer, progress)
    return result


def _gang(folder: LearnerFolder, assignment: Assignment) -> list[str]:
    try:
        return folder.gang(assignment.plan)
    except MALFORMED as error:
        raise FetchFailed(Outage.MACHINE_FAULT, f"the file with the gang's learners is damaged: {error}") from error


def _prepare_environment(assignment: Assignment, model_dir: Path, result: FetchResult, progress: FetchProgress) -> None:
    from services.helper.fetch import environment

    spec = environment.required_environment(assignment.plan.framework, model_dir)
    if spec is not None:
        venv = environment.prepare(spec, Path(assignment.cache), progress) / "venv"
        result.env_digest = f"sha256:{spec.digest}"
        result.path = [str(venv / "bin")]
        result.env = {"VIRTUAL_ENV": str(venv)}


def _fetch_data(
    assignment: Assignment, data_dir: Path, versions: DataVersions, signer: UrlSigner, progress: FetchProgress
) -> str:
    """Returns the digest of all inputs."""
    from services.helper.fetch.http_data import fetch_http
    from services.helper.fetch.local_data import fetch_claim, fetch_local
    from services.helper.fetch.s3_data import fetch_s3
    from services.helper.settings import load_settings

    settings = load_settings()
    fetchers: dict[str, Callable[..., str]] = {
        "local": fetch_local,
        "http": fetch_http,
        "pvc": fetch_claim,
        "s3": partial(fetch_s3, signer=signer),
    }
    hashing = hashlib.sha256()
    data_dir.mkdir(mode=0o755)
    for entry in sorted(assignment.plan.inputs, key=lambda entry: entry.mount):
        if entry.type not in fetchers:
            raise FetchFailed(
                "DataStoreDenied", f"data stores of type {entry.type} are not available on this platform yet"
            )
        target = _mount_point(data_dir, entry)
        fetch = fetchers[entry.type]
        digest = fetch(entry, target, assignment, settings=settings, versions=versions, progress=progress)
        versions.record(entry, digest)
        hashing.update(f"{entry.mount}\0{entry.type}\0{entry.location}\0{entry.path}\0{digest}\n".encode())
        progress.check()
    return f"sha256:{hashing.hexdigest()}"


def _mount_point(data_dir: Path, entry: Input) -> Path:
    """The input's place below DATA_DIR, with its parents made and itself missing."""
    parts = entry.mount.split("/")
    if entry.mount.startswith("/") or {"", ".", ".."} & set(parts):
        raise FetchFailed("DataStoreDenied", f"'{entry.mount}' is no folder below DATA_DIR")
    target = data_dir.joinpath(*parts)
    for parent in (data_dir.joinpath(*parts[:count]) for count in range(1, len(parts))):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            raise _contained(entry)
        parent.mkdir(mode=0o755, exist_ok=True)
    if os.path.lexists(target):
        raise _contained(entry)
    return target


def _contained(entry: Input) -> FetchFailed:
    # The spec refuses this; a plan of an older version may still have it.
    return FetchFailed("DataStoreDenied", f"the mount '{entry.mount}' is inside another input's, or contains it")


def _refuse_requirements(model_dir: Path) -> None:
    if (model_dir / "requirements.txt").exists():
        raise FetchFailed(
            "EnvironmentFailed",
            "requirements.txt is not installed on this cluster: name an image that has its packages with `image:`, and"
            " remove the file",
        )


def _empty_staging(staging: Path) -> Path:
    """A folder for the platform's user only. An earlier helper's is removed: it may be half-made."""
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(mode=0o700)
    return staging


def _hand_over(staging: Path, folder: LearnerFolder) -> None:
    """Moves each folder of ``staging`` into the learner's ``job/``."""
    job = open_folder(staging.parent, (JOB_FOLDER,))  # in a pod by the mount that both are in
    try:
        for made in sorted(staging.iterdir()):
            _clear_name(job, made.name, folder.replaced)
            os.rename(made, made.name, dst_dir_fd=job)
    finally:
        os.close(job)


def _clear_name(job: int, name: str, replaced: Path) -> None:
    """Afterwards ``job`` has no entry of this name. An empty folder, as the agent makes it, is removed."""
    try:
        os.rmdir(name, dir_fd=job)
    except FileNotFoundError:
        return
    except OSError:  # not empty, or no folder
        replaced.mkdir(mode=0o700, exist_ok=True)
        os.rename(name, replaced / f"{len(list(replaced.iterdir()))}-{name}", src_dir_fd=job)

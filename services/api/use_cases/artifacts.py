"""A job's files: listed in pages, and found by path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, Time, as_time, doc
from services.api.artifacts import Artifact
from services.api.params import Params, wrong_parameter
from services.api.platform import spec_of
from services.api.services import ApiServices
from services.core.domain.job import Job
from services.core.domain.learner import learner_names


class ArtifactsParams(Params):
    """Which files to list."""

    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Only files of this attempt.")
    prefix: str = Field(
        default="", description="Only files whose path begins so; it begins with attempts/ and ends with /."
    )
    after: str | None = Field(default=None, description="`next` of the previous page.")
    limit: int = Field(default=1000, ge=1, le=1000, description="Most files in the answer.")


class JobArtifact(Answer):
    """A file of a job."""

    path: Annotated[str, doc("Path within the job, e.g. attempts/1/results/worker-0/model.npz, or code.zip.")]
    size: Annotated[int, doc("Bytes.")]
    modified: Annotated[Time, doc("When it was stored.")]
    etag: Annotated[str, doc("Changes with the content.")]
    learner: Annotated[str, doc("Name of the learner that left it, e.g. worker-0; empty if unknown, and of code.zip.")]


class ListArtifactsReply(Answer):
    """A page of files, by path."""

    artifacts: Annotated[list[JobArtifact], doc("Files of this page.")]
    next: Annotated[str | None, doc("Send it as `after` to get the next page; null on the last page.")]


@dataclass(frozen=True, slots=True)
class Download:
    """A file and the way to its bytes."""

    artifact: JobArtifact
    read: Callable[[int, int], AsyncIterator[bytes]]
    """(start, end) -> the bytes [start, end) in chunks."""


async def list_artifacts(
    services: ApiServices, principal: Principal, job_id: str, params: ArtifactsParams
) -> ListArtifactsReply:
    """A page of files. Raises NotFound, InvalidRequest for a wrong prefix."""
    job = await services.jobs.get(principal, job_id)
    prefix = params.prefix
    if params.attempt is not None and not prefix:
        prefix = f"attempts/{params.attempt}/"
    if prefix and not (prefix.startswith("attempts/") and prefix.endswith("/")):
        raise wrong_parameter("prefix", "a prefix begins with attempts/ and ends with /")
    artifacts, following = await services.artifacts.list(job, prefix=prefix, after=params.after, limit=params.limit)
    names = _learner_names(job)
    return ListArtifactsReply(artifacts=[_artifact(artifact, names) for artifact in artifacts], next=following)


async def get_artifact(services: ApiServices, principal: Principal, job_id: str, path: str) -> Download:
    """The file of this path. Raises NotFound."""
    job = await services.jobs.get(principal, job_id)
    artifact = await services.artifacts.find(job, path)
    shown = _artifact(artifact, _learner_names(job))
    return Download(shown, lambda start, end: services.artifacts.read(artifact, start=start, end=end))


def _artifact(artifact: Artifact, learner_names: Sequence[str]) -> JobArtifact:
    meta = artifact.meta
    return JobArtifact(
        path=artifact.path,
        size=meta.size,
        modified=as_time(meta.modified),
        etag=meta.etag,
        learner=_learner_of(artifact.path, learner_names),
    )


def _learner_names(job: Job) -> Sequence[str]:
    """In the order of their ranks; empty if this version cannot read the spec."""
    spec = spec_of(job)
    return learner_names(spec) if spec is not None else ()


def _learner_of(path: str, names: Sequence[str]) -> str:
    """The learner that left a file. Folders of logs are numbered from 1 (FfDL's layout), others have its name."""
    parts = path.split("/", 4)
    if len(parts) < 5:
        return ""
    folder = parts[3]
    if parts[2] != "logs":
        return folder
    number = folder.removeprefix("learner-")
    place = int(number) - 1 if number.isdecimal() and len(number) < 10 else -1
    return names[place] if 0 <= place < len(names) else ""

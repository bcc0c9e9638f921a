"""wait: until jobs are at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.groups import many_jobs, named_jobs

if TYPE_CHECKING:
    from weft._cli.answers import Answers
    from weft._job import Job

ANSWERS: Final[Answers] = {
    "wait": {"jobs": ("list of Job", "The jobs as they are now; those that were deleted are errors on stderr.")},
}


@command("wait")
@many_jobs
@click.option(
    "--timeout", "-t", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then, with exit code 101."
)
def wait_command(call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None, timeout: float | None) -> None:
    """Wait until jobs are at rest; the exit code says how they ended.

    0 all COMPLETED, 100 one FAILED, 103 one KILLED or HALTED, 101 not finished in time, 4 one deleted meanwhile.
    """
    import time

    from weft._cli.ends import end_message, worst
    from weft._cli.failure import weft_error
    from weft._cli.find import job_id
    from weft._cli.output import emit
    from weft._errors import NotFound

    deadline = None if timeout is None else time.monotonic() + timeout
    ids = [job_id(call.client, job) for job in named_jobs(call, jobs, group, tag)]
    codes: list[int] = []
    documents: list[dict[str, object]] = []
    for id_ in ids:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            job, code = _waited(call, id_, left)
        except NotFound as deleted:  # the others are waited for all the same
            if len(ids) == 1:
                raise
            codes.append(weft_error(deleted, form=call.output))
        else:
            codes.append(code)
            documents.append(job.document)

    def people(_wide: bool) -> str:
        return "\n".join(
            end_message(
                str(d.get("name")), str(d.get("status")), str(d.get("reason") or ""), str(d.get("message") or "")
            )
            for d in documents
        )

    emit(call, {"jobs": documents}, people=people, names=(str(d["id"]) for d in documents))
    raise Stop(worst(codes))


def _waited(call: Call, id_: str, timeout: float | None) -> tuple[Job, int]:
    """The job once it is at rest or the time is over, and the exit code for it. NotFound if it is deleted meanwhile."""
    from weft._cli.ends import NOT_FINISHED, exit_code
    from weft._cli.notices import note
    from weft._errors import NotFinished

    try:
        job = call.client.jobs.wait(id_, timeout=timeout)
    except NotFinished:
        job = call.client.jobs.get(id_)
        note(f"{job.name} is still {job.status}; it keeps running (`weft wait {id_}`)")
        return job, NOT_FINISHED
    return job, exit_code(job.status)

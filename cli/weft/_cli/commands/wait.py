"""wait: until jobs are at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.groups import many_jobs, named_jobs

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "wait": {"jobs": ("list of Job", "The jobs as they are now.")},
}


@command("wait")
@many_jobs
@click.option(
    "--timeout", "-t", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then, with exit code 101."
)
def wait_command(call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None, timeout: float | None) -> None:
    """Wait until jobs are at rest; the exit code says how they ended.

    0 all COMPLETED, 100 one FAILED, 103 one KILLED or HALTED, 101 not finished in time.
    """
    import time

    from weft._cli.ends import NOT_FINISHED, end_message, exit_code, worst
    from weft._cli.find import job_id
    from weft._cli.notices import note
    from weft._cli.output import emit
    from weft._errors import NotFinished

    deadline = None if timeout is None else time.monotonic() + timeout
    ids = [job_id(call.client, job) for job in named_jobs(call, jobs, group, tag)]
    codes: list[int] = []
    documents: list[dict[str, object]] = []
    for id_ in ids:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            job = call.client.jobs.wait(id_, timeout=left)
            codes.append(exit_code(job.status))
        except NotFinished:
            job = call.client.jobs.get(id_)
            codes.append(NOT_FINISHED)
            note(f"{job.name} is still {job.status}; it keeps running (`weft wait {id_}`)")
        documents.append(job.document)

    def people(_wide: bool) -> str:
        return "\n".join(
            end_message(
                str(d.get("name")), str(d.get("status")), str(d.get("reason") or ""), str(d.get("message") or "")
            )
            for d in documents
        )

    emit(call, {"jobs": documents}, people=people, names=ids)
    raise Stop(worst(codes))

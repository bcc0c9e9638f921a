"""watch: the live view of a job, taken up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.completion import complete_jobs, complete_metric

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "watch": "Job",
}


@command("watch")
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--metric", metavar="NAME", shell_complete=complete_metric, help="The curve to draw; by default the loss."
)
@click.option("--tail", "-n", type=click.IntRange(min=0), default=20, show_default=True, help="Begin with N lines.")
def watch_command(call: Call, job: str, metric: str | None, tail: int) -> None:
    """Watch a job until it is at rest: status, progress, curve, output.

    What `weft train` shows on a terminal. Ctrl-C ends the view and not the job; the exit code is the job's end.
    """
    from weft._cli.find import job_id
    from weft._cli.output import emit
    from weft._cli.watch import watch

    watched = call.client.jobs.get(job_id(call.client, job))
    code = watch(call, watched, metric=metric, tail=tail)
    if not call.for_people:
        emit(call, watched.refresh().document, people=lambda _wide: "", names=[watched.id])
    raise Stop(code)

"""What follows the submit of a single job: its next commands, or the live view, whose end is the exit code.

Also what follows a submit whose answer was lost: how it is repeated without a second job.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from weft._cli.call import Call, Stop
from weft._cli.completion import complete_metric

if TYPE_CHECKING:
    from weft._job import Job

FOLLOW = click.option(
    "--follow/--no-follow", default=None, help="Watch until it is at rest; on a terminal that is the default."
)
METRIC = click.option(
    "--metric",
    metavar="NAME",
    shell_complete=complete_metric,
    help="The curve to draw while following; by default the loss.",
)

IDEMPOTENCY_KEY = click.option(
    "--idempotency-key", metavar="KEY", help="The same key never makes a second job; made by default."
)


@contextmanager
def noting_how_to_repeat(key: str, *, job: str = "") -> Generator[None]:
    """If the platform may have accepted the job although the request failed: says with which key it is repeated.

    ``job``: an id that the repeated command must give in place of what this one gave, because that may mean another
    job by then.
    """
    from weft._cli.notices import note
    from weft._errors import Unavailable, WeftError
    from weft._wire import perhaps_done

    try:
        yield
    except (WeftError, KeyboardInterrupt) as failed:
        # Unavailable: also if the last of several tries found no platform. An earlier one may have reached it.
        if isinstance(failed, KeyboardInterrupt | Unavailable) or perhaps_done(failed):
            given = f"the id {job} and " if job else ""
            note(
                f"the job may have been submitted. The same command with {given}--idempotency-key {key} submits it if "
                "it was not, and shows it if it was"
            )
        raise


def show_or_follow(call: Call, job: Job, *, follow: bool | None, metric: str | None) -> None:
    """Prints the submitted job and its next commands, or follows it. ``follow``: None follows on a terminal only.

    Raises Stop with the exit code of the job's end if it was followed.
    """
    from weft._cli.output import emit

    if follow is None:
        follow = call.for_people and sys.stdout.isatty()
    if not follow:
        emit(call, job.document, people=lambda _wide: _next_commands(job), names=[job.id])
        return
    from weft._cli.watch import watch

    if call.for_people:
        print(f"submitted {job.id}", flush=True)
    code = watch(call, job, metric=metric)
    if not call.for_people:
        emit(call, job.refresh().document, people=lambda _wide: "", names=[job.id])
    raise Stop(code)


def _next_commands(job: Job) -> str:
    from weft._cli.output import next_commands

    commands = (
        (f"weft logs -f {job.id}", "what it prints"),
        (f"weft show {job.id}", "how it stands"),
        (f"weft kill {job.id}", "end it"),
    )
    return f"submitted {job.id}\n{next_commands(commands)}"

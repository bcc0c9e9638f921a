"""halt, resume, kill, delete: the state that a user wants.

Each takes several jobs; one that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.confirm import YES, confirm
from weft._cli.groups import many_jobs, named_jobs
from weft._cli.text import count

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Fields, Types
    from weft._errors import WeftError

_CHANGED: Final[Fields] = {
    "jobs": ("list of Job", "The jobs that were changed, as they are now; others are errors on stderr."),
}
ANSWERS: Final[Answers] = {
    "halt": _CHANGED,
    "resume": _CHANGED,
    "kill": _CHANGED,
    "delete": {"jobs": ("list of DeletedJob", "The jobs that were deleted; others are errors on stderr.")},
}
TYPES: Final[Types] = {
    "DeletedJob": {
        "id": ("text", "Id of the job."),
        "deleted": ("flag", "Always true."),
    },
}


@command("halt")
@many_jobs
def halt_command(call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None) -> None:
    """Let jobs checkpoint and stop; they can be resumed."""
    named = _look_up(call, named_jobs(call, jobs, group, tag))
    _apply(
        call,
        named,
        lambda id_: call.client.jobs.halt(id_).document,
        lambda job: f"will halt; then `weft resume {job['id']}` continues it",
    )


@command("resume")
@many_jobs
def resume_command(call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None) -> None:
    """Queue halted jobs again, from their checkpoints."""
    named = _look_up(call, named_jobs(call, jobs, group, tag))
    _apply(call, named, lambda id_: call.client.jobs.resume(id_).document, lambda _: "queued again")


@command("kill")
@many_jobs
@YES
def kill_command(call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None, yes: bool) -> None:
    """End jobs at once; nothing more is stored.

    Asks first if there are several.
    """
    from weft._errors import IllegalTransition

    named = _look_up(call, named_jobs(call, jobs, group, tag))
    if len(named) > 1:
        known = _known(named)
        what = f"kill {count(known, 'job')}, and store nothing more of {'it' if known == 1 else 'them'}"
        confirm(what, _described(call, named), yes=yes)

    def kill(id_: str) -> dict[str, object]:
        try:
            return call.client.jobs.kill(id_).document
        except IllegalTransition:  # it has ended, which is all that a kill is for
            return call.client.jobs.document(id_)

    def outcome(job: Mapping[str, object]) -> str:
        if job["status"] == "KILLED":
            return "killed"
        return f"has ended already ({job['status']})" if job["status"] in {"COMPLETED", "FAILED"} else "will end"

    _apply(call, named, kill, outcome)


@command("delete")
@many_jobs
@click.option("--kill", is_flag=True, help="End it first if it still runs.")
@YES
def delete_command(
    call: Call, jobs: tuple[str, ...], group: str | None, tag: str | None, kill: bool, yes: bool
) -> None:
    """Remove jobs that have ended, with their results.

    A deletion cannot be undone. The data of the jobs is erased after the operator's retention time. Asks first if
    there are several, and with --kill.
    """
    from weft._errors import Conflict

    named = _look_up(call, named_jobs(call, jobs, group, tag))
    if len(named) > 1 and not kill:
        named = _without_running(call, named)
    if kill or (_known(named) and len(named) > 1):
        known = _known(named)
        jobs_in_words = "a job" if len(named) == 1 else count(known, "job")
        what = f"{'kill and ' if kill else ''}delete {jobs_in_words}, with {'its' if known == 1 else 'their'} results"
        confirm(what, _described(call, named), yes=yes)

    def delete(id_: str) -> dict[str, object]:
        try:
            call.client.jobs.delete(id_, kill=kill)
        except Conflict as refused:
            raise refused if kill else Conflict(f"{refused.message}: `weft delete --kill {id_}`") from None
        return {"id": id_, "deleted": True}

    _apply(call, named, delete, lambda _: "deleted")


def _look_up(call: Call, jobs: tuple[str, ...]) -> list[tuple[str, str | WeftError]]:
    """Each job as it was named, with its id or the error of looking for it."""
    from weft._cli.find import job_id
    from weft._errors import WeftError

    looked_up: list[tuple[str, str | WeftError]] = []
    for named in jobs:
        try:
            looked_up.append((named, job_id(call.client, named)))
        except WeftError as failed:
            looked_up.append((named, failed))
    return looked_up


def _without_running(
    call: Call, named_jobs: Sequence[tuple[str, str | WeftError]]
) -> list[tuple[str, str | WeftError]]:
    """The jobs, those that still run as errors: they are not deleted, and must not be counted in the question."""
    from weft._errors import Conflict, WeftError

    checked: list[tuple[str, str | WeftError]] = []
    for named, id_ in named_jobs:
        answer: str | WeftError = id_
        if isinstance(id_, str):
            try:
                job = call.client.jobs.document(id_)
            except WeftError as failed:
                answer = failed
            else:
                if not job.get("at_rest"):
                    still = "still runs" if job.get("status") != "QUEUED" else "still waits"
                    answer = Conflict(f"job {id_} {still}; end it first: `weft delete --kill {id_}`")
        checked.append((named, answer))
    return checked


def _described(call: Call, named_jobs: Sequence[tuple[str, str | WeftError]]) -> list[str]:
    """A line for each job: id, name, status and age, or why it is not known."""
    from weft._cli.text import ago
    from weft._errors import WeftError
    from weft._times import parse_time

    lines: list[str] = []
    for named, id_ in named_jobs:
        if isinstance(id_, str):
            try:
                job = call.client.jobs.document(id_)
            except WeftError as failed:
                lines.append(f"{named}: {failed.message}")
            else:
                age = ago(parse_time(job["created"]))
                lines.append(f"{id_}  {job.get('name', '')}  {job.get('status', '')}  submitted {age} ago")
        else:
            lines.append(f"left out: {id_.message}")
    return lines


def _known(named_jobs: Sequence[tuple[str, str | WeftError]]) -> int:
    """How many of the jobs were found."""
    return sum(isinstance(id_, str) for _, id_ in named_jobs)


def _apply(
    call: Call,
    jobs: Sequence[tuple[str, str | WeftError]],
    act: Callable[[str], dict[str, object]],
    outcome: Callable[[Mapping[str, object]], str],
) -> None:
    """Carries out ``act`` for each job that was found; shows each error. ``outcome`` puts an answer into words."""
    from weft._cli.failure import weft_error
    from weft._cli.output import emit
    from weft._cli.text import one_line
    from weft._errors import WeftError

    answers: list[dict[str, object]] = []
    lines: list[str] = []
    code = 0
    for named, id_ in jobs:
        try:
            if not isinstance(id_, str):
                raise id_
            answers.append(act(id_))
            lines.append(one_line(f"{id_}{f' ({named})' if named != id_ else ''}: {outcome(answers[-1])}"))
        except WeftError as failed:
            code = weft_error(failed, form=call.output)
    if answers or not call.for_people:
        emit(call, {"jobs": answers}, people=lambda _wide: "\n".join(lines), names=(str(a["id"]) for a in answers))
    raise Stop(code)

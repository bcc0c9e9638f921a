"""halt, resume, kill, delete: what the owner wants.

Each takes several jobs; one that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from weft._cli.call import Call, Stop, command


@command("halt")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def halt_command(call: Call, jobs: tuple[str, ...]) -> None:
    """Let jobs checkpoint and stop; they can be resumed."""
    _apply(call, jobs, lambda id_: call.client.jobs.halt(id_).document, "will halt; `weft resume` continues it")


@command("resume")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def resume_command(call: Call, jobs: tuple[str, ...]) -> None:
    """Queue halted jobs again, from their checkpoints."""
    _apply(call, jobs, lambda id_: call.client.jobs.resume(id_).document, "queued again")


@command("kill")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def kill_command(call: Call, jobs: tuple[str, ...]) -> None:
    """End jobs at once; nothing more is stored."""
    _apply(call, jobs, lambda id_: call.client.jobs.kill(id_).document, "will end")


@command("delete")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--kill", is_flag=True, help="End it first if it still runs.")
def delete_command(call: Call, jobs: tuple[str, ...], kill: bool) -> None:
    """Remove jobs that have ended."""

    def delete(id_: str) -> dict[str, object]:
        call.client.jobs.delete(id_, kill=kill)
        return {"id": id_, "deleted": True}

    _apply(call, jobs, delete, "deleted")


def _apply(call: Call, jobs: tuple[str, ...], act: Callable[[str], dict[str, object]], done: str) -> None:
    from weft._cli.failure import weft_error
    from weft._cli.find import job_id
    from weft._cli.output import emit
    from weft._cli.text import one_line
    from weft._errors import WeftError

    answers: list[dict[str, object]] = []
    lines: list[str] = []
    code = 0
    for named in jobs:
        try:
            id_ = job_id(call.client, named)
            answers.append(act(id_))
            lines.append(one_line(f"{id_}{f' ({named})' if named != id_ else ''}: {done}"))
        except WeftError as failed:
            code = weft_error(failed)
    if answers or not call.for_people:
        emit(call, {"jobs": answers}, people=lambda _wide: "\n".join(lines), names=(str(a["id"]) for a in answers))
    raise Stop(code)

"""clone, diff: a copy of a job with some fields changed, and how two jobs differ."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.after_submit import FOLLOW, IDEMPOTENCY_KEY, METRIC, noting_how_to_repeat, show_or_follow
from weft._cli.call import Call, command
from weft._cli.completion import complete_jobs, complete_setting

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "clone": "Job",
    "diff": "JobDifference",
}


@command("clone")
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_setting,
    help="Change a field, e.g. env.SEED=2.",
)
@click.option("--name", metavar="NAME", help="Name of the copy; by default the job's.")
@FOLLOW
@METRIC
@IDEMPOTENCY_KEY
def clone_command(
    call: Call,
    job: str,
    settings: tuple[str, ...],
    name: str | None,
    follow: bool | None,
    metric: str | None,
    idempotency_key: str | None,
) -> None:
    """Submit a job again, with the same code and some fields changed.

    JOB is an id, a name that only one job has, or @last. FIELD=null removes a field. Following, the exit code is the
    job's end, as with `weft train`. Ctrl-C only stops following.
    """
    from weft._cli.find import job_id
    from weft._spec_file import read_assignment

    assignments = [read_assignment(text) for text in settings]
    changes = {".".join(parts): value for parts, value in assignments}
    key = idempotency_key or os.urandom(16).hex()
    cloned = job_id(call.client, job)
    # The copy is @last, too, and by default it has the same name.
    with noting_how_to_repeat(key, job="" if cloned == job else cloned):
        made = call.client.jobs.clone(cloned, set=changes, name=name, idempotency_key=key)
    show_or_follow(call, made, follow=follow, metric=metric)


@command("diff")
@click.argument("a", shell_complete=complete_jobs)
@click.argument("b", shell_complete=complete_jobs)
def diff_command(call: Call, a: str, b: str) -> None:
    """Show how two jobs differ: spec, files of the code, environment.

    A and B are ids, names that only one job has, or @last.
    """
    from weft._cli.find import job_id
    from weft._cli.output import emit
    from weft._cli.text import one_line

    answer = call.client.jobs.diff(job_id(call.client, a), job_id(call.client, b))
    names = [one_line(field["path"]) for field in answer["spec"]]
    emit(call, answer, names=names, people=lambda _wide: _differences(answer))


def _differences(answer: dict[str, Any]) -> str:
    from weft._cli.text import one_line

    fields = (*answer["spec"], *answer["environment"])
    lines = [
        f"{one_line(field['path'])}: {one_line(field['a'] or '-')} -> {one_line(field['b'] or '-')}" for field in fields
    ]
    signs = {"added": "+", "removed": "-", "changed": "~"}
    lines += [f"{signs.get(file['change'], '?')} {one_line(file['path'])}" for file in answer["code"]["files"]]
    if not answer["code"]["compared"]:
        lines.append("code: differs; an archive is missing or too large to be compared")
    return "\n".join(lines) or "no difference"

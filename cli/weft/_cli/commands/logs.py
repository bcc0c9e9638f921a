"""logs: what the learners print, stored or as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.completion import complete_jobs
from weft._cli.when import When

if TYPE_CHECKING:
    from datetime import datetime

    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "logs": "stream of JobLine",
}


@command("logs")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends or halts; its end is the exit code.")
@click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("--since", type=When(), metavar="TIME", help="From this time on: 10m, 2h, 2026-11-21T13:20:00.")
@click.option("--until", type=When(), metavar="TIME", help="Up to this time.")
@click.option("--search", metavar="REGEX", help="Only lines that match.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this learner (0 is the first).")
@click.option("--role", metavar="ROLE", help="Only learners of this role.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream.")
@click.option("--by-time", is_flag=True, help="Merge all learners by time; not with --follow.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
def logs_command(
    call: Call,
    job: str,
    follow: bool,
    tail: int | None,
    until: datetime | None,
    by_time: bool,
    timestamps: bool,
    **which: Any,
) -> None:
    """Print or follow what the learners print.

    Lines of jobs with several learners begin with the learner. A cut connection is taken up where it stopped: no line
    is lost or comes twice. While a followed job prints nothing, stderr says what it waits for. A progress bar that a
    learner draws with carriage returns is shown live on a terminal, and stored as it was last. With -o json, one JSON
    object per line; with -o yaml, one document each.
    """
    from weft._cli.bars import bars_shown
    from weft._cli.ends import end_message, exit_code
    from weft._cli.find import job_id
    from weft._cli.lines import LineWriter
    from weft._cli.notices import following, note, reconnecting
    from weft._cli.waiting import waits_shown
    from weft._errors import InvalidRequest

    jobs = call.client.jobs
    id_ = job_id(call.client, job)
    document = jobs.document(id_)
    learners = document.get("learners", 1)
    if which["rank"] is not None and which["rank"] >= learners:
        ranks = "rank 0 only" if learners == 1 else f"ranks 0 to {learners - 1}"
        raise InvalidRequest(f"there is no rank {which['rank']}: this job has {ranks}")
    roles = (document.get("spec") or {}).get("roles") or ()  # without any: the spec cannot be read
    if which["role"] is not None and roles and which["role"] not in roles:
        raise InvalidRequest(f"there is no role '{which['role']}': this job has {', '.join(roles)}")
    writer = LineWriter(several=learners > 1, timestamps=timestamps)
    if not follow:
        printed = tail == 0
        for line in jobs.logs(id_, until=until, tail=tail, by_time=by_time, **which):
            _print(call, line, writer)
            printed = True
        if call.for_people and not printed:
            chosen = until is not None or any(value is not None for value in which.values())
            note("no line matches" if chosen else _no_output(document))
        return
    if until is not None:
        raise InvalidRequest("--follow runs until the job ends or halts; leave out --until")
    if by_time:
        raise InvalidRequest("--follow prints lines as they come; leave out --by-time")
    followed = jobs.follow_logs(id_, tail=tail, on_cut=reconnecting, **which)
    learner = None if which["rank"] is None else f"{which['role'] or 'worker'}-{which['rank']}"
    with (
        following(f"weft logs -f {id_}"),
        waits_shown(call, id_) as over,
        bars_shown(call, id_, several=learners > 1, learner=learner) as bars,
    ):
        for line in _lines(followed):
            over.set()
            if bars is not None:
                bars.write(writer.text(line))
            else:
                _print(call, line, writer)
    end = followed.end
    if end is None:  # pragma: no cover - a Follow ends with an end or an error
        raise Stop(1)
    if call.for_people:
        note(end_message(job if job != "@last" else id_, end.status, end.reason, end.message))
    raise Stop(exit_code(end.status))


def _no_output(job: dict[str, Any]) -> str:
    """Why a log without a line is empty, and what to do."""
    id_, status = job["id"], job.get("status")
    if not job.get("at_rest"):
        return f"it has printed nothing yet and is {status}; `weft logs -f {id_}` follows it"
    return f"it is {status} and has printed nothing" + (f"; `weft explain {id_}`" if status != "COMPLETED" else "")


def _lines(followed: Any) -> Iterator[Any]:
    from weft._records import LogLine

    for event in followed:
        if event.kind == "line":
            yield LogLine.of(event.data)


def _print(call: Call, line: Any, writer: Any) -> None:
    from weft._cli.output import emit_line
    from weft._cli.text import plain

    if call.for_people:
        click.echo(writer.text(line), nl=False)
        return
    emit_line(call, line.as_json(), people=plain(line.text))

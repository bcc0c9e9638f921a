"""list, show, events, explain: what there is and how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.completion import complete_group, complete_jobs, complete_metric, complete_status, complete_tag

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "list": {
        "jobs": ("list of Job", "Jobs, newest first."),
        "next": ("text or null", "Give it as --after to get the next jobs; null if there are no more."),
    },
    "show": "Job",
    "events": {"events": ("list of JobEvent", "Events, oldest first.")},
    "events -f": "stream of JobEvent",
    "explain": "JobExplanation",
}

DEFAULT_LIMIT: Final = 20
SORT_KEYS: Final = ("name", "status", "age", "took", "progress", "user")
"""What --sort takes besides names of metrics."""


@command("list")
@click.option(
    "--status",
    "-s",
    multiple=True,
    metavar="STATE",
    shell_complete=complete_status,
    help="Only jobs in this state; repeat for several.",
)
@click.option("--name", metavar="NAME", help="Only jobs of this name.")
@click.option("--tag", "-l", metavar="TAG", shell_complete=complete_tag, help="Only jobs with this tag.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_group,
    help="Only jobs of this group (`weft train --array`).",
)
@click.option("--user", metavar="USER", help="Only jobs of this user.")
@click.option(
    "--query",
    "-q",
    metavar="FILTER",
    help="Only jobs that match, e.g. 'status=FAILED and created<2d and metric.loss<0.3'.",
)
@click.option("--tenant", metavar="TENANT", help="Administrators: another tenant, or * for all.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="At most so many; default 20, with -o name all.")
@click.option("--all", "everything", is_flag=True, help="Without a limit.")
@click.option("--after", metavar="ID", help="Continue after this job: `next` of the JSON before.")
@click.option(
    "--metric",
    "-m",
    "metrics",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_metric,
    help="A column with this metric: its last value, with NAME:min or NAME:max the best. Repeat for several.",
)
@click.option("--sort", metavar="KEY", help=f"Sort by a metric, or by {', '.join(SORT_KEYS)}.")
@click.option("--reverse", is_flag=True, help="With --sort: the largest first.")
def list_command(
    call: Call,
    status: tuple[str, ...],
    name: str | None,
    tag: str | None,
    group: str | None,
    user: str | None,
    query: str | None,
    tenant: str | None,
    limit: int | None,
    everything: bool,
    after: str | None,
    metrics: tuple[str, ...],
    sort: str | None,
    reverse: bool,
) -> None:
    """List jobs, newest first.

    A list that ends before the last job says so on stderr; in JSON `next` is then the id to continue --after. --sort
    reads all jobs that match, at most 10000, before it shows the first ones.
    """
    from weft._cli.job_table import MOST_SORTED, job_table, metric_value, sorted_jobs
    from weft._cli.notices import note
    from weft._cli.output import emit

    if reverse and not sort:
        raise click.UsageError("--reverse needs --sort KEY")
    if sort and after:
        raise click.UsageError("give --sort or --after, not both: a sorted list has no place to continue at")
    if sort and sort not in SORT_KEYS and sort not in metrics:
        metrics = (*metrics, sort)

    tag = _tag(tag, group)
    wanted = [part.strip().upper() for value in status for part in value.split(",") if part.strip()]
    most = None if everything else limit or (None if call.output == "name" else DEFAULT_LIMIT)
    jobs = call.client.jobs.list(
        status=wanted or None,
        name=name,
        tag=tag,
        user=user,
        tenant=tenant,
        after=after,
        q=query,
        metrics=metrics,
        progress=call.output != "name",
        limit=MOST_SORTED if sort else None if most is None else most + 1,
    )
    documents = [job.document for job in jobs]
    read = len(documents)
    if sort:
        documents = sorted_jobs(documents, sort, reverse=reverse)
    more = most is not None and len(documents) > most
    documents = documents[:most]
    emit(
        call,
        {"jobs": documents, "next": documents[-1]["id"] if more and not sort else None},
        people=lambda wide: job_table(documents, metrics, wide),
        names=(document["id"] for document in documents),
    )
    for metric in metrics if call.for_people else ():
        if documents and all(metric_value(document, metric) is None for document in documents):
            note(f"no job of this list has reported '{metric}'; `weft metrics JOB` lists what a job has reported")
    if sort and read == MOST_SORTED:
        note(f"only the newest {MOST_SORTED} jobs were sorted; choose fewer with -q or another option")
    if more:
        note(f"these are the {'first' if sort else 'newest'} {most}; --all shows all, -n N more of them")
    elif call.for_people and not documents and (wanted or name or tag or user or query):
        note("no job matches; `weft list` without options shows all")
    elif call.for_people and not documents:
        note("no jobs yet; `weft init` writes one to start from, `weft train` submits it")


def _tag(tag: str | None, group: str | None) -> str | None:
    """The tag that --tag or --group means."""
    if not group:
        return tag
    from weft._cli.groups import tag_of

    if tag:
        raise click.UsageError("give --tag or --group, not both: a group is a tag")
    return tag_of(group)


@command("show")
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--metric",
    "-m",
    "metrics",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_metric,
    help="Show this metric; repeat it. Default: all, at most 20.",
)
def show_command(call: Call, job: str, metrics: tuple[str, ...]) -> None:
    """Show one job: state, reason, progress, metrics, use of CPU and memory.

    JOB is an id, a name that only one job has, or @last.
    """
    from weft._cli.find import job_id
    from weft._cli.output import emit

    document = call.client.jobs.document(job_id(call.client, job), progress=True, metrics=metrics or ["*"])
    fetched = _fetched(call, document)
    emit(call, document, people=lambda wide: _details(document, fetched, wide), names=[document["id"]])
    if call.for_people and not document.get("at_rest"):
        warn_of_limits(call)


def warn_of_limits(call: Call) -> None:
    """Warns where memory of learners is not limited."""
    from weft._cli.notices import warn

    enforced = call.client.cluster().get("enforced")
    if enforced is not None and "memory" not in enforced:
        warn("the platform does not enforce memory limits: a learner may use more than resources.memory")


def _fetched(call: Call, job: dict[str, Any]) -> list[dict[str, Any]]:
    """What is fetched for its learners now; empty for programs, and where nothing is."""
    from weft._errors import WeftError

    if not call.for_people or job.get("status") not in {"PENDING", "DOWNLOADING"}:
        return []
    try:
        return list(call.client.jobs.progress(job["id"]).get("fetching") or ())
    except WeftError:  # the job is shown while the metrics service is away, too
        return []


def _details(job: dict[str, Any], fetched: list[dict[str, Any]], wide: bool) -> str:
    from weft._cli.output import details
    from weft._cli.reported import metrics_text, progress_text, usage_text
    from weft._cli.startup import fetching, summary
    from weft._cli.text import ago, amounts

    resources, attempt, counters = job.get("resources") or {}, job.get("attempt") or {}, job.get("counters") or {}
    placement: dict[str, str] = attempt.get("placement") or {}
    why = ": ".join(text for text in (job.get("reason") or job.get("pending_reason"), job.get("message")) if text)
    tries = ", ".join(f"{count} {name}" for name, count in counters.items() if count)
    verdict = job.get("verdict") or {}
    ended = ", ".join(
        text
        for text in (
            verdict.get("learner") or "",
            f"exit code {verdict['exit_code']}" if verdict.get("exit_code") is not None else "",
            f"signal {verdict['signal']}" if verdict.get("signal") else "",
        )
        if text
    )
    pairs: list[tuple[str, object]] = [
        ("id", job["id"]),
        ("name", job.get("name")),
        ("about", (job.get("spec") or {}).get("description")),
        ("status", job.get("status", "") + _pending_change(job)),
        ("why", why),
        ("waits", job.get("pending_message")),
        ("queue", f"position {job['queue_position']}" if job.get("queue_position") else ""),
        ("first cause", ended),
        ("owner", f"{job.get('user')} in {job.get('tenant')}"),
        ("tags", ", ".join(job.get("tags") or ())),
        ("learners", f"{job.get('learners')}, in all {amounts(resources)}"),
        ("framework", job.get("framework")),
        ("attempt", f"{attempt.get('number')}{f' ({tries})' if tries else ''}" if attempt.get("number") else ""),
        (
            "placed",
            "\n".join(f"{learner} on {node}" for learner, node in placement.items()) if wide else _nodes(placement),
        ),
        ("start-up", summary(job.get("startup") or (), at_rest=bool(job.get("at_rest")))),
        ("fetching", fetching(fetched)),
        ("progress", progress_text(job)),
        ("metrics", metrics_text(job.get("metrics") or ())),
        ("usage", usage_text(job.get("usage") or (), ended=bool(job.get("at_rest")), by_rank=wide)),
        ("checkpoint", _checkpoint(job.get("checkpoint"), job)),
        ("created", _when(job.get("created"))),
        ("started", _when(attempt.get("started"))),
        ("finished", _when(job.get("finished"))),
        ("took", _took(job)),
    ]
    if wide:
        pairs += [
            ("generation", f"{job.get('generation')} (carried out: {job.get('observed_generation')})"),
            ("code", job.get("code_digest")),
            ("since", f"{_when(job.get('since'))} ({ago(_time(job.get('since')))})"),
        ]
    return details(pairs)


def _checkpoint(checkpoint: dict[str, Any] | None, job: dict[str, Any]) -> str:
    """When it was stored, and how much; empty without one."""
    from weft._cli.text import ago, count, size

    if checkpoint is None:
        return ""
    when = _when(checkpoint["time"]) if job.get("at_rest") else f"{ago(_time(checkpoint['time']))} ago"
    return f"{when} ({count(checkpoint['files'], 'file')}, {size(checkpoint['size'])})"


def _pending_change(job: dict[str, Any]) -> str:
    """The change of `desired` that is not carried out yet; empty if there is none."""
    pending = job.get("generation", 0) > job.get("observed_generation", 0) and job.get("desired") in {"halt", "kill"}
    return f" ({job['desired']} requested)" if pending and not job.get("at_rest") else ""


def _nodes(placement: dict[str, str]) -> str:
    nodes = sorted(set(placement.values()))
    return ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")


def _time(text: str | None) -> Any:
    from weft._times import parse_time

    return parse_time(text) if text else None


def _when(text: str | None) -> str:
    from weft._cli.text import local_time

    return local_time(_time(text)) if text else ""


def _took(job: dict[str, Any]) -> str:
    from weft._cli.job_table import took_s
    from weft._cli.text import span

    seconds = took_s(job) if job.get("finished") else None
    return "" if seconds is None else span(seconds)


@command("events")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends or halts; its end is the exit code.")
def events_command(call: Call, job: str, follow: bool) -> None:
    """Show how a job's state changed, and why."""
    from weft._cli.find import job_id
    from weft._cli.output import Column, emit, table
    from weft._cli.text import local_time

    id_ = job_id(call.client, job)
    if follow:
        _follow_events(call, id_)
        return
    events = call.client.jobs.history(id_)

    def people(wide: bool) -> str:
        columns = [
            Column("TIME"),
            Column("TO"),
            Column("TRY", right=True, spare=1),
            Column("WHY", wraps=True),
            Column("BY", wide_only=True),
            Column("FROM", wide_only=True),
        ]
        rows = [
            [
                local_time(e.time),
                e.to,
                e.attempt,
                ": ".join(t for t in (e.reason, e.message) if t),
                e.actor,
                e.before or "",
            ]
            for e in events
        ]
        return table(columns, rows, wide=wide)

    documents = [event.as_json() for event in events]
    emit(call, {"events": documents}, people=people, names=(event.to for event in events))


def _follow_events(call: Call, id_: str) -> None:
    from weft._cli.ends import exit_code
    from weft._cli.notices import following, reconnecting
    from weft._cli.output import emit_line
    from weft._cli.text import local_time, one_line
    from weft._records import HistoryEvent

    followed = call.client.jobs.follow_events(id_, on_cut=reconnecting)
    with following(f"weft events -f {id_}"):
        for event in followed:
            if event.kind == "history":
                event_read = HistoryEvent.of(event.data)
                why = ": ".join(text for text in (event_read.reason, event_read.message) if text)
                emit_line(
                    call,
                    event.data,
                    people=one_line(f"{local_time(event_read.time)}  {event_read.to:<12} {why}").rstrip(),
                )
    raise Stop(exit_code(followed.end.status if followed.end else ""))


@command("explain")
@click.argument("job", shell_complete=complete_jobs)
def explain_command(call: Call, job: str) -> None:
    """Explain why a job is in its state, and where the time of its start-up went."""
    from weft._cli.explanation import explanation, startup_text
    from weft._cli.find import job_id
    from weft._cli.output import emit, width
    from weft._cli.startup import ENDED, timeline

    answer = call.client.jobs.explain(job_id(call.client, job))

    def people(_wide: bool) -> str:
        steps = timeline(answer.get("startup") or (), at_rest=answer["status"] in ENDED)
        parts = [
            explanation(answer, answer["id"] if job == "@last" else job, width()),
            startup_text(steps, width()),
        ]
        return "\n".join(filter(None, parts))

    emit(call, answer, people=people, names=[answer["id"]])

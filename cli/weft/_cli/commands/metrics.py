"""metrics: the latest values with their course, or one curve large, or every point as it comes."""

from __future__ import annotations

import math
from typing import Any

import click

from weft._cli.call import Call, Stop, command


@command("metrics")
@click.argument("job")
@click.option(
    "--name", "-m", "names", multiple=True, metavar="NAME", help="Only this metric, and its curve large; repeat."
)
@click.option("--rank", type=click.IntRange(min=0), help="Only this learner (0 is the first).")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt; by default the newest for each step.")
@click.option(
    "--points", "max_points", type=click.IntRange(min=2), default=500, show_default=True, help="Per curve, about."
)
@click.option("--follow", "-f", is_flag=True, help="Every point as it comes; the job's end is the exit code.")
def metrics_command(
    call: Call, job: str, names: tuple[str, ...], rank: int | None, attempt: int | None, max_points: int, follow: bool
) -> None:
    """Show a job's metrics and their curves."""
    from weft._cli.find import job_id
    from weft._cli.notices import note
    from weft._cli.output import emit

    id_ = job_id(call.client, job)
    if follow:
        raise Stop(_follow(call, id_, names, rank))
    series = call.client.jobs.series(id_, name=names or None, rank=rank, attempt=attempt, max_points=max_points)
    documents = [curve.as_json() for curve in series]
    emit(
        call, {"series": documents}, names=dict.fromkeys(curve.name for curve in series),
        people=lambda wide: _people(series, wide=wide, large=bool(names)),
    )  # fmt: skip
    if call.for_people and not series and names:
        note(f"nothing reported under {' or '.join(names)}; `weft metrics {id_}` lists what there is")
    elif call.for_people and not series:
        note("nothing reported yet; a learner reports with weft.report(step=1, loss=0.5)")


def _people(series: list[Any], *, wide: bool, large: bool) -> str:
    from weft._cli.chart import chart, sparkline
    from weft._cli.curves import label
    from weft._cli.output import Column, table, width
    from weft._cli.text import number

    columns = [
        Column("METRIC", flexible=True), Column("LEARNER"), Column("STEP", right=True), Column("LATEST", right=True),
        Column("MIN", right=True), Column("MAX", right=True), Column("COURSE"),
        Column("POINTS", right=True, wide_only=True),
    ]  # fmt: skip
    rows: list[list[object]] = []
    charts: list[str] = []
    for curve in series:
        finite = [value for value in curve.values if math.isfinite(value)]
        title = label((curve.name, tuple(sorted(curve.context.items()))))
        rows.append([
            title, f"{curve.role}-{curve.rank}", "-" if curve.steps[-1] is None else curve.steps[-1],
            number(curve.values[-1]),
            number(min(finite)) if finite else "-", number(max(finite)) if finite else "-", sparkline(curve.values),
            len(curve.values),
        ])  # fmt: skip
        if large:
            values = [
                (float(place if step is None else step), curve.values[place]) for place, step in enumerate(curve.steps)
            ]
            lines = chart(values, width=min(width(), 80), title=f"{title}, {curve.role}-{curve.rank}")
            charts.append("\n".join(lines))
    return "\n\n".join([*filter(None, charts), table(columns, rows, wide=wide)])


def _follow(call: Call, id_: str, names: tuple[str, ...], rank: int | None) -> int:
    from weft._cli.curves import label
    from weft._cli.ends import exit_code
    from weft._cli.notices import following, reconnecting
    from weft._cli.output import emit_line
    from weft._cli.text import number
    from weft._records import Point

    followed = call.client.jobs.follow_metrics(id_, name=names or None, rank=rank, on_cut=reconnecting)
    with following(f"weft metrics -f {id_}"):
        for event in followed:
            if event.kind == "point":
                point = Point.of(event.data)
                key = label((point.name, tuple(sorted(point.context.items()))))
                step = "-" if point.step is None else point.step
                people = f"{point.role}-{point.rank}  step {step:<8} {key} {number(point.value)}"
                emit_line(call, event.data, people=people)
    return exit_code(followed.end.status if followed.end else "")

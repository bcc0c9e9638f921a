"""metrics: the latest values with their course, or one curve large, or every point as it comes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import FORMS, Call, Stop, command
from weft._cli.completion import complete_metric
from weft._cli.groups import many_jobs, named_jobs

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types

ANSWERS: Final[Answers] = {
    "metrics": {"series": ("list of JobSeries", "Curves, thinned to about --points points each.")},
    "metrics JOB JOB": {"jobs": ("list of JobMetrics", "The jobs, in the order of the command.")},
    "metrics -f": "stream of JobPoint",
}
TYPES: Final[Types] = {
    "JobMetrics": {
        "job": ("text", "Id of the job."),
        "name": ("text", "Name of the job."),
        "series": ("list of JobSeries", "Its curves."),
    },
}

_POINTS: Final = 500
_FILES: Final = ("csv", "parquet")
"""Forms with every point, for other programs."""
_HOW_TO_REPORT: Final = "a learner reports with weft.report(step=1, loss=0.5)"


@command("metrics", forms=(*FORMS, *_FILES))
@many_jobs
@click.option(
    "--name",
    "-m",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_metric,
    help="Only this metric, and its curve large; repeat.",
)
@click.option("--rank", type=click.IntRange(min=0), help="Only this learner (0 is the first).")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt; by default the newest for each step.")
@click.option(
    "--points",
    "max_points",
    type=click.IntRange(min=2),
    metavar="N",
    help="Per curve, about; 500, in files all.",
)
@click.option("--follow", "-f", is_flag=True, help="Every point as it comes; the job's end is the exit code.")
def metrics_command(
    call: Call,
    jobs: tuple[str, ...],
    group: str | None,
    tag: str | None,
    names: tuple[str, ...],
    rank: int | None,
    attempt: int | None,
    max_points: int | None,
    follow: bool,
) -> None:
    """Show metrics and their curves, of one job or several.

    Several jobs are compared: a line for each curve of each. -o csv prints every point on a line; -o parquet writes the
    same columns as a Parquet file to stdout, and needs pyarrow.
    """
    from weft._cli.find import job_id
    from weft._cli.notices import note
    from weft._cli.point_files import check_parquet, print_csv, write_parquet

    ids = [job_id(call.client, job) for job in named_jobs(call, jobs, group, tag)]
    if follow:
        if len(ids) > 1 or call.output in _FILES:
            raise click.UsageError(f"--follow takes one job, and neither -o {' nor -o '.join(_FILES)}")
        raise Stop(_follow(call, ids[0], names, rank))
    if call.output == "parquet":
        check_parquet()
    points = max_points or (None if call.output in _FILES else _POINTS)
    curves = {
        id_: call.client.jobs.series(id_, name=names or None, rank=rank, attempt=attempt, max_points=points)
        for id_ in dict.fromkeys(ids)
    }
    if call.output == "csv":
        print_csv(curves)
    elif call.output == "parquet":
        write_parquet(curves)
    elif len(curves) == 1:
        _print_one(call, curves[ids[0]], large=bool(names))
    else:
        _print_several(call, curves, large=bool(names))
    if call.for_people and not any(curves.values()) and names:
        note(f"nothing reported under {' or '.join(names)}; `weft metrics {' '.join(ids)}` lists what there is")
    elif call.for_people and not any(curves.values()):
        ended = all(call.client.jobs.document(id_).get("at_rest") for id_ in ids)
        note(f"nothing {'was ' if ended else ''}reported{'' if ended else ' yet'}; {_HOW_TO_REPORT}")


def _print_one(call: Call, series: list[Any], *, large: bool) -> None:
    from weft._cli.output import emit

    emit(
        call,
        {"series": [curve.as_json() for curve in series]},
        names=dict.fromkeys(curve.name for curve in series),
        people=lambda wide: _people([("", curve) for curve in series], wide=wide, large=large),
    )


def _print_several(call: Call, curves: dict[str, list[Any]], *, large: bool) -> None:
    from weft._cli.output import emit

    names = {id_: call.client.jobs.get(id_).name for id_ in curves}
    documents = [
        {"job": id_, "name": names[id_], "series": [curve.as_json() for curve in series]}
        for id_, series in curves.items()
    ]
    rows = [(names[id_], curve) for id_, series in curves.items() for curve in series]
    rows.sort(key=lambda row: row[1].name)  # stable: the curves of one metric are beside one another
    emit(call, {"jobs": documents}, names=curves, people=lambda wide: _people(rows, wide=wide, large=large))


def _people(series: list[tuple[str, Any]], *, wide: bool, large: bool) -> str:
    """The curves as a table; ``series``: the name of the job, where there are several, and the curve."""
    from weft._cli.chart import chart, sparkline
    from weft._cli.curves import label
    from weft._cli.output import Column, table, width
    from weft._cli.text import number

    several = any(job for job, _ in series)
    columns = [
        *([Column("JOB", flexible=True)] if several else []),
        Column("METRIC", flexible=True),
        Column("LEARNER"),
        Column("STEP", right=True, spare=1),
        Column("LATEST", right=True),
        Column("MIN", right=True, spare=2),
        Column("MAX", right=True, spare=3),
        Column("COURSE", spare=4),
        Column("POINTS", right=True, wide_only=True),
    ]
    rows: list[list[object]] = []
    charts: list[str] = []
    for job, curve in series:
        finite = [value for value in curve.values if math.isfinite(value)]
        title = label((curve.name, tuple(sorted(curve.context.items()))))
        rows.append(
            [
                *([job] if several else []),
                title,
                f"{curve.role}-{curve.rank}",
                "-" if curve.steps[-1] is None else curve.steps[-1],
                number(curve.values[-1]),
                number(min(finite)) if finite else "-",
                number(max(finite)) if finite else "-",
                sparkline(curve.values),
                len(curve.values),
            ]
        )
        if large:
            axis, unit = _axis(curve)
            lines = chart(
                list(zip(axis, curve.values, strict=True)),
                width=min(width(), 80),
                title=f"{f'{job}: ' if job else ''}{title}, {curve.role}-{curve.rank}{unit}",
            )
            charts.append("\n".join(lines))
    return "\n\n".join([*filter(None, charts), table(columns, rows, wide=wide)])


def _axis(curve: Any) -> tuple[list[float], str]:
    """Where the points are drawn, and the unit for the title: steps, or seconds if some have none.

    The place of a point would say nothing: curves are thinned.
    """
    if None not in curve.steps:
        return [float(step) for step in curve.steps], ""
    return [(time - curve.times[0]).total_seconds() for time in curve.times], ", by seconds"


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

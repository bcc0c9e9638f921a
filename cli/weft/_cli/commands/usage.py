"""usage: GPU-hours and CPU-hours that jobs held, by tenant and user."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import FORMS, Call, command
from weft._cli.when import When

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {"usage": "GetUsageReply"}


@command("usage", forms=(*FORMS, "csv"))
@click.option("--since", type=When(), metavar="TIME", help="Beginning: 30d (the default), 12h, 2026-11-01.")
@click.option("--until", type=When(), metavar="TIME", help="End, which does not belong to it; by default now.")
@click.option("--tenant", metavar="TENANT", help="Administrators: one tenant; by default all.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, as -o csv does: for spreadsheets and programs.")
def usage_command(call: Call, since: datetime | None, until: datetime | None, tenant: str | None, as_csv: bool) -> None:
    """Show GPU-hours and CPU-hours by tenant and user.

    They count from the admission of a job until all of its hardware is given back, over all its attempts: held, not
    used. A job that still runs counts until now; half a GPU counts as 0.5; deleted jobs count, too. A window has at
    most 366 days.
    """
    from weft._cli.commands.cluster import everyone
    from weft._cli.notices import note, warn
    from weft._cli.output import emit
    from weft._cli.text import plain

    tenant = tenant or everyone(call)
    if as_csv or call.output == "csv":
        if call.output not in {"table", "csv"}:
            raise click.UsageError(f"--csv and -o {call.output} are two forms; leave out one")
        text = call.client.usage_csv(since=since, until=until, tenant=tenant)
        print(plain(text) if sys.stdout.isatty() else text, end="")  # click.echo would remove what looks like a colour
        return
    answer = call.client.usage(since=since, until=until, tenant=tenant)
    users = answer["users"]
    emit(
        call,
        answer,
        people=lambda wide: _people(answer, wide=wide),
        names=(f"{entry['tenant']}/{entry['user']}" for entry in users),
    )
    if not call.for_people:
        return
    if not users:
        note("no job held hardware in this time; `weft usage --since 90d` looks further back")
    if answer["unreadable"]:
        warn(f"jobs that cannot be read are not counted: {answer['unreadable']}; `weft status` says more")


def _people(answer: Mapping[str, Any], *, wide: bool) -> str:
    from weft._cli.output import Column, table
    from weft._cli.text import local_time
    from weft._times import parse_time

    users: Sequence[Mapping[str, Any]] = answer["users"]
    since, until = (local_time(parse_time(answer[name])) for name in ("since", "until"))
    columns = [
        Column("TENANT", flexible=True),
        Column("USER", flexible=True),
        Column("JOBS", right=True, spare=2),
        Column("GPU-HOURS", right=True),
        Column("CPU-HOURS", right=True, spare=1),
    ]
    rows = [_row(entry["tenant"], entry["user"], [entry]) for entry in users]
    rows += [_row("total", "", users)] if len(users) > 1 else []
    return f"{since} to {until}" + (f"\n\n{table(columns, rows, wide=wide)}" if rows else "")


def _row(tenant: str, user: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    jobs, gpu_hours, cpu_hours = (sum(entry[name] for entry in entries) for name in ("jobs", "gpu_hours", "cpu_hours"))
    return [tenant, user, f"{jobs:,}", f"{gpu_hours:,.2f}", f"{cpu_hours:,.2f}"]

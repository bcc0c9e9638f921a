"""The output of every benchmark: one compact table, and below it the machine that ran it.

A single timing proves little on a busy machine, so each row shows the spread, with the promised value beside it.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_HEAD = ("what", "n", "min", "p50", "p99", "max", "unit", "promised")
_HALF_OF_5_PERCENT = 0.025
_NORMAL_95 = statistics.NormalDist().inv_cdf(1 - _HALF_OF_5_PERCENT)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity."""

    what: str
    values: Sequence[float]
    unit: str = "ms"
    promised: str = ""


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; of fewer than a hundred values it lies close below the largest."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """An interval that holds the true median with a confidence of at least 95 %, whatever the distribution.

    Its ends are values, of ranks that the binomial distribution gives. None for fewer than six values.
    """
    ordered, count = sorted(values), len(values)
    rank, below = 0, 0.0
    while (below := below + math.comb(count, rank) / 2**count) <= _HALF_OF_5_PERCENT:
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the true mean with a confidence of about 95 %. For some dozens of values or more."""
    half = _NORMAL_95 * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def machine() -> str:
    """Describes the machine: cores, memory, kernel, Python, time and load."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f}"
    )


def show(title: str, rows: Sequence[Row], *, notes: Sequence[str] = ()) -> None:
    """Prints the table to stdout. Rows without values are left out."""
    table = [_HEAD, *(_cells(row) for row in rows if row.values)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEAD))]
    print(f"\n{title}")
    for line in table:
        aligned = (
            cell.rjust(width) if 0 < column < 6 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  " + "  ".join(aligned).rstrip())
    for note in notes:
        print(f"  {note}")
    print(f"  {machine()}", flush=True)


def _cells(row: Row) -> tuple[str, ...]:
    shown = (min(row.values), statistics.median(row.values), p99(row.values), max(row.values))
    return (row.what, str(len(row.values)), *map(_number, shown), row.unit, row.promised)


def _number(value: float) -> str:
    """Formats about three digits: more would suggest an accuracy that timings do not have."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def processes_naming(folder: Path) -> list[int]:
    """Pids of living processes whose command line or environment names the folder, except this one."""
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:  # the process ended meanwhile, or is another user's
            continue
        if os.fsencode(folder) in text:
            pids.append(int(entry.name))
    return pids


def wakeups(pid: int) -> int:
    """How often the process's threads have gone to sleep, and so woken up: hardly depends on other load.

    Of threads that live. Raises FileNotFoundError if the process has ended.
    """
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        total += int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total

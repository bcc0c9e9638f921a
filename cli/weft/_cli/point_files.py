"""Every point of curves for other programs: CSV and Parquet, with the same columns."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from weft._records import Series, value_json
from weft._times import time_text

COLUMNS: Final = ("job", "metric", "context", "role", "rank", "attempt", "step", "time", "value")
"""``context``: the labels as JSON, empty without any. ``step``: empty where none was given."""


def print_csv(curves: Mapping[str, Sequence[Series]]) -> None:
    """Prints a line for each point. ``curves``: by the id of the job."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(COLUMNS)
    for *names, step, time, value in _rows(curves):
        lines.writerow([*names, "" if step is None else step, time_text(time), value_json(value)])


def check_parquet() -> None:
    """Raises UsageError without pyarrow, or if stdout is a terminal."""
    if sys.stdout.isatty():
        raise click.UsageError("-o parquet writes a binary file: redirect it, e.g. `-o parquet > points.parquet`")
    try:
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]  # noqa: F401 - an extra
    except ImportError:
        message = "-o parquet needs pyarrow: `pip install pyarrow`, or use -o csv, which has the same columns"
        raise click.UsageError(message) from None


def write_parquet(curves: Mapping[str, Sequence[Series]]) -> None:
    """Writes one Parquet file with a row for each point to stdout."""
    import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
    import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]

    text, number = pa.string(), pa.int64()
    kinds = (text, text, text, text, number, number, number, pa.timestamp("ms", tz="UTC"), pa.float64())
    columns = list(zip(*_rows(curves), strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, names=list(COLUMNS)), sink)
    sys.stdout.flush()
    sys.stdout.buffer.write(sink.getvalue().to_pybytes())


def _rows(curves: Mapping[str, Sequence[Series]]) -> Iterator[tuple[Any, ...]]:
    for id_, series in curves.items():
        for curve in series:
            context = json.dumps(dict(curve.context), sort_keys=True) if curve.context else ""
            for step, value, time, attempt in zip(curve.steps, curve.values, curve.times, curve.attempts, strict=True):
                yield id_, curve.name, context, curve.role, curve.rank, attempt, step, time, value

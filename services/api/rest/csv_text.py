"""CSV for spreadsheets and programs: RFC 4180 with LF, and no cell that a spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

from services.api.answers import printable

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets know both
"""What the formulas of spreadsheets begin with (OWASP, "CSV Injection"); spaces before it do not protect."""


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[str | float]]) -> bytes:
    """The rows below a line of column names, in UTF-8.

    A text that a spreadsheet would compute begins with an apostrophe, which spreadsheets take for "this is text".
    """
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows([_inert(cell) for cell in row] for row in rows)
    return out.getvalue().encode()


def _inert(cell: str | float) -> str | float:
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text

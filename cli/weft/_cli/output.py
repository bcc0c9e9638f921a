"""Prints one answer in the requested form. With json, yaml and name, stdout carries that and nothing else.

Tables fit the terminal: columns that may shrink end in an ellipsis, some are left out before that, and the rest is
cut only where even that does not suffice; tables that were requested wide are as wide as they need to be. Where
stdout is no terminal they are as wide as they need to be (unless COLUMNS says otherwise), so that grep sees everything.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from weft._cli.call import Call
from weft._cli.text import UNSAFE, one_line, plain, wrapped

_ENDLESS: Final = 10_000
_UNKNOWN: Final = 80
"""Columns of a terminal that does not say how many it has."""
STATUS_STYLES: Final = {
    "COMPLETED": "green",
    "FAILED": "red",
    "KILLED": "magenta",
    "HALTED": "yellow",
    "HALTING": "yellow",
    "PROCESSING": "cyan",
    "STORING": "cyan",
    "DOWNLOADING": "blue",
    "PENDING": "blue",
    "QUEUED": "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    flexible: bool = False
    """May be cut with an ellipsis where the terminal is narrow."""
    wraps: bool = False
    """Continues on further lines where the terminal is narrow. Nothing of it is cut."""
    right: bool = False
    wide_only: bool = False
    spare: int = 0
    """Left out on a narrow terminal, the highest number first, so that flexible columns can be read. 0: never."""


Rows = Sequence[Sequence[object]]


def width() -> int:
    """Columns that stdout has."""
    if os.environ.get("COLUMNS", "").isdigit():
        return max(20, int(os.environ["COLUMNS"]))
    if not sys.stdout.isatty():
        return _ENDLESS
    try:  # not shutil, which loads libraries of archives
        return os.get_terminal_size(sys.stdout.fileno()).columns or _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def colored() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def table(columns: Sequence[Column], rows: Rows, *, wide: bool = False, columns_wide: int | None = None) -> str:
    """The table as text, without a newline at its end; empty without rows. Cells that name a status are coloured."""
    if not rows:
        return ""
    from weft._cli.columns import Layout, fit_widths, join, readable_places, row_lines

    space = columns_wide or (_ENDLESS if wide else width())
    chosen = [place for place, column in enumerate(columns) if wide or not column.wide_only]
    layouts = [Layout(column.flexible, column.wraps, column.right, column.spare) for column in columns]
    layouts = [layouts[place] for place in chosen]
    head = [columns[place].title for place in chosen]
    cells = [[one_line(row[place]) for place in chosen] for row in rows]
    if any(layout.spare for layout in layouts):
        shown = readable_places(layouts, [head, *cells], space)
        layouts, head = [layouts[place] for place in shown], [head[place] for place in shown]
        cells = [[row[place] for place in shown] for row in cells]
    widths = fit_widths(layouts, [head, *cells], space)
    lines = [join(line) for line in row_lines(layouts, head, widths)]
    lines = [click.style(line, bold=True) for line in lines] if colored() else lines
    lines += [join(map(_coloured, line)) for row in cells for line in row_lines(layouts, row, widths)]
    return "\n".join(lines)


def _coloured(cell: str) -> str:
    """A padded cell; one that names a status has its colour on a terminal."""
    style = STATUS_STYLES.get(cell.strip())
    if style is None or not colored():
        return cell
    return click.style(cell, dim=True) if style == "dim" else click.style(cell, fg=style)


def emit(
    call: Call,
    document: Any,
    *,
    people: Callable[[bool], str],
    names: Iterable[str] = (),
) -> None:
    """Print an answer.

    document: what json and yaml print.
    people: is called with whether the text may be wide; returns it. An empty text is not printed.
    names: what `-o name` prints, one per line.
    """
    match call.output:
        case "json":
            print(json_text(document, indent=2))
        case "yaml":
            print(yaml_text(document), end="")
        case "name":
            for name in names:
                print(plain(name))
        case _:
            if text := people(call.output == "wide"):
                click.echo(text)  # without colours where this is no terminal


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Indented JSON, safe for terminals: characters that `plain` would replace are escaped as in JSON.

    So are all that are not ASCII where stdout is not UTF-8.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=not _takes_all(), default=str)
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _takes_all() -> bool:
    """Whether stdout can encode all characters."""
    encoding: str = getattr(sys.stdout, "encoding", None) or ""  # stdout is None where it is closed
    return encoding.lower() in {"utf-8", "utf8"}


def yaml_text(document: Any) -> str:
    """Block-style YAML that ends with a newline, safe for terminals: unsafe characters are escaped as in YAML."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=_takes_all(), default_flow_style=False)
    return text if text == plain(text) else yaml.safe_dump(document, sort_keys=False, default_flow_style=False)


def emit_line(call: Call, document: Any, *, people: str) -> None:
    """Prints one of a stream of answers. For programs: one JSON document per line, or one YAML document each."""
    if call.output == "json":
        print(json_text(document), flush=True)
    elif call.output == "yaml":
        print(f"---\n{yaml_text(document)}", end="", flush=True)
    else:
        click.echo(people)


def next_commands(commands: Sequence[tuple[str, str]]) -> str:
    """Lines of (command, what it does); on a terminal that is too narrow the commands alone, which can be copied."""
    widest = max(len(command) for command, _ in commands)
    lines = [f"  {command:<{widest}}  {text}" for command, text in commands]
    if max(map(len, lines)) > width():
        lines = [f"  {command}" for command, _ in commands]
    return "\n".join(lines)


def details(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values under one another; empty values are left out."""
    shown = [(name, plain(value)) for name, value in pairs if value not in {"", None}]
    widest = max((len(name) for name, _value in shown), default=0)
    indent = " " * (widest + 2)
    lines = [f"{name:<{widest}}  {value.replace(chr(10), chr(10) + indent)}" for name, value in shown]
    # A value of one word, such as a key, stays beside its name to be copied, however long it is.
    return "\n".join(
        wrapped(line, width(), indent=indent) if " " in value else line
        for line, (_name, value) in zip(lines, shown, strict=True)
    )

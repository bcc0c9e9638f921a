"""Write docs/command-output.md from what the modules of commands declare: the JSON that each command prints.

python scripts/command_output.py          writes it
python scripts/command_output.py --check  says whether the committed page is current
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.generated import write_or_check
from services.api.answers import json_schemas
from services.api.rest.app import create_routes
from weft._cli.answers import Fields, by_command, types

PAGE = Path(__file__).parents[1] / "docs" / "command-output.md"
HEAD = """# JSON of the commands

What `-o json` prints on stdout: one JSON object, and nothing else; `-o yaml` is the same as YAML. Streams (`logs`,
`-f`) are one object on each line. Times are RFC 3339 in UTC with `Z`, sizes are bytes. Linked types are those of the
API.

stderr has one JSON object on each line: `{"error": Error}`, `{"note": text}` or `{"warning": text}`. This page is made
by `python scripts/command_output.py`.
"""


def linked(kind: str, api: set[str]) -> str:
    """The type with links to its definition."""

    def link(match: re.Match[str]) -> str:
        name = match[0]
        if name in types():
            return f"[{name}](#{name.lower()})"
        return f"[{name}](api-reference.md#{name.lower()})" if name in api else name

    return re.sub(r"\b[A-Z]\w+\b", link, kind)


def rows(fields: Fields, api: set[str]) -> Iterator[str]:
    """The lines of a table of fields."""
    yield "| field | type | content |"
    yield "| --- | --- | --- |"
    for name, (kind, text) in fields.items():
        yield f"| `{name}` | {linked(kind, api)} | {text} |"
    yield ""


def page() -> str:
    """The whole page."""
    create_routes()  # defines every answer
    api = set(json_schemas("{name}"))
    lines = [HEAD, "## Commands", ""]
    for command, answer in by_command().items():
        lines += [f"### weft {command}", ""]
        lines += [f"{linked(answer, api)}.", ""] if isinstance(answer, str) else rows(answer, api)
    lines += ["## Types", ""]
    for name, fields in types().items():
        lines += [f"### {name}", "", *rows(fields, api)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))

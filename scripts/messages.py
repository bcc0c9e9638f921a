"""Write docs/messages.md: every message that Weft's errors can have, read from the source, for reading by eye.

python scripts/messages.py          writes it
python scripts/messages.py --check  says whether the committed page is current

A message is the first argument of a raised error, or the message of a wrong field. ``{name}`` stands for a value.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.generated import write_or_check
from services.core.domain.errors import TABLE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"
SOURCES = ("services", "cli/weft")
# Generated: the synchronous SDK repeats the messages of the asynchronous one.
LEFT_OUT = (
    "services/core/gen/",
    *(f"cli/weft/_{name}.py" for name in ("client", "download", "follow", "http", "job", "jobs", "keys")),
)
CODES = {kind.__name__: row.code for kind, row in TABLE.items()} | {
    "ConnectionFailed": "unavailable",
    "NotFinished": "not-finished",
    "UsageError": "usage",
    "ClickException": "error",
    "BadParameter": "usage",
    "FieldError": "wrong field",
    "FetchFailed": "reasons of learners that could not start",
}
MESSAGE_AT = {"FieldError": 1, "FetchFailed": 1}
"""Class -> position of the message among its arguments, if it is not the first."""
HEAD = """# Messages

Every message of an error, by the code of the error, as the source has it; `{name}` stands for a value. Read it before a
release: a message says what happened, why, and what to do, in the terms of CONTRIBUTING.md. It is made by `python
scripts/messages.py`.
"""


def text_of(node: ast.expr, known: Mapping[str, ast.expr], depth: int = 0) -> Iterator[str]:
    """The texts that an expression can be; nothing for what cannot be read from the source."""
    match node:
        case ast.Constant(value=str(value)):
            yield value
        case ast.JoinedStr(values=values):
            yield "".join(_part(value) for value in values)
        case ast.IfExp(body=body, orelse=orelse):
            yield from text_of(body, known, depth)
            yield from text_of(orelse, known, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = list(text_of(right, known, depth)) or ["{...}"]
            yield from (begin + end for begin in text_of(left, known, depth) for end in ends)
        case ast.Name(id=name) if name in known and depth < 3:
            yield from text_of(known[name], known, depth + 1)
        case _:
            return


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    names = re.findall(r"[A-Za-z]\w*", ast.unparse(value.value if isinstance(value, ast.FormattedValue) else value))
    return f"{{{names[-1].lower() if names else '...'}}}"


def messages(source: str) -> Iterator[tuple[str, str]]:
    """(code, message) of each error that a module can raise."""
    tree = ast.parse(source)
    module = _assigned(tree.body)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    calls: dict[ast.Call, dict[str, ast.expr]] = {}
    for scope in (tree, *functions):  # the innermost function comes last, and counts
        known = module if scope is tree else module | _assigned(list(ast.walk(scope)))
        calls |= {call: known for call in ast.walk(scope) if isinstance(call, ast.Call)}
    for call, known in calls.items():
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        at = MESSAGE_AT.get(name, 0)
        if name in CODES and len(call.args) > at:
            yield from ((CODES[name], " ".join(text.split())) for text in text_of(call.args[at], known) if text.strip())


def _assigned(nodes: list[ast.AST] | list[ast.stmt]) -> dict[str, ast.expr]:
    out: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            out[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            out[node.target.id] = node.value
    return out


def page() -> str:
    """The whole page."""
    by_code: dict[str, set[str]] = defaultdict(set)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(LEFT_OUT):
                for code, message in messages(path.read_text()):
                    by_code[code].add(message)
    parts = [
        f"## {code}\n\n" + "".join(f"* {message}\n" for message in sorted(by_code[code]))
        for code in dict.fromkeys(CODES.values())
        if by_code[code]
    ]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))

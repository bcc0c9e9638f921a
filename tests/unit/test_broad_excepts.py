"""The code catches precise errors; broad excepts are for the edges of loops and threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "services" / "core" / "gen"
BROAD = {"Exception", "BaseException"}
MOST_PER_1000_LINES = 0.3


def source_files() -> list[Path]:
    folders = (ROOT / "services", ROOT / "cli" / "weft")
    return sorted(path for folder in folders for path in folder.rglob("*.py") if GENERATED not in path.parents)


def is_broad(caught: ast.expr | None) -> bool:
    """``caught``: the errors that a handler names; None for a bare ``except:``."""
    if isinstance(caught, ast.Tuple):
        return any(is_broad(part) for part in caught.elts)
    return caught is None or ast.unparse(caught).rpartition(".")[2] in BROAD


def broad_excepts(source: str) -> Iterator[int]:
    """The lines of the handlers of Exception and BaseException, and of ``contextlib.suppress`` of them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            yield from (node.lineno for argument in node.args if is_broad(argument))


def test_all_forms_of_a_broad_except_are_counted() -> None:
    handlers = ["except:", "except Exception:", "except BaseException as e:", "except (OSError, builtins.Exception):"]
    for handler in handlers:
        assert list(broad_excepts(f"try:\n    f()\n{handler}\n    pass\n")) == [3]
    assert list(broad_excepts("with contextlib.suppress(Exception):\n    f()\n")) == [1]
    assert list(broad_excepts("try:\n    f()\nexcept (OSError, WeftError):\n    pass\n")) == []


def test_at_most_three_broad_excepts_in_ten_thousand_lines() -> None:
    lines, places = 0, list[str]()
    for path in source_files():
        source = path.read_text(encoding="utf-8")
        lines += len(source.splitlines())
        places += [f"{path.relative_to(ROOT)}:{line}" for line in broad_excepts(source)]
    assert lines > 10_000
    allowed = int(lines * MOST_PER_1000_LINES / 1000)
    assert len(places) <= allowed, f"{len(places)} broad excepts, {allowed} allowed:\n" + "\n".join(places)

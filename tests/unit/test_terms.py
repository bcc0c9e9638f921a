"""Identifiers use the field's terms (docs/adr/0011-terms-and-rooms.md): none of the old ones is bound anywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("services", "cli/weft", "tests", "bench", "scripts", "examples")
OLD_NAMES: Final = frozenset({"each", "facts", "found", "its", "it", "one", "said", "seen", "uses", "who", "whom"})
"""Not to be bound as a whole name: a variable is named for what it holds."""
OLD_WORDS: Final = frozenset(
    {
        "asked",
        "aside",
        "asides",
        "bell",
        "bells",
        "chores",
        "door",
        "doors",
        "gate",
        "instruments",
        "keeper",
        "measures",
        "meters",
        "noted",
        "obey",
        "obeyed",
        "patience",
        "patiently",
        "peers",
        "presence",
        "pulse",
        "remembered",
        "shapes",
        "tier",
        "told",
        "wish",
        "wished",
        "wishes",
    }
)
"""Not to be part of any name."""
FIELD_TERMS: Final = r"scheduling_?gates?"
"""Terms of others that contain such a word: a scheduling gate is Kubernetes' name for what keeps a pod unscheduled."""


def words(name: str) -> set[str]:
    name = re.sub(FIELD_TERMS, "", name, flags=re.IGNORECASE)
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs) and node.name:
            yield node.name, node.lineno


def old_terms(path: Path) -> Iterator[str]:
    place = path.relative_to(ROOT)
    if old := words(path.stem) & OLD_WORDS:
        yield f"{place}: {', '.join(sorted(old))}"
    for name, line in bound_names(ast.parse(path.read_text())):
        test = place.parts[0] == "tests" and name.startswith("test_")  # a sentence: prose, read by people
        if not test and (name.strip("_") in OLD_NAMES or words(name) & OLD_WORDS):
            yield f"{place}:{line}: {name}"


def sources() -> list[Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in paths if "gen" not in path.parts and "node_modules" not in path.parts)


def test_no_identifier_uses_an_old_term() -> None:
    assert [line for path in sources() for line in old_terms(path)] == []


def test_the_check_recognises_old_terms(tmp_path: Path) -> None:
    source = "def f(asked_of):\n    for one in ():\n        self.who = [x for found in one]\nclass HintMeters: ...\n"
    names = [name for name, _ in bound_names(ast.parse(source))]
    assert {"asked_of", "one", "who", "found", "HintMeters"} <= set(names)
    assert words("_KEPT_WISHES") == {"kept", "wishes"}
    assert words("HTTPGate") & OLD_WORDS == {"gate"}

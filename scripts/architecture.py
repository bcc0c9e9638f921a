"""Draws the picture in docs/architecture.md from the code: packages, layers, imports, gRPC services.

python scripts/architecture.py          writes it into the page
python scripts/architecture.py --check  says whether the committed picture is current
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import grimp

from scripts.generated import write_or_check

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- picture: made by scripts/architecture.py -->", "<!-- end of picture -->"
WIDTH: Final = 96
CONTRACT: Final = "Inside core"


def services() -> list[str]:
    """Names of the services: every package below services/ but core."""
    folders = (ROOT / "services").iterdir()
    return sorted(folder.name for folder in folders if (folder / "__init__.py").exists() and folder.name != "core")


def core_layers() -> list[list[str]]:
    """Packages of services/core, highest layer first, from the import contract in pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract["name"].startswith(CONTRACT))
    return [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]


def contents(package: str) -> str:
    """Modules and packages directly inside a package of core, in alphabetical order."""
    folder = ROOT / "services" / "core" / package
    names = {path.stem if path.suffix else path.name for path in folder.iterdir()}
    return "  ".join(sorted(name for name in names if not name.startswith(("_", ".")) and name.isidentifier()))


def wrapped(head: str, text: str) -> Iterator[str]:
    """Lines of a box: a column with ``head``, then ``text`` filled to the width."""
    line = ""
    for word in [*text.split("  "), ""]:
        if word and len(line) + len(word) + 2 <= WIDTH - 18:
            line = f"{line}  {word}" if line else word
            continue
        yield f"| {head:<13} {line:<{WIDTH - 18}} |"
        head, line = "", word


def boxes() -> Iterator[str]:
    """The services on top, below them the layers of core."""
    names = services()
    yield "  ".join("+" + "-" * (len(name) + 2) + "+" for name in names)
    yield "  ".join(f"| {name} |" for name in names)
    yield "  ".join("+" + "-" * (len(name) + 2) + "+" for name in names)
    yield "   services import core only, never one another: they meet over gRPC, the stores and etcd"
    yield "   " + "v ".center(WIDTH - 6)
    rule = "+" + "-" * (WIDTH - 2) + "+"
    yield rule
    for layer in core_layers():
        for package in layer:
            yield from wrapped(package, contents(package))
        yield rule
    yield "   services/core: a package imports only packages of the layers below it"


def import_table(graph: grimp.ImportGraph) -> Iterator[str]:
    """Which service imports which package of core: o = yes."""
    packages = [package for layer in core_layers() for package in layer]
    used: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        service = module.removeprefix("services.").partition(".")[0]
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith("services.core."):
                used[service].add(imported.split(".")[2])
    names = services()
    yield " " * 14 + "  ".join(names)
    for package in packages:
        cells = ("o" if package in used[name] else "." for name in names)
        yield (
            f"{package:<14}"
            + "  ".join(cell.center(len(name)) for cell, name in zip(cells, names, strict=True)).rstrip()
        )


def owner(module: Path) -> str:
    """``metrics`` or ``core.adapters.rpc``: the package that a file belongs to, for people."""
    parts = module.relative_to(ROOT / "services").parts
    return ".".join(parts[:3]) if parts[0] == "core" else parts[0]


def rpc_table() -> Iterator[str]:
    """Each gRPC service with its server and its clients, from the use of generated code."""
    servers: dict[str, set[str]] = defaultdict(set)
    clients: dict[str, set[str]] = defaultdict(set)
    for module in sorted((ROOT / "services").rglob("*.py")):
        if "gen" in module.parts:
            continue
        text = module.read_text()
        for name in re.findall(r"\badd_(\w+)Servicer_to_server", text):
            servers[name].add(owner(module))
        for name in re.findall(r"\b([A-Z]\w+?)(?:Async)?Stub\b", text):
            clients[name].add(owner(module))
    declared = sorted(
        name
        for proto in (ROOT / "proto").rglob("*.proto")
        for name in re.findall(r"^service (\w+)", proto.read_text(), re.MULTILINE)
    )
    yield f"{'gRPC service':<14}{'served by':<30}called by"
    for name in declared:
        callers = ", ".join(sorted(clients[name])) or "users (SDK, any gRPC client)"
        yield f"{name:<14}{', '.join(sorted(servers[name])):<30}{callers}"


def picture() -> str:
    """The whole picture, as a Markdown code block between its markers."""
    graph = grimp.build_graph("services", cache_dir=None)
    parts: Sequence[Iterator[str]] = (boxes(), import_table(graph), rpc_table())
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)
    return f"{BEGIN}\n```text\n{text}\n```\n{END}"


def page() -> str:
    """The page with the picture in its place."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + picture() + rest.split(END)[1]


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))

"""The guides name only paths, commands and make targets that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft._cli.main import ALIASES, COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md")
    if path.name != "0011-terms-and-rooms.md"  # a table of old and new names
)
PATHS_CHECKED_ELSEWHERE = {"docs/architecture.md", "docs/where-do-i-put-it.md"}  # tests/unit/test_architecture_page.py
FOLDERS = "services|tests|docs|cli|proto|scripts|bench|examples|helm|images"
WORDS = {name for section in COMMANDS.values() for name in section} | set(ALIASES)


def code(page: str) -> list[str]:
    """Returns what a page shows as code: text in backticks and indented or fenced lines."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```[\s\S]*?^```|^ {4}(?![ *\-\d]).*$", text, re.MULTILINE)
    return [*re.findall(r"`([^`\n]+)`", text), *(line for block in blocks for line in block.splitlines())]


def test_guides_and_decisions_are_checked() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/user-guide.md", "docs/adr/0006-unkillable.md"} <= set(PAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in PATHS_CHECKED_ELSEWHERE])
def test_every_repository_path_on_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", text)
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_on_a_page_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_names_a_heading(page: str) -> None:
    missing = []
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", (ROOT / page).read_text()):
        target = (ROOT / page).parent / link if link else ROOT / page
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        if anchor not in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}:
            missing.append(f"{link}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_weft_command_on_a_page_exists(page: str) -> None:
    named = {word for text in code(page) for word in re.findall(r"(?:^|[|&;] *)weft ([a-z][a-z-]*)\b", text.strip())}
    assert named - WORDS == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_on_a_page_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for text in code(page) for word in re.findall(r"(?:^|[|&;] *)make ([a-z][a-z-]*)\b", text.strip())}
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_python_module_run_on_a_page_exists(page: str) -> None:
    modules = {module for text in code(page) for module in re.findall(r"python -m ([a-z_.]+[a-z_])\b", text)}
    paths = {module: ROOT / module.replace(".", "/") for module in modules}
    assert [name for name, path in paths.items() if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/settings.md"])
def test_every_setting_on_a_page_exists(page: str, literals: set[str]) -> None:
    settings = set(re.findall(r"WEFT_[A-Z0-9_]+", (ROOT / "docs" / "settings.md").read_text()))
    former = {"WEFT_NODE_TIER"} if page == "CHANGELOG.md" else set[str]()
    named = set(re.findall(r"`(?:export )?(WEFT_[A-Z0-9_]*[A-Z0-9])\b", (ROOT / page).read_text()))
    assert named - settings - literals - former == set()


@pytest.fixture(scope="module")
def literals() -> set[str]:
    """Returns the names of environment variables that the sources contain."""
    files = [path for folder in ("services", "cli", "tests") for path in (ROOT / folder).rglob("*.py")]
    texts = [path.read_text() for path in files if path != Path(__file__)]
    return {name for text in texts for name in re.findall(r"WEFT_[A-Z0-9_]+", text)}

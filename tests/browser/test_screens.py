"""Every screen: it explains itself, everyone can use it, and it fits a phone."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from typing import Literal

from playwright.sync_api import Browser, Page

from tests.testbed.browser import PHONE, ROOT, Visit, sign_in, visit
from tests.testbed.platform import Platform

Open = Callable[..., Visit]
SCREENS = {
    "jobs": "/ui/jobs",
    "job": "/ui/jobs/{good}",
    "log": "/ui/jobs/{good}?tab=logs",
    "learners": "/ui/jobs/{good}?tab=learners",
    "events": "/ui/jobs/{good}?tab=events",
    "files": "/ui/jobs/{good}?tab=files",
    "spec": "/ui/jobs/{good}?tab=spec",
    "failed": "/ui/jobs/{failed}",
    "queue": "/ui/queue",
    "cluster": "/ui/cluster",
    "compare": "/ui/compare?jobs={seed-1},{seed-2},{seed-3}",
    "submit": "/ui/submit",
    "access": "/ui/access",
}
SHOWN: dict[str, str | re.Pattern[str]] = {
    "jobs": re.compile("^(completed|failed|killed|halted|processing)$"),  # which jobs are the newest depends on the run
    "job": "loss",
    "log": "worker-0",
    "learners": "worker-1",
    "events": "completed",
    "files": "answer.txt",
    "spec": "command:",
    "failed": "label 11 is out of range",
    "queue": "No job waits",
    "cluster": "CPU cores",
    "compare": "env.SEED",
    "submit": "Starts at once",
    "access": "Sessions of browsers",
}
MOST_SCRIPT_BYTES = 250_000


def opened(visited: Visit, screen: str, ids: dict[str, str]) -> Page:
    """The screen, once it shows its content."""
    page = visited.open(SCREENS[screen].format(**ids))
    page.get_by_text(SHOWN[screen]).locator("visible=true").first.wait_for()
    return page


def test_every_screen_is_accessible_in_light_and_dark(open_visit: Open, finished: dict[str, str]) -> None:
    visited = open_visit(color_scheme="light", reduced_motion="reduce")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    wrong = {}
    for screen in SCREENS:
        opened(visited, screen, finished)
        for scheme in schemes:
            visited.page.emulate_media(color_scheme=scheme)
            assert visited.page.evaluate("(scheme) => matchMedia(`(prefers-color-scheme: ${scheme})`).matches", scheme)
            if violations := visited.axe():
                wrong[screen, scheme] = violations
    assert wrong == {}


def test_the_sign_in_page_and_the_dialogs_are_accessible(browser: Browser, weft_up: Platform) -> None:
    with visit(browser, weft_up.url, reduced_motion="reduce") as visited:
        visited.open("/").get_by_label("API key").wait_for()
        assert visited.axe() == []
        sign_in(visited, weft_up.key)
        visited.page.keyboard.press("?")
        visited.page.get_by_role("dialog").wait_for()
        assert visited.axe() == []
        visited.page.keyboard.press("Escape")
        visited.page.get_by_role("button", name="Account and settings").click()
        visited.page.get_by_role("menu").wait_for()
        assert visited.axe() == []


def test_every_screen_fits_a_phone(open_visit: Open, finished: dict[str, str]) -> None:
    visited = open_visit(size=PHONE)
    wide = []
    for screen in SCREENS:
        opened(visited, screen, finished)
        if visited.is_wider_than_the_screen():
            wide.append(screen)
    assert wide == []


def test_the_script_that_a_browser_loads_is_small() -> None:
    files = list((ROOT / "services/dashboard/dist/assets").glob("*.js"))
    assert len(files) > 3
    first = [file for file in files if file.name in first_load()]
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in first) < MOST_SCRIPT_BYTES


def first_load() -> set[str]:
    """Names of the scripts that the page and its modules load at once."""
    folder = ROOT / "services/dashboard/dist"
    names: set[str] = set()
    left = re.findall(r"assets/([\w.-]+\.js)", (folder / "index.html").read_text())
    while left:
        name = left.pop()
        if name not in names:
            names.add(name)
            left += re.findall(r'from\s*"\./([\w.-]+\.js)"', (folder / "assets" / name).read_text())
    return names

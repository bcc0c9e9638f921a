"""Every screen: it explains itself, everyone can use it, and it fits a phone."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect

from tests.testbed.browser import PHONE, ROOT, Visit, sign_in, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S

Open = Callable[..., Visit]
expect.set_options(timeout=HANG_S * 1000)
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
    "usage": "/ui/cluster?window=7d",
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
    "usage": "Download CSV",
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
            if violations := visited.axe(only_colors=scheme == "dark"):  # nothing else depends on the scheme
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


def test_usage_is_shown_for_the_time_in_the_address_and_saved_as_csv(
    open_visit: Open, finished: dict[str, str]
) -> None:
    assert finished  # these jobs held hardware
    page = open_visit().open("/ui/cluster")
    hours = page.get_by_role("region", name="GPU-hours")
    expect(hours.get_by_role("button", name="30 days")).to_have_attribute("aria-pressed", "true")
    expect(hours.get_by_role("row", name="admin default")).to_be_visible()
    expect(hours.get_by_role("meter", name="Share of admin of default")).to_be_visible()
    hours.get_by_role("button", name="7 days").click()
    expect(page).to_have_url(re.compile(r"/ui/cluster\?window=7d$"))
    page.reload()
    expect(hours.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    with page.expect_download() as saving:
        hours.get_by_role("link", name="Download CSV").click()
    assert re.fullmatch(r"weft-usage-[\d-]{10}-[\d-]{10}\.csv", saving.value.suggested_filename)
    lines = list(csv.reader(Path(saving.value.path()).read_text().splitlines()))
    assert lines[0] == ["since", "until", "tenant", "user", "jobs", "gpu_hours", "cpu_hours"]
    mine = next(line for line in lines[1:] if line[2:4] == ["default", "admin"])
    assert int(mine[4]) >= len(finished)
    assert float(mine[6]) > 0


def test_a_user_without_jobs_sees_no_usage_of_others_and_what_to_do(browser: Browser, weft_up: Platform) -> None:
    key = weft_up.new_key(user="idle", tenant="idle")
    with visit(browser, weft_up.url) as visited:
        sign_in(visited, key)
        hours = visited.open("/ui/cluster").get_by_role("region", name="GPU-hours")
        expect(hours).to_contain_text("No job held hardware in this time. Choose a longer one, or submit a job.")
        expect(hours.get_by_role("link", name="submit a job")).to_be_visible()
        expect(hours.get_by_role("link", name="Download CSV")).to_have_count(0)
        assert visited.axe() == []


def test_usage_of_many_users_with_long_names_fits_a_phone_and_is_shown_in_part(open_visit: Open) -> None:
    users = [
        {
            "tenant": f"tenant-{n}-{'t' * 50}",
            "user": f"user-{n}-{'u' * 50}",
            "jobs": 10**6,
            "gpu_hours": 3e7 / n,
            "cpu_hours": 1e9,
        }
        for n in range(1, 31)
    ]
    window = {"since": "2026-10-27T00:00:00.000Z", "until": "2026-11-26T00:00:00.000Z"}
    visited = open_visit(size=PHONE)
    visited.page.route("**/v1/usage?*", lambda route: route.fulfill(json={**window, "users": users, "unreadable": 2}))
    page = visited.open("/ui/cluster")
    hours = page.get_by_role("region", name="GPU-hours")
    expect(hours).to_contain_text("2 jobs cannot be read and are not counted")
    expect(hours.get_by_role("row")).to_have_count(1 + 20 + 1)
    assert not visited.is_wider_than_the_screen()
    hours.get_by_role("button", name="Show all 30").click()
    expect(hours.get_by_role("row")).to_have_count(1 + 30 + 1)
    expect(hours.get_by_role("row", name="Total")).to_contain_text(
        f"{sum(3e7 / n for n in range(1, 31)):,.0f}".replace(",", " ")
    )
    assert not visited.is_wider_than_the_screen()
    assert visited.axe() == []


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

"""Chromium, as Debian packages it, on the dashboard of a running platform.

It is the build without windows: it has the same engine, and opens a page for half of the processor time.

A ``Visit`` collects what no page may do: errors of scripts, violations of the content security policy, and scripts of
others that run.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    StorageState,
    expect,
    sync_playwright,
)

from tests.testbed.built import need_debian
from tests.waiting import HANG_S

ROOT: Final = Path(__file__).parents[2]
CHROMIUM: Final = "chromium-headless-shell"
"""The program, and its Debian package."""
AXE: Final = ROOT / "services/dashboard/node_modules/axe-core/axe.min.js"
DESKTOP: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WATCH: Final = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__violations.push(event.violatedDirective + " " + event.blockedURI + " " + event.sourceFile));
"""
_AXE_RUN: Final = """async (rules) => {
  rules ??= {type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]};
  const found = await axe.run(document, {runOnly: rules, resultTypes: ["violations"]});
  return found.violations.map((one) => one.id + ": " + one.nodes.slice(0, 4).map(
    (node) => node.html.slice(0, 160) + " " + node.failureSummary).join(" | "));
}"""


def build_dashboard() -> None:
    """Builds the dashboard, if its sources are newer."""
    subprocess.run([ROOT / "scripts" / "dashboard.sh"], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def chromium() -> Generator[Browser]:
    """A browser with an empty profile. Installs the package, as root, if it is missing."""
    need_debian([CHROMIUM], [CHROMIUM], print)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page of the dashboard, and what went wrong on it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.context = context
        context.set_default_timeout(HANG_S * 1000)
        context.add_init_script(_WATCH)
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("dialog", self._opened)

    def _opened(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _heard(self, message: ConsoleMessage) -> None:
        # The browser itself reports each answer of 400 and above, and each lost connection.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def axe(self, *, only_colors: bool = False) -> list[str]:
        """What makes the page hard to use for some people; empty if nothing does. ``only_colors``: of its colours."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        colors = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
        violations: list[str] = self.page.evaluate(_AXE_RUN, colors if only_colors else None)
        return violations

    def is_wider_than_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def check(self) -> None:
        """Raises AssertionError if a script failed, was refused, or was not ours."""
        violations = self.page.evaluate("window.__violations ?? []")
        assert (self.wrong, violations) == ([], [])


@contextmanager
def visit(
    browser: Browser, url: str, *, state: StorageState | None = None, size: Mapping[str, int] = DESKTOP, **options: Any
) -> Generator[Visit]:
    """A visit in a profile of its own, signed in if ``state`` is a session's. Checked at its end."""
    viewport = {"width": size["width"], "height": size["height"]}
    with browser.new_context(storage_state=state, viewport=viewport, **options) as context:  # type: ignore[arg-type]
        opened = Visit(context, url)
        yield opened
        opened.check()


def sign_in(opened: Visit, key: str) -> StorageState:
    """Signs in by a key. Returns the session, for other visits."""
    page = opened.open("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    # The first screen sets it when it is drawn and hears keys, which may be a moment after the navigation is seen.
    expect(page).to_have_title("Jobs · Weft", timeout=HANG_S * 1000)
    return opened.context.storage_state()

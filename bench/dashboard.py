"""Measures the dashboard in Chromium, on a platform with many jobs and a very long curve.

    python -m bench.dashboard [--only list curve compare pages point] [--visits 10] [--quick]

Only what the measured rows need is stored before, so single parts are quick.

* list: from the navigation of a browser with an empty cache until the first row of the job list is drawn, and the same
  with a warm cache. The jobs are copies of one that ended, written to the job store.
* script: what a page loads first, compressed.
* curve: from the click on a job in the list until its curve is drawn: the job's page, and its points, of which the
  server sends as many as the screen shows. The click comes a second after the list was drawn, when the browser has
  also loaded what other pages need. Two kinds are measured: a click without a pointer, as by the keyboard, and one
  by hand, before which the pointer rests on the link. The points are written to the metric store while the platform is
  down.
* pages: processor time of the api while many pages are open and nothing happens, and while a job is submitted each
  second, beside the same without pages.
* compare: a page that compares many jobs, with the charts of all of their metrics, is scrolled from top to bottom:
  frames a second, and the heap of the page afterwards. The jobs are copies; their points are written while the
  platform is down.
* point: a learner reports a point -> the page shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import math
import os
import re
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2
from playwright.sync_api import Browser, Page, StorageState

from bench.own_platform import SMALL, own_platform
from bench.report import Row, show
from bench.scale_history import NEVER_FITS, ended_document, fill
from services.core.adapters.sqlite.metrics.store import SqliteMetricStore
from services.core.ports.metric_store import Batch, Point, SourceId
from tests.testbed.browser import build_dashboard, chromium, sign_in, visit
from tests.testbed.platform import Platform
from weft import Client

PARTS: Final = ("list", "curve", "compare", "pages", "point")
DIST: Final = Path(__file__).parents[1] / "services/dashboard/dist"
SOURCE: Final = SourceId(1, "worker", 0, 1, "long.jsonl")
FIRST_MS: Final = 1_700_000_000_000
BATCH: Final = 50_000
SETTLE_S: Final = 5.0
LOOKED_MS: Final = 1000
"""Pause before the click, as of a person who reads the list first."""
RESTED_MS: Final = 300
PRESSED_MS: Final = 80
"""How long a hand lets the pointer rest on a link, and how long it presses the button."""
STEPS: Final = 20
"""Points of each metric of the jobs that are compared."""
WATCH: Final = """
window.__when = {};
new MutationObserver(() => {
  if (!window.__when.row && document.querySelector(".tr.data"))
    requestAnimationFrame(() => requestAnimationFrame(() => { window.__when.row ??= performance.now(); }));
}).observe(document, {subtree: true, childList: true});
"""
"""The second frame begins after the first one, with the row, was drawn."""
DRAWN: Final = """() => {
  window.__drawn = new Promise((resolve) => {
    let clicked;
    addEventListener("click", () => { clicked = performance.now(); }, {capture: true, once: true});
    new MutationObserver((_, observer) => {
      const value = document.querySelector(".legend-value")?.textContent;
      if (!document.querySelector(".chart canvas") || !/[0-9]/.test(value)) return;
      observer.disconnect();
      const answer = performance.getEntriesByType("resource").findLast((entry) => entry.name.includes("series=true"));
      requestAnimationFrame(() => requestAnimationFrame(() =>
        resolve([performance.now() - clicked, answer.responseEnd - clicked])));
    }).observe(document.body, {subtree: true, childList: true, characterData: true});
  });
}"""
"""``__drawn``: milliseconds from the next click until a curve is drawn, and until the answer with it was there."""
NOTE: Final = """() => {
  window.__shown = {};
  new MutationObserver(() => {
    for (const line of document.querySelectorAll(".chart")) {
      if (!line.textContent.startsWith("number")) continue;
      const value = line.querySelector(".legend-value")?.textContent.replaceAll(/\\D/g, "");
      if (value && !(value in window.__shown))
        requestAnimationFrame(() => { window.__shown[value] ??= performance.timeOrigin + performance.now(); });
    }
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
SPEAK: Final = (
    'echo "state=$JOB_STATE_DIR"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.05; done; '
    "n=0; while [ $n -lt {count} ]; do n=$((n+1)); "
    'echo "{{\\"step\\": $n, \\"number\\": $n, \\"sent\\": $(date +%s%N)}}"; sleep 0.4; done; sleep 3'
)


HEIGHT_PX: Final = 50
"""A page of charts, several in a row, has at least so much height for each."""
SCROLL: Final = """(pixels) => new Promise((resolve) => {
  const box = document.querySelector("main");
  const gaps = [];
  let last = performance.now();
  const next = (now) => {
    gaps.push(now - last);
    last = now;
    box.scrollTop += pixels;
    if (box.scrollTop + box.clientHeight < box.scrollHeight - 1) requestAnimationFrame(next);
    else resolve([gaps.slice(1), box.scrollHeight]);
  };
  requestAnimationFrame(next);
})"""
"""Milliseconds between the frames of a scroll from the top to the end, so many pixels a frame; and the height."""
SCREEN_PX: Final = 600
NOT_DRAWN: Final = """() => {
  const screen = document.querySelector("main").getBoundingClientRect();
  return [...document.querySelectorAll(".chart-place")].filter((place) => {
    const { top, bottom } = place.getBoundingClientRect();
    return bottom > screen.top && top < screen.bottom && !place.querySelector(".legend-value");
  }).map((place) => place.innerText);
}"""
DRAWN_S: Final = 300.0


@dataclass
class Figures:
    """Milliseconds, cores or kilobytes."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    script: list[float] = field(default_factory=list)
    api: list[float] = field(default_factory=list)
    """Of the curve: until the answer with its points was there."""
    hand_curve: list[float] = field(default_factory=list)
    hand_api: list[float] = field(default_factory=list)
    """The same after a pointer rested on the link. Negative: before the click."""
    frames: list[float] = field(default_factory=list)
    """Frames a second, of each scroll of 40 pixels a frame: too fast to draw."""
    slow_frames: list[float] = field(default_factory=list)
    """Of 12 pixels a frame: charts are drawn while they come into view."""
    heap: list[float] = field(default_factory=list)
    charts: list[float] = field(default_factory=list)
    """Until all charts of a screen are drawn, with the statistics over all jobs."""
    point: list[float] = field(default_factory=list)
    idle: dict[int, float] = field(default_factory=dict)
    """By the number of open pages."""
    busy: dict[int, float] = field(default_factory=dict)


async def write_curve(folder: Path, job_id: str, count: int) -> None:
    """Writes a curve of ``count`` points to the store of a platform that is down."""
    store = await SqliteMetricStore.open(folder)
    try:
        for first in range(0, count, BATCH):
            end = min(first + BATCH, count)
            points = [Point(step, FIRST_MS + step, "loss", step, _value(step)) for step in range(first, end)]
            await store.append(job_id, [Batch(SOURCE, first, end, (), points)])
    finally:
        await store.close()


def _value(step: int) -> float:
    return math.exp(-step / 3e6) + 0.05 * math.sin(step / 1000)


def first_load_kb() -> float:
    """Kilobytes of the scripts that a page loads at once, compressed."""
    names: set[str] = set()
    left = re.findall(r"assets/([\w.-]+\.js)", (DIST / "index.html").read_text())
    while left:
        name = left.pop()
        if name not in names:
            names.add(name)
            left += re.findall(r'from\s*"\./([\w.-]+\.js)"', (DIST / "assets" / name).read_text())
    return sum(len(gzip.compress((DIST / "assets" / name).read_bytes(), 9)) for name in names) / 1000


def first_row_ms(page: Page, url: str) -> float:
    """Opens the job list; returns the time from the navigation until its first row was drawn."""
    page.goto(f"{url}/ui/jobs")
    page.locator(".tr.data").first.wait_for()
    while not (when := page.evaluate("window.__when.row ?? 0")):
        page.wait_for_timeout(5)
    return float(when)


def measure_list(browser: Browser, url: str, state: StorageState, figures: Figures, *, visits: int) -> None:
    """Each visit has a cache of its own; its second navigation finds the scripts there."""
    for _ in range(visits):
        with visit(browser, url, state=state) as opened:
            opened.context.add_init_script(WATCH)
            figures.cold.append(first_row_ms(opened.page, url))
            figures.warm.append(first_row_ms(opened.page, url))


def measure_curve(browser: Browser, url: str, state: StorageState, figures: Figures, *, visits: int) -> None:
    """A fresh page for each click: nothing of the job is in its memory. Clicks without a pointer, as by the keyboard,
    and clicks by hand, in turns.
    """
    for _ in range(visits):
        for by_hand, drawn, answered in (
            (False, figures.curve, figures.api),
            (True, figures.hand_curve, figures.hand_api),
        ):
            with visit(browser, url, state=state) as opened:
                page = opened.open("/ui/jobs?q=name%3Dcurve")
                link = page.locator(".tr.data a", has_text=re.compile("^curve$"))
                link.wait_for()
                page.wait_for_timeout(LOOKED_MS)
                page.evaluate(DRAWN)
                if by_hand:
                    link.hover()
                    page.wait_for_timeout(RESTED_MS)
                    page.mouse.down()
                    page.wait_for_timeout(PRESSED_MS)
                    page.mouse.up()
                else:
                    link.evaluate("(link) => link.click()")
                times = page.evaluate("window.__drawn")
                drawn.append(float(times[0]))
                answered.append(float(times[1]))


async def write_many(folder: Path, job_ids: Sequence[str], metrics: int) -> None:
    """Writes short curves of many metrics for each job to the store of a platform that is down."""
    store = await SqliteMetricStore.open(folder)
    try:
        for number, job_id in enumerate(job_ids):
            points = [
                Point(step, FIRST_MS + step, f"metric-{metric:03}", step, math.sin(step / 5 + metric) + number / 1000)
                for step in range(STEPS)
                for metric in range(metrics)
            ]
            await store.append(job_id, [Batch(SOURCE, 0, len(points), (), points)])
    finally:
        await store.close()


def measure_compare(
    browser: Browser, url: str, state: StorageState, figures: Figures, *, metrics: int, visits: int
) -> None:
    """Reads the charts of all metrics, screen by screen, then scrolls through them, quickly and slowly in turns."""
    with visit(browser, url, state=state) as opened:
        page = opened.open("/ui/compare?q=name%3Dcompared&all=1")
        page.locator("[data-exact]").first.wait_for()  # of the chosen metric
        page.locator(".chart-place").first.scroll_into_view_if_needed()
        while True:
            began = time.monotonic()
            while left := page.evaluate(NOT_DRAWN):
                assert time.monotonic() - began < DRAWN_S, f"charts that are not drawn: {left}"
                page.wait_for_timeout(20)
            figures.charts.append((time.monotonic() - began) * 1e3)
            if page.evaluate(f"""() => {{
              const box = document.querySelector("main"), before = box.scrollTop;
              box.scrollTop += {SCREEN_PX};
              return box.scrollTop === before;
            }}"""):
                break
        session = opened.context.new_cdp_session(page)
        for _ in range(visits):
            for pixels, frames in ((40, figures.frames), (12, figures.slow_frames)):
                page.evaluate("document.querySelector('main').scrollTop = 0")
                gaps, height = page.evaluate(SCROLL, pixels)
                assert height > metrics * HEIGHT_PX, f"the page is {height} pixels high"
                frames.append(1000 * len(gaps) / sum(gaps))
        session.send("HeapProfiler.collectGarbage")
        figures.heap.append(session.send("Runtime.getHeapUsage")["usedSize"] / 2**20)


def measure_point(
    browser: Browser, platform: Platform, state: StorageState, client: Client, *, count: int
) -> list[float]:
    """Milliseconds from each report of a learner until the page shows it. Values that the next one overtook are left
    out.
    """
    spec = {"name": "speaks", "command": SPEAK.format(count=count), "resources": SMALL, "metrics": [{"type": "jsonl"}]}
    job = client.jobs.submit(spec)
    with visit(browser, platform.url, state=state) as opened:
        page = opened.open(f"/ui/jobs/{job.id}")
        page.locator(".strip .status", has_text="processing").wait_for()
        page.locator(".connection.live").wait_for()
        page.evaluate(NOTE)
        state_folder = next(line.text.removeprefix("state=") for line in job.logs(follow=True))
        (Path(state_folder) / "go").touch()
        job.wait(600)
        shown: dict[str, float] = page.evaluate("window.__shown")
    sent = {str(point.step): point.value / 1e6 for point in job.points(name="sent")}
    return [shown[step] - at for step, at in sent.items() if step in shown]


@contextlib.asynccontextmanager
async def open_pages(platform: Platform, count: int) -> AsyncGenerator[None]:
    """Streams of as many pages, that are read to their end."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=platform.url, headers=platform.operator, timeout=None, limits=limits, trust_env=False
    ) as client:
        ready = asyncio.Semaphore(0)

        async def read() -> None:
            async with client.stream("GET", "/v1/stream", params={"list": "true"}) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line == "event: ready":
                        ready.release()

        reading = [asyncio.create_task(read()) for _ in range(count)]
        try:
            for _ in reading:
                await ready.acquire()
            yield
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


async def measure_pages(platform: Platform, figures: Figures, *, pages: Sequence[int], seconds: float) -> None:
    """Cores that the api uses with so many open pages."""
    async with httpx2.AsyncClient(base_url=platform.url, headers=platform.operator, trust_env=False) as client:
        for count in pages:
            async with open_pages(platform, count):
                await asyncio.sleep(SETTLE_S)
                before, began = _api_seconds(platform), time.monotonic()
                await asyncio.sleep(seconds)
                figures.idle[count] = (_api_seconds(platform) - before) / (time.monotonic() - began)
                before, began = _api_seconds(platform), time.monotonic()
                while time.monotonic() - began < seconds:
                    (await client.post("/v1/jobs", json=NEVER_FITS)).raise_for_status()
                    await asyncio.sleep(1)
                figures.busy[count] = (_api_seconds(platform) - before) / (time.monotonic() - began)


def _api_seconds(platform: Platform) -> float:
    fields = Path(f"/proc/{platform.process('api').pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(args: argparse.Namespace) -> Figures:
    """Fills a platform with what the chosen parts need, and measures them."""
    build_dashboard()
    figures = Figures(script=[first_load_kb()])
    with own_platform({"WEFT_MAX_CLIENT_CONNECTIONS": str(args.pages + 100)}) as (platform, client):
        store(platform, client, args)
        if "pages" in args.only:
            asyncio.run(measure_pages(platform, figures, pages=(0, args.pages), seconds=args.seconds))
        with Client(platform.url, platform.key) as again, chromium() as browser:
            with visit(browser, platform.url) as opened:
                state = sign_in(opened, platform.key)
            if "list" in args.only:
                measure_list(browser, platform.url, state, figures, visits=args.visits)
            if "curve" in args.only:
                measure_curve(browser, platform.url, state, figures, visits=args.visits)
            if "compare" in args.only:
                measure_compare(browser, platform.url, state, figures, metrics=args.metrics, visits=3)
            if "point" in args.only:
                figures.point = measure_point(browser, platform, state, again, count=args.visits * 10)
    return figures


def store(platform: Platform, client: Client, args: argparse.Namespace) -> None:
    """Stores jobs and points. The points are written while the platform is down; it is up again afterwards."""
    curve, compared = "", []
    fill(platform, ended_document(platform, client), args.jobs)
    if "curve" in args.only:
        command = 'echo "{\\"step\\": 0, \\"first\\": 1}"'
        spec = {"name": "curve", "command": command, "resources": SMALL, "metrics": [{"type": "jsonl"}]}
        curve = client.jobs.submit(spec).wait(600).id
    if "compare" in args.only:
        fill(platform, ended_document(platform, client, name="compared"), args.compared - 1)
        compared = [job.id for job in client.jobs.list(name="compared")]
    platform.down()
    began = time.monotonic()
    if curve:
        asyncio.run(write_curve(platform.home / "metrics", curve, args.points))
    asyncio.run(write_many(platform.home / "metrics", compared, args.metrics))
    print(f"points stored in {time.monotonic() - began:.0f} s", flush=True)
    platform.up()


def rows(args: argparse.Namespace, figures: Figures) -> list[Row]:
    """The table; rows that were not measured are left out."""
    pages = args.pages
    shown = [
        Row("list: first row, empty cache", figures.cold, promised="<= 1000"),
        Row("list: first row, warm cache", figures.warm),
        Row("script of the first load, gzip", figures.script, "kB", "<= 250"),
        Row("curve: click -> drawn", figures.curve, promised="<= 200"),
        Row("  of these, until the points are there", figures.api),
        Row("the same by hand: the pointer rests on the link first", figures.hand_curve, promised="<= 200"),
        Row("  of these, until the points are there", figures.hand_api),
        Row(f"compare {args.compared:,} jobs x {args.metrics} metrics: scroll", figures.frames, "frames/s", ">= 50"),
        Row("  the same, slowly: charts are drawn meanwhile", figures.slow_frames, "frames/s", ">= 50"),
        Row("  a screen of them, statistics of all jobs", figures.charts),
        Row("  heap of the page afterwards", figures.heap, "MiB", "<= 300"),
        Row("point reported -> drawn", figures.point, promised="p99 <= 500"),
    ]
    if figures.idle:
        shown += [
            Row("api, nothing happens, no page", [figures.idle[0]], "cores"),
            Row(f"api, nothing happens, {pages} pages", [figures.idle[pages]], "cores"),
            Row("api, a job a second, no page", [figures.busy[0]], "cores"),
            Row(f"api, a job a second, {pages} pages", [figures.busy[pages]], "cores", "<= 1"),
        ]
    return shown


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="ended jobs (default: 100000)")
    parser.add_argument("--points", type=int, default=10_000_000, help="of the long curve (default: 10000000)")
    parser.add_argument("--compared", type=int, default=1000, help="jobs that are compared (default: 1000)")
    parser.add_argument("--metrics", type=int, default=200, help="metrics of each of them (default: 200)")
    parser.add_argument("--pages", type=int, default=200, help="open pages (default: 200)")
    parser.add_argument("--visits", type=int, default=10, help="visits of each kind (default: 10)")
    parser.add_argument("--seconds", type=float, default=30, help="that the api is measured (default: 30)")
    parser.add_argument(
        "--quick", action="store_true", help="10,000 jobs, 200 compared, 1,000,000 points, 3 visits, 10 seconds"
    )
    args = parser.parse_args()
    if args.quick:
        args.jobs, args.points, args.visits, args.seconds, args.compared = 10_000, 1_000_000, 3, 10, 200
    figures = measure(args)
    show(f"dashboard: {args.jobs:,} jobs, a curve of {args.points:,} points, in Chromium", rows(args, figures))


if __name__ == "__main__":
    main()

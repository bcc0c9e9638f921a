"""Measures MLflow's own UI on runs like the jobs of ``bench.dashboard``, in the same Chromium, for comparison.

    python -m bench.dashboard_mlflow [--jobs 100000] [--points 1000000] [--compared 200] [--metrics 50] [--visits 5]

MLflow is installed into a virtual environment of its own (``--venv``, kept for the next run); it is no dependency of
Weft. The runs are written to its SQLite database in bulk; ``mlflow server`` runs with its defaults. Run
``python -m bench.dashboard`` with the same numbers to compare.

* list: from the navigation until the first row is drawn, with an empty cache.
* curve: from the click on "Model metrics" of a run until the line is drawn. MLflow draws a sample of the points.
* compare: the page with the charts of an experiment: until the first line is drawn; frames a second of a scroll through
  it; its heap. MLflow draws the runs that its page has loaded, Weft the mean and spread of all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from tests.testbed.browser import DESKTOP, chromium
from tests.testbed.server import free_port
from tests.waiting import HANG_S, eventually

VERSION: Final = "3.17.2"
VENV: Final = Path.home() / ".cache" / "weft" / f"bench-mlflow-{VERSION}"
FILL: Final = """
import math, sqlite3, sys, uuid
from mlflow.entities import RunStatus
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

path, jobs, points, compared, metrics, steps = sys.argv[1], *map(int, sys.argv[2:])
store = SqlAlchemyStore("sqlite:///" + path, path + "-artifacts")
other = store.create_experiment("compared")
FIRST = 1_700_000_000_000


def template(experiment):
    run = store.create_run(experiment, "bench", FIRST, [], "ended").info.run_id
    store.update_run_info(run, RunStatus.FINISHED, FIRST + 1000, None)
    return run


first = {"0": template("0"), other: template(other)}
db = sqlite3.connect(path)
columns = [row[1] for row in db.execute("PRAGMA table_info(runs)")]


def copy(experiment, count, name):
    row = dict(zip(columns, db.execute("SELECT * FROM runs WHERE run_uuid = ?", (first[experiment],)).fetchone()))
    tags = db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (first[experiment],)).fetchall()
    ids = [uuid.uuid4().hex for _ in range(count)]
    db.executemany(
        f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
        ([{**row, "run_uuid": run, "name": name, "start_time": FIRST + n}[c] for c in columns]
         for n, run in enumerate(ids)),
    )
    db.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)",
        ((key, name if key == "mlflow.runName" else value, run) for run in ids for key, value in tags))
    return ids


def log(run, key, values):
    db.executemany("INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
        ((key, value, FIRST + step, run, step) for step, value in enumerate(values)))
    last = len(values) - 1
    db.execute("INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)",
        (key, values[last], FIRST + last, last, run))


with db:
    copy("0", jobs, "ended")
    [curve] = copy("0", 1, "curve")
    log(curve, "loss", [math.exp(-step / 3e6) + 0.05 * math.sin(step / 1000) for step in range(points)])
    for number, run in enumerate(copy(other, compared, "compared")):
        for metric in range(metrics):
            log(run, f"metric-{metric:03}", [math.sin(step / 5 + metric) + number / 1000 for step in range(steps)])
print(curve, other)
"""
FIRST_ROW: Final = """
new MutationObserver(() => {
  if (!window.__row && [...document.querySelectorAll('[role=row] a')].some((link) => link.href.includes("/runs/")))
    requestAnimationFrame(() => requestAnimationFrame(() => { window.__row ??= performance.now(); }));
}).observe(document, {subtree: true, childList: true});
"""
FIRST_LINE: Final = """
new MutationObserver(() => {
  if (!window.__line && document.querySelector(".js-plotly-plot path.js-line"))
    requestAnimationFrame(() => requestAnimationFrame(() => { window.__line ??= performance.now(); }));
}).observe(document, {subtree: true, childList: true});
"""
CLICK: Final = """() => {
  const tab = [...document.querySelectorAll("[role=tab]")].find((tab) => tab.textContent.includes("Model metrics"));
  window.__line = undefined;
  window.__clicked = performance.now();
  tab.dispatchEvent(new MouseEvent("mousedown", {bubbles: true, button: 0}));
  tab.click();
}"""
SCROLL: Final = """() => new Promise((resolve) => {
  const box = [...document.querySelectorAll("*")].filter((element) => element.querySelector(".js-plotly-plot") &&
    element.scrollHeight > element.clientHeight + 10 && /auto|scroll/.test(getComputedStyle(element).overflowY)).at(-1);
  if (!box) return resolve([]);
  const gaps = [];
  let last = performance.now();
  const next = (now) => {
    gaps.push(now - last);
    last = now;
    box.scrollTop += 12;
    if (box.scrollTop + box.clientHeight < box.scrollHeight - 1 && gaps.length < 1500) requestAnimationFrame(next);
    else resolve(gaps.slice(1));
  };
  requestAnimationFrame(next);
})"""


@dataclass
class Figures:
    """Milliseconds, frames a second or MiB."""

    listed: list[float] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    compare: list[float] = field(default_factory=list)
    frames: list[float] = field(default_factory=list)
    heap: list[float] = field(default_factory=list)


def install(venv: Path) -> Path:
    """The folder of its programs."""
    if not (venv / "bin" / "mlflow").exists():
        print(f"installing MLflow {VERSION} into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", f"mlflow=={VERSION}"], check=True)
    return venv / "bin"


@contextlib.contextmanager
def server(programs: Path, database: Path) -> Generator[str]:
    """The address of a server with its defaults."""
    url = f"http://127.0.0.1:{free_port()}"
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    argv: list[str | Path] = [
        programs / "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{database}",
        "--port",
        url.rpartition(":")[2],
        "--artifacts-destination",
        database.with_name("artifacts"),
    ]
    with database.with_name("server.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(f"{url}/health"))
        yield url
    finally:
        process.terminate()
        process.wait(HANG_S)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def page_of(browser: Browser) -> Generator[Page]:
    """A page in a profile of its own."""
    with browser.new_context(viewport={"width": DESKTOP["width"], "height": DESKTOP["height"]}) as context:
        context.set_default_timeout(HANG_S * 1000)
        context.add_init_script(FIRST_ROW + FIRST_LINE)
        yield context.new_page()


def measure(browser: Browser, url: str, curve: str, compared: str, *, visits: int) -> Figures:
    """Visits with an empty cache each."""
    figures = Figures()
    for _ in range(visits):
        with page_of(browser) as page:
            page.goto(f"{url}/#/experiments/0/runs")
            figures.listed.append(_when(page, "window.__row ?? 0"))
        with page_of(browser) as page:
            page.goto(f"{url}/#/experiments/0/runs/{curve}")
            page.get_by_role("tab", name="Model metrics").wait_for()
            page.evaluate(CLICK)
            figures.curve.append(_when(page, "window.__line ? window.__line - window.__clicked : 0"))
        with page_of(browser) as page:
            page.goto(f"{url}/#/experiments/{compared}/runs?compareRunsMode=CHART")
            figures.compare.append(_when(page, "window.__line ?? 0"))
            gaps = page.evaluate(SCROLL)
            if gaps:
                figures.frames.append(1000 * len(gaps) / sum(gaps))
            session = page.context.new_cdp_session(page)
            session.send("HeapProfiler.collectGarbage")
            figures.heap.append(session.send("Runtime.getHeapUsage")["usedSize"] / 2**20)
    return figures


def _when(page: Page, expression: str) -> float:
    page.wait_for_function(expression)
    return float(page.evaluate(expression))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="ended runs (default: 100000)")
    parser.add_argument("--points", type=int, default=1_000_000, help="of the long curve (default: 1000000)")
    parser.add_argument("--compared", type=int, default=200, help="runs that are compared (default: 200)")
    parser.add_argument("--metrics", type=int, default=50, help="metrics of each of them (default: 50)")
    parser.add_argument("--visits", type=int, default=5, help="visits of each kind (default: 5)")
    parser.add_argument("--venv", type=Path, default=VENV, help="virtual environment with MLflow, made where missing")
    args = parser.parse_args()
    programs = install(args.venv)
    with ending_cleanly(), tempfile.TemporaryDirectory(prefix="weft-bench-mlflow-") as folder:
        database = Path(folder) / "mlflow.db"
        sizes = [str(size) for size in (args.jobs, args.points, args.compared, args.metrics, 20)]
        filled = subprocess.run(
            [programs / "python", "-c", FILL, database, *sizes], check=True, capture_output=True, text=True
        )
        curve, compared = filled.stdout.split()[-2:]
        with server(programs, database) as url, chromium() as browser:
            figures = measure(browser, url, curve, compared, visits=args.visits)
    show(
        f"MLflow {VERSION}: {args.jobs:,} runs, a curve of {args.points:,} points, in Chromium",
        [
            Row("list: first row, empty cache", figures.listed),
            Row("curve: click -> drawn", figures.curve),
            Row(f"compare {args.compared} runs x {args.metrics} metrics: first line", figures.compare),
            Row("  scroll", figures.frames, "frames/s"),
            Row("  heap of the page", figures.heap, "MiB"),
        ],
    )


if __name__ == "__main__":
    main()

"""Takes pictures of every screen of the dashboard, at the widths of a desktop, a tablet and a phone.

    python -m scripts.screenshots [--into docs/images/dashboard] [--only jobs job-log] [--dark]

Starts a platform of its own, trains small networks on it, and opens each screen in Chromium once it shows its content.
Look at the pictures before you commit them: overlaps, cut texts, misaligned numbers.
"""

from __future__ import annotations

import argparse
import base64
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, StorageState

from bench.own_platform import own_platform
from tests.testbed.browser import build_dashboard, chromium, sign_in, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Job

ROOT: Final = Path(__file__).parents[1]
SIZES: Final = {1440: 900, 1024: 768, 390: 844}
TRAIN: Final = '''"""Trains a network with one hidden layer to tell two half-moons apart."""
import math, os, random
import weft

seed, rate = int(os.environ.get("SEED", 1)), float(os.environ.get("RATE", 0.3))
rank = int(os.environ.get("WEFT_RANK", 0))
steps = int(os.environ.get("STEPS", 240))
random.seed(seed + 100 * rank)
HIDDEN = 12
first = [[random.gauss(0, 1), random.gauss(0, 1), 0.0] for _ in range(HIDDEN)]
last = [random.gauss(0, 0.4) for _ in range(HIDDEN + 1)]


def sample():
    label, angle = random.randint(0, 1), random.uniform(0, math.pi)
    x, y = (math.cos(angle), math.sin(angle)) if label else (1 - math.cos(angle), 0.5 - math.sin(angle))
    return x + random.gauss(0, 0.12), y + random.gauss(0, 0.12), label


def forward(x, y):
    hidden = [math.tanh(a * x + b * y + c) for a, b, c in first]
    return hidden, 1 / (1 + math.exp(-sum(w * h for w, h in zip(last, hidden)) - last[-1]))


print(f"\\x1b[1mtwo moons\\x1b[0m: seed {seed}, learning rate {rate}, {steps} steps", flush=True)
for step in range(steps):
    loss = right = 0
    for _ in range(24):
        x, y, label = sample()
        hidden, p = forward(x, y)
        loss -= math.log(max(p if label else 1 - p, 1e-9)) / 24
        right += (p > 0.5) == bool(label)
        error = p - label
        for i, h in enumerate(hidden):
            slope = error * last[i] * (1 - h * h)
            last[i] -= rate * error * h / 24
            for j, value in enumerate((x, y, 1.0)):
                first[i][j] -= rate * slope * value / 24
        last[-1] -= rate * error / 24
    weft.report(step=step, loss=loss, accuracy=right / 24, learning_rate=rate)
    if step % 20 == 0:
        print(f"step {step:4d}  loss {loss:.4f}  accuracy {right / 24:.3f}", flush=True)
    if os.environ.get("BREAK") and step == 60:
        raise ValueError("batch 61: label 7 is out of range for 2 classes")
print("\\x1b[32mdone\\x1b[0m", flush=True)
with open(os.path.join(os.environ["RESULT_DIR"], "summary.txt"), "w") as file:
    file.write(f"loss {loss:.4f}\\naccuracy {right / 24:.3f}\\n")
if os.environ.get("STAY"):
    import time

    while True:
        time.sleep(1)
'''
SCREENS: Final[dict[str, tuple[str, str | re.Pattern[str]]]] = {
    "signin": ("", "API key"),
    "jobs": ("/ui/jobs?metrics=loss,accuracy", "moons-seeds"),
    "job": ("/ui/jobs/{pair}", "accuracy"),
    "job-log": ("/ui/jobs/{pair}?tab=logs&order=time", "two moons"),
    "job-learners": ("/ui/jobs/{pair}?tab=learners", " CPU ·"),
    "job-events": ("/ui/jobs/{pair}?tab=events", "processing"),
    "job-files": ("/ui/jobs/{seed-1}?tab=files&file=attempts/1/results/worker-0/summary.txt", "accuracy"),
    "job-spec": ("/ui/jobs/{seed-1}?tab=spec", "command:"),
    "job-failed": ("/ui/jobs/{failed}", "label 7 is out of range"),
    "queue": ("/ui/queue", "waits-for-room"),
    "queue-empty": ("/ui/queue", "No job waits"),
    "cluster": ("/ui/cluster", "Idle GPUs"),
    "compare": ("/ui/compare?jobs={seeds}&group=except:env.SEED", "deviation"),
    "access": ("/ui/access", "data-store"),
    "submit": ("/ui/submit", re.compile("Starts at once|Has to wait")),
}
SETTINGS: Final = {"WEFT_NODE_CPUS": "4", "WEFT_NODE_GPUS": "4", "WEFT_GPU_IDLE_S": "30"}
"""GPUs are slots without devices: those of a job that only waits are shown as idle after half a minute."""
SMALL: Final = {"cpus": 0.5, "memory": "128MiB"}
AS_WEBP: Final = """async (png) => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(atob(png), (c) => c.charCodeAt(0))]));
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", 0.82).split(",")[1];
}"""


def submit_all(client: Client, code: Path) -> dict[str, str]:
    """Jobs in all states that the screens show; returns their ids."""
    (code / "train.py").write_text(TRAIN)

    def submit(name: str, env: dict[str, str] | None = None, **fields: Any) -> Job:
        spec = {"name": name, "command": "python3 train.py", "resources": SMALL, "env": env or {}, **fields}
        return client.jobs.submit(spec, code=code)

    jobs = {
        f"seed-{seed}": submit(
            "moons-seeds", {"SEED": str(seed), "RATE": "0.3" if seed < 4 else "0.05"}, tags=["group=moons"]
        )
        for seed in range(1, 6)
    }
    jobs["failed"] = submit(
        "moons-broken", {"BREAK": "1"}, description="Breaks on purpose: a label that does not exist"
    )
    for job in jobs.values():
        job.wait(HANG_S)
    on_gpus = {**SMALL, "gpus": 1}
    jobs["pair"] = submit("moons-pair", {"STAY": "1", "SEED": "7"}, learners=2, tags=["example"], resources=on_gpus)
    jobs["waiting"] = submit("waits-for-room", resources={"cpus": 3.5, "memory": "128MiB"})
    eventually(lambda: len(list(client.jobs.points(jobs["pair"].id, name="loss"))) >= 480)
    eventually(lambda: jobs["waiting"].refresh().document["pending_reason"])
    client.keys.create(name="nightly runs", user="grace", tenant="vision")
    client.secrets.set("data-store", {"access_key": "example", "secret_key": "example"})
    return {name: job.id for name, job in jobs.items()}


def take(page: Page, url: str, path: str, shown: str | re.Pattern[str]) -> bytes:
    """A picture of the screen as PNG, once it shows its content and no chart is empty."""
    page.goto(url + path)
    page.get_by_text(shown).or_(page.get_by_label(shown)).locator("visible=true").first.wait_for()
    page.wait_for_load_state("load")
    page.evaluate("document.fonts.ready")
    eventually(lambda: page.locator(".loading").count() == 0)
    if path.startswith("/ui/jobs"):
        page.locator(".connection.live").wait_for()
    if path.startswith("/ui/jobs?") and page.evaluate("innerWidth >= 1200"):
        page.locator(".sparkline path").first.wait_for(state="attached")
    if path.startswith("/ui/jobs/"):
        page.locator(".strip .facts dd").first.wait_for()
    return page.screenshot(animations="disabled")


def take_all(
    browser: Browser, running: Platform, ids: dict[str, str], into: Path, screens: list[str], *, dark: bool
) -> None:
    """Pictures of these screens at all sizes."""
    into.mkdir(parents=True, exist_ok=True)
    with visit(browser, running.url) as opened:
        state: StorageState = sign_in(opened, running.key)
    words = {**ids, "seeds": ",".join(ids[f"seed-{seed}"] for seed in range(1, 6))}
    for width, height in SIZES.items():
        size = {"width": width, "height": height}
        for screen in screens:
            path, shown = SCREENS[screen]
            with visit(
                browser,
                running.url,
                state=state if path else None,
                size=size,
                reduced_motion="reduce",
                color_scheme="dark" if dark else "light",
            ) as opened:
                png = take(opened.page, running.url, path.format(**words), shown)
            with browser.new_context() as context:
                webp = context.new_page().evaluate(AS_WEBP, base64.b64encode(png).decode())
            (into / f"{screen}{'-dark' if dark else ''}-{width}.webp").write_bytes(base64.b64decode(webp))
            print(f"{screen} at {width}", flush=True)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "docs/images/dashboard")
    parser.add_argument(
        "--only", nargs="+", choices=SCREENS, default=list(SCREENS), metavar="SCREEN", help="these screens"
    )
    parser.add_argument("--dark", action="store_true", help="in dark colours: SCREEN-dark-WIDTH.webp")
    args = parser.parse_args()
    into: Path = args.into
    dark: bool = args.dark
    build_dashboard()
    with ExitStack() as stack:
        running, client = stack.enter_context(own_platform(SETTINGS))
        code = stack.enter_context(tempfile.TemporaryDirectory())
        browser = stack.enter_context(chromium())
        ids = submit_all(client, Path(code))
        take_all(browser, running, ids, into, [name for name in args.only if name != "queue-empty"], dark=dark)
        for name in ("waiting", "pair"):
            client.jobs.kill(ids[name])
            client.jobs.wait(ids[name])
        take_all(browser, running, ids, into, [name for name in args.only if name == "queue-empty"], dark=dark)


if __name__ == "__main__":
    main()

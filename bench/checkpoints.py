"""Measures how much storing checkpoints in the background slows a training.

    python -m bench.checkpoints [--pairs 40] [--period 8] [--every 60] [--size 64] [--quick] [--python PATH]

One job, one learner, on all cores. It trains in periods of equally many steps, in the order A B B A: before a period it
writes a checkpoint of new bytes, in A into CHECKPOINT_DIR, in B into another folder of the same disk. So both write the
same, and only in A the helper stores it, while the learner trains. The learner measures the time of the steps alone.

* lost per checkpoint: time of a period A minus time of the period B beside it. A period is short, and longer than
  storing takes: other load on the machine differs less between neighbours, and what is lost is the same seconds.
* slowdown: these seconds / ``--every``, the time between two checkpoints of a training. The promise is about its
  median; the note below the table says in which interval it lies with a confidence of 95 %.
* helper: its processor time for each stored checkpoint. Where learners use all cores, this time divided by the number
  of cores is lost at least, also on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.own_platform import own_platform, with_python
from bench.report import Row, median_interval, processes_naming, show
from tests.testbed.platform import Platform
from weft import Client

TRAINING = """\
import json, os, sys, time
import numpy as np

pairs, period_s, size = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
weights = np.random.default_rng(0).standard_normal((512, 512))

def train(steps):
    global weights
    began = time.perf_counter()
    for _ in range(steps):
        weights = np.tanh(weights @ weights.T / 512)
    return time.perf_counter() - began

def save(folder, number):
    path = os.path.join(folder, f"step-{number}")
    with open(path + ".tmp", "wb") as file:
        file.write(os.urandom(size))
    os.rename(path + ".tmp", path)
    for old in os.listdir(folder):
        if old.startswith("step-") and old != f"step-{number}":
            os.remove(os.path.join(folder, old))

elsewhere = os.path.join(os.environ["JOB_STATE_DIR"], "elsewhere")
os.makedirs(elsewhere)
train(20)
steps = max(1, round(period_s / (train(100) / 100)))
train(steps)
for pair in range(pairs):
    took = {}
    for kind in "AB" if pair % 2 == 0 else "BA":
        save(os.environ["CHECKPOINT_DIR"] if kind == "A" else elsewhere, 2 * pair + (kind == "B"))
        took[kind] = train(steps)
    print(json.dumps({"stored": took["A"], "alone": took["B"], "steps": steps}), flush=True)
"""
TIMEOUT_S = 3600.0
SAMPLE_S = 1.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Outcome:
    pairs: list[tuple[float, float]]
    """Seconds of a period whose checkpoint is stored, and of one whose is not."""
    stored: int
    """Checkpoints that were stored while it trained."""
    helper_s: float
    """Processor seconds of the helper between the first and the last period."""


def run(
    platform: Platform, client: Client, *, pairs: int, period_s: float, size: int, python: Path | None = None
) -> Outcome:
    """Runs the training as a job. ``python``: see ``with_python``.

    Raises RuntimeError if the job fails, or no checkpoint was stored while it trained.
    """
    arguments = f"{pairs} {period_s} {size}"
    spec = {
        "name": "checkpoints",
        "framework": "numpy",
        "command": f"python -c {shlex.quote(TRAINING)} {arguments}",
        "resources": {"cpus": 1, "memory": "1GiB"},
        "checkpoint": {"keep": 1},
    }
    job = client.jobs.submit(with_python(spec, python))
    stored: set[Any] = set()
    used: list[float] = []
    ends = time.monotonic() + TIMEOUT_S
    while not job.refresh().finished and time.monotonic() < ends:
        stored |= {job.checkpoint_stored} - {None}
        used += _helper_seconds(platform)
        time.sleep(SAMPLE_S)
    job.wait(timeout=TIMEOUT_S)
    lines = [line.text for line in job.logs()]
    if job.status != "COMPLETED" or not stored:
        raise RuntimeError(
            f"the job is {job.status} {job.message}, {len(stored)} checkpoints were stored: {lines[-5:]}"
        )
    periods = [json.loads(line) for line in lines]
    return Outcome(
        [(float(period["stored"]), float(period["alone"])) for period in periods], len(stored), max(used) - used[0]
    )


def _helper_seconds(platform: Platform) -> Iterator[float]:
    """Processor seconds of the one helper, while it runs."""
    for pid in processes_naming(platform.home.root):
        try:
            if b"services.helper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                yield (int(fields[11]) + int(fields[12])) * _TICK_S
        except OSError:  # it has ended
            continue


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="of periods (default: 40)")
    parser.add_argument("--period", type=float, default=8.0, metavar="S", help="seconds of training (default: 8)")
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="of the slowdown (default: 60)")
    parser.add_argument("--size", type=float, default=64.0, metavar="MB", help="of a checkpoint (default: 64)")
    parser.add_argument("--quick", action="store_true", help="two pairs of 8 s: shows that it works, no more")
    parser.add_argument("--python", type=Path, help="an interpreter that has NumPy, instead of the library's")
    args = parser.parse_args()
    pairs, period_s = (2, 8.0) if args.quick else (args.pairs, args.period)
    with own_platform({"WEFT_CHECKPOINT_EVERY_S": "1"}) as (platform, client):
        outcome = run(platform, client, pairs=pairs, period_s=period_s, size=round(args.size * 1e6), python=args.python)
    lost = [stored - alone for stored, alone in outcome.pairs]
    notes = [f"{outcome.stored} of {pairs} checkpoints were seen stored while it trained"]
    if interval := median_interval(lost):
        low, high = (end / args.every * 100 for end in interval)
        notes.append(f"the median slowdown lies in {low:.2f} to {high:.2f} % (95 %)")
    show(
        f"checkpoints: one of {args.size:.0f} MB in every other period of {period_s:.0f} s, stored in the background",
        [
            Row("a period, its checkpoint is not stored", [alone for _, alone in outcome.pairs], "s"),
            Row("a period, its checkpoint is stored", [stored for stored, _ in outcome.pairs], "s"),
            Row("lost per checkpoint", lost, "s"),
            Row(
                f"slowdown with a checkpoint each {args.every:.0f} s",
                [statistics.median(lost) / args.every * 100],
                "%",
                "<= 1",
            ),
            Row("processor: the helper, per checkpoint", [outcome.helper_s / outcome.stored], "s"),
        ],
        notes=notes,
    )


if __name__ == "__main__":
    main()

"""Measures the overhead of the platform on a training run: the same two learners as a job and as bare processes.

    python -m bench.overhead [--steps 3000] [--pairs 20] [--quick] [--python PATH]

examples/digits on two learners, with logs and metrics on, in turn on the platform and by ``bench.bare``: A B B A, so
that other load on the machine affects both alike. Where the platform can make control groups, the bare learners have
one each as well: the kernel shares the processors among groups first. Both use the same environment, which the platform
builds first, or the interpreter that ``--python`` names: one that has the example's packages, for a machine without a
package index. On a machine with more than two cores, `taskset -c 0,1` before it gives the learners and the platform two
to share.
Each pair compares

* training: on the platform from the first learner's start to the last learner's end, by the learners' own time stamps;
  bare from the first start to the last exit. The promise is about the median of this ratio over all pairs; the note
  below the table says in which interval it lies with a confidence of 95 %.
* job: from before the submit to the end of the job, with results stored and hardware released.
* processor: the use by all other processes of the platform (services, etcd, helpers, shims) during training, as a share
  of one core. Learners that wait for each other in every step lose about this time where they use all cores; the
  figure hardly depends on other load on the machine. Beside it how often their threads wake up, which depends even less
  on it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bare import REPOSITORY, example_spec, run_bare
from bench.own_platform import own_platform, with_python
from bench.report import Row, median_interval, processes_naming, show, wakeups
from services.node.cgroups import Groups
from tests.testbed.platform import Platform
from weft import Client
from weft._job import Job

EXAMPLE = "digits"
LEARNERS = 2
JOB_TIMEOUT_S = 3600.0
SAMPLE_S = 2.0
SETTLE_S = 3.0
STAMP = 'date +%s%N >> "$LOG_DIR/stamps"'
PROGRAMS = (
    *(
        f"services.{name}".encode()
        for name in ("api", "lcm.worker", "lcm", "guardian", "metrics", "node/shim", "node", "helper", "local")
    ),
    b"etcd",
)
"""Parts of command lines; the first match counts."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class OnPlatform:
    """One run as a job."""

    training: float
    """Seconds."""
    job: float
    """Seconds."""
    shares: Mapping[str, float]
    """Program -> cores used while the learners trained. Empty if the training was too short to measure."""
    wakeups: Mapping[str, float]
    """Program -> wake-ups a second, likewise."""


class Accounting:
    """Measures the cores that the platform's own processes use while a job trains.

    Reads a dozen files every other second, so that the measurement itself costs little.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._over = threading.Event()
        self.shares: dict[str, float] = {}
        self.wakeups: dict[str, float] = {}

    @contextmanager
    def during(self, job: Job) -> Generator[None]:
        """Measures during the block, while all of the job's learners train."""
        thread = threading.Thread(target=self._account, args=(job.id,), name="accounting")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _account(self, job: str) -> None:
        while len(self._platform.learner_pids(job)) < LEARNERS:
            if self._over.wait(SAMPLE_S):
                return
        if self._over.wait(SETTLE_S):
            return
        programs = self._programs()
        first, woken, began = _used(programs), _woken(programs), time.monotonic()
        while not self._over.wait(SAMPLE_S):
            try:
                now, woken_now = _used(programs), _woken(programs)
            except FileNotFoundError:  # a helper has ended: the training is over
                return
            took = time.monotonic() - began
            self.shares = {name: (now[name] - first[name]) / took for name in now}
            self.wakeups = {name: (woken_now[name] - woken[name]) / took for name in now}

    def _programs(self) -> dict[int, str]:
        """Returns pid -> program name, for all processes of the platform except learners."""
        names: dict[int, str] = {}
        for pid in processes_of(self._platform):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            known = [part.decode() for part in PROGRAMS if part in command]
            names[pid] = known[0].removeprefix("services.") if known else "others"
        return names


def processes_of(platform: Platform) -> list[int]:
    """Pids of all processes of the platform except learners."""
    return [
        pid
        for pid in processes_naming(platform.home.root)
        if b"WEFT_JOB_ID=" not in Path(f"/proc/{pid}/environ").read_bytes()
    ]


def _used(programs: Mapping[int, str]) -> dict[str, float]:
    """Returns processor seconds so far, by program."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, name in programs.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] += (int(fields[11]) + int(fields[12])) * _TICK_S
    return used


def _woken(programs: Mapping[int, str]) -> dict[str, int]:
    """Returns wake-ups so far, by program."""
    woken: defaultdict[str, int] = defaultdict(int)
    for pid, name in programs.items():
        woken[name] += wakeups(pid)
    return woken


def job_spec(steps: int, python: Path | None, *options: str) -> dict[str, Any]:
    """Returns the example's spec; its learners write time stamps at start and end.

    ``python``: see ``with_python``. ``options``: more of the training's command.
    """
    spec = example_spec(EXAMPLE)
    command = " ".join([spec["command"], f"--steps {steps}", *options])
    job = {
        **spec,
        "code": str(REPOSITORY / "examples" / EXAMPLE),
        "command": f"{STAMP}; {command}; code=$?; {STAMP}; exit $code",
        "learners": LEARNERS,
    }
    return with_python(job, python)


def on_platform(platform: Platform, client: Client, steps: int, python: Path | None = None) -> OnPlatform:
    """Runs the example as a job. ``python``: see ``job_spec``. Raises RuntimeError if the job does not complete."""
    began = time.monotonic()
    job = client.jobs.submit(job_spec(steps, python))
    accounting = Accounting(platform)
    with accounting.during(job):
        job.wait(timeout=JOB_TIMEOUT_S)
    took = time.monotonic() - began
    if job.status != "COMPLETED":
        raise RuntimeError(f"the job is {job.status}: {job.reason} {job.message}")
    stamps = _stamps(job)
    return OnPlatform(
        training=(max(stamps) - min(stamps)) / 1e9, job=took, shares=accounting.shares, wakeups=accounting.wakeups
    )


def _stamps(job: Job) -> list[int]:
    with tempfile.TemporaryDirectory(prefix="weft-bench-logs-") as folder:
        files = [path for path in job.download(folder, what="logs") if path.name == "stamps"]
        stamps = [int(line) for path in files for line in path.read_text().split()]
    if len(stamps) != 2 * LEARNERS:
        raise RuntimeError(f"{len(stamps)} time stamps of {LEARNERS} learners")
    return stamps


@contextmanager
def control_groups(folder: Path) -> Generator[list[tuple[str, ...]]]:
    """Yields the folders of each bare learner's control groups; empty tuples where none can be made."""
    groups, _ = Groups.find(folder, pids=0)
    places = [groups.places(f"bare-{rank}") for rank in range(LEARNERS)]
    try:
        for place in itertools.chain(*places):
            Path(place).mkdir()
        yield places
    finally:
        Groups.remove_all(folder)


def bare(python: Path, steps: int) -> float:
    """Runs the example bare. Returns seconds. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-bare-") as state, control_groups(Path(state)) as groups:
        outcome = run_bare(
            example=EXAMPLE,
            learners=LEARNERS,
            state=Path(state),
            python=python,
            arguments=["--steps", str(steps)],
            quiet=True,
            groups=groups,
        )
    if any(outcome.exits):
        raise RuntimeError(f"the bare processes failed: {outcome.exits}")
    return outcome.wall_s


def shares(runs: list[OnPlatform]) -> list[Row]:
    """Returns rows of the platform's processor use, in percent of one core, and of its wake-ups: in all, by program."""
    counted = [run.shares for run in runs if run.shares]
    names = sorted({name for run_shares in counted for name in run_shares})
    return [
        Row(
            "processor: the platform, in all", [sum(run_shares.values()) * 100 for run_shares in counted], "% of a core"
        ),
        *(
            Row(f"processor: {name}", [run_shares.get(name, 0.0) * 100 for run_shares in counted], "% of a core")
            for name in names
        ),
        Row("wake-ups: the platform, in all", [sum(run.wakeups.values()) for run in runs if run.wakeups], "per s"),
        *(
            Row(f"wake-ups: {name}", [run.wakeups.get(name, 0.0) for run in runs if run.wakeups], "per s")
            for name in names
        ),
    ]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="of training (default: 3000, about 20 s)")
    parser.add_argument("--pairs", type=int, default=20, help="runs of each kind (default: 20)")
    parser.add_argument("--quick", action="store_true", help="two pairs of 500 steps: shows that it works, no more")
    parser.add_argument("--python", type=Path, help="an interpreter that has the example's packages")
    args = parser.parse_args()
    steps, pairs = (500, 2) if args.quick else (args.steps, args.pairs)
    with own_platform() as (platform, client):
        on_platform(platform, client, 20, args.python)  # builds the environment and fills its compile caches
        python = args.python or next((platform.home / "cache" / "envs").glob("*/venv/bin/python"))
        bare(python, 20)
        runs: list[tuple[OnPlatform, float]] = []
        for number in range(pairs):
            first = bare(python, steps) if number % 2 else None
            trained = on_platform(platform, client, steps, args.python)
            runs.append((trained, bare(python, steps) if first is None else first))
            print(f"  platform {runs[-1][0].training:.2f} s, bare {runs[-1][1]:.2f} s", flush=True)
    rows = [
        Row("bare", [alone for _, alone in runs], "s"),
        Row("training on the platform", [run.training for run, _ in runs], "s"),
        Row("the whole job", [run.job for run, _ in runs], "s"),
        Row("overhead of training", [(run.training / alone - 1) * 100 for run, alone in runs], "%", "<= 1"),
        Row("overhead of the whole job", [(run.job / alone - 1) * 100 for run, alone in runs], "%"),
        *shares([run for run, _ in runs]),
    ]
    ratio = statistics.median(run.training for run, _ in runs) / statistics.median(alone for _, alone in runs)
    notes = [f"median of training / median of bare = {ratio:.4f}"]
    if interval := median_interval([(run.training / alone - 1) * 100 for run, alone in runs]):
        notes.append(f"the median overhead of training lies in {interval[0]:.1f} to {interval[1]:.1f} % (95 %)")
    show(
        f"overhead: {EXAMPLE} x {LEARNERS}, {steps} steps, on the platform against the same bare processes",
        rows,
        notes=notes,
    )


if __name__ == "__main__":
    main()

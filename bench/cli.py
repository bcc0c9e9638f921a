"""Measures the duration of command line calls: `--help`, `list`, `show`, `submit` in a loop, `up`, `down` and others.

    python -m bench.cli [--runs 30] [--lives 6] [--quick]

Each command is a process, timed from its start to its end with its output thrown away; `weft up` ends when every
service is ready. The short ones are taken in turn with `python -c pass`, the least that any command in Python takes on
this machine, so that other load on the machine affects all alike; compare the ratio to it between machines.
Configuration and installation are in a temporary folder. Jobs that last leave the machine to the commands: at most one
for each CPU runs. Jobs that end at once are run while more are submitted, and take most of the processors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.own_platform import ending_cleanly
from bench.report import Row, processes_naming, show

WEFT = str(Path(sys.executable).with_name("weft"))
BASE = "python -c pass"
SHORT = {
    BASE: ([sys.executable, "-c", "pass"], ""),
    "weft --help": ([WEFT, "--help"], "<= 150"),
    "weft version": ([WEFT, "version"], ""),
    "weft list": ([WEFT, "list"], "base + 120"),
    "weft show": ([WEFT, "show", "bench"], "base + 120"),
    "weft status": ([WEFT, "status"], "base + 120"),
    "weft train --dry-run": ([WEFT, "train", "--dry-run", "-f", "job.yaml"], ""),
}
LOOP = 60
SUBMIT = [WEFT, "submit", "--no-follow", "-f"]
JOB = "name: bench\ncommand: 'true'\n"
SHORT_JOB = "name: short\ncommand: 'true'\n"
LASTING_JOB = "name: loop\ncommand: sleep 600\n"


def took(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> float:
    """Runs the command. Returns milliseconds. Raises CalledProcessError if it fails."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=True, text=True)
    return (time.perf_counter() - began) * 1e3


def submit_in_a_loop(file: str, environment: Mapping[str, str], folder: Path) -> float:
    """Submits the job ``LOOP`` times, one after the other. Returns milliseconds of all."""
    return sum(took([*SUBMIT, file], environment, folder) for _ in range(LOOP))


def names(environment: Mapping[str, str], folder: Path, *options: str) -> list[str]:
    """The ids of the jobs in the list with these options."""
    call = [WEFT, "list", "-o", "name", *options]
    done = subprocess.run(call, env=environment, cwd=folder, capture_output=True, check=True, text=True)
    return done.stdout.split()


def measure(runs: int, lives: int, root: Path) -> list[Row]:
    """Starts and stops the platform ``lives`` times; runs the short commands in the last life."""
    environment = {**os.environ, "WEFT_HOME": str(root / "home"), "XDG_CONFIG_HOME": str(root / "config")}
    for name in ("WEFT_URL", "WEFT_KEY", "WEFT_PROFILE"):
        environment.pop(name, None)
    (root / "job.yaml").write_text(JOB)
    (root / "lasting.yaml").write_text(LASTING_JOB)
    (root / "short.yaml").write_text(SHORT_JOB)
    ups: list[float] = []
    downs: list[float] = []
    short_submits: list[float] = []
    lasting_submits: list[float] = []
    idle_downs: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in SHORT}
    for life in range(lives):
        try:
            ups.append(took([WEFT, "up"], environment, root))
            if life == lives - 1:
                short_submits.append(submit_in_a_loop("short.yaml", environment, root))
                took([WEFT, "wait", *names(environment, root)], environment, root)
                lasting_submits.append(submit_in_a_loop("lasting.yaml", environment, root))
                took([WEFT, "kill", "--yes", *names(environment, root, "--name", "loop")], environment, root)
                took([*SUBMIT, "job.yaml"], environment, root)
                took([WEFT, "wait", "bench"], environment, root)
                for name, (command, _) in SHORT.items():
                    took(command, environment, root)  # once, so that its files are in memory
                    times[name].clear()
                for _ in range(runs):
                    for name, (command, _) in SHORT.items():
                        times[name].append(took(command, environment, root))
        finally:
            downs.append(took([WEFT, "down", "--yes"], environment, root))
            idle_downs.append(took([WEFT, "down"], environment, root))
    rows = [Row(name, times[name], promised=promised) for name, (_, promised) in SHORT.items()]
    return [
        *rows,
        Row("weft up, the first", ups[:1], promised="<= 4000"),
        Row("weft up", ups[1:], promised="<= 4000"),
        Row("weft down, no job runs", downs, promised="<= 1000"),
        Row("weft down, the platform is down", idle_downs),
        Row(f"{LOOP} x weft submit, jobs that last", lasting_submits, promised="<= 10000"),
        Row(f"{LOOP} x weft submit, jobs that end", short_submits),
    ]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="runs of each short command (default: 30)")
    parser.add_argument("--lives", type=int, default=6, help="times to start and stop the platform (default: 6)")
    parser.add_argument("--quick", action="store_true", help="eight runs, two lives")
    args = parser.parse_args()
    runs, lives = (8, 2) if args.quick else (args.runs, args.lives)
    root = Path(tempfile.mkdtemp(prefix="weft-bench-"))
    root.chmod(0o755)  # learners' own users pass through
    try:
        with ending_cleanly():
            rows = measure(runs, lives, root)
        if left := processes_naming(root):
            raise RuntimeError(f"processes are left: {left}")
    finally:
        shutil.rmtree(root)
    least = statistics.median(rows[0].values)
    ratios = (f"{row.what} {statistics.median(row.values) / least:.1f}" for row in rows[1:] if row.what in SHORT)
    show("cli: how long a command takes", rows, notes=[f"times `{BASE}` (p50): " + ", ".join(ratios)])


if __name__ == "__main__":
    main()

"""Runs seeds of the simulation. ``python -m tests.simulation.seeds 17`` prints the trace of one seed; ``--first 0
--count 500`` runs many and prints the sums as JSON.

The seeds of a process run one after the other. To use several cores, start several processes.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import structlog

import services
from tests.simulation.seed_run import KUBERNETES, LOCAL, SeedResult, SeedRun
from tests.simulation.virtual_time import run


def run_seed(seed: int, home: Path, *, cluster: str = LOCAL, whole_trace: bool = False) -> tuple[SeedResult, list[str]]:
    """Runs one seed. Returns its result and, with ``whole_trace``, all lines of its trace."""

    async def run_in_loop() -> tuple[SeedResult, list[str]]:
        seed_run = SeedRun(seed, home, cluster=cluster, whole_trace=whole_trace)
        result = await seed_run.run()
        return result, seed_run.trace.all or []

    # Garbage collection closes forgotten generators: its time would make runs of one seed differ.
    gc.collect()
    gc.disable()
    try:
        return run(run_in_loop())
    finally:
        gc.enable()


def run_seeds(seeds: range, home: Path, *, cluster: str, until_breach: bool) -> dict[str, Any]:
    """Runs seeds and returns their sums. ``until_breach``: stops after the first seed with a breach."""
    faults, requests, jobs, least, slowest = Counter[str](), Counter[str](), 0, 10**9, 0.0
    failures: list[dict[str, Any]] = []
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for seed in seeds:
        result, _ = run_seed(seed, home / str(seed), cluster=cluster)
        count += 1
        digest.update(result.digest.encode())
        faults += result.faults
        requests += result.requests
        jobs += result.jobs
        least, slowest = min(least, sum(result.faults.values())), max(slowest, result.settled_s)
        if result.breaches:
            breaches = [str(breach) for breach in result.breaches[:5]]
            failures.append({"seed": seed, "breaches": breaches, "last": result.last})
            if until_breach:
                break
    return {
        "seeds": count,
        "jobs": jobs,
        "faults": faults,
        "requests": requests,
        "least_faults": least,
        "slowest_s": slowest,
        "failures": failures,
        "digest": digest.hexdigest(),
        "services": services.__path__[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--cluster", choices=(LOCAL, KUBERNETES), default=LOCAL)
    parser.add_argument("--until-breach", action="store_true")
    arguments = parser.parse_args()
    gc.freeze()  # imported modules are no garbage: the collection after each seed skips them
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as home:
        if arguments.seed is None:
            seeds = range(arguments.first, arguments.first + arguments.count)
            sums = run_seeds(seeds, Path(home), cluster=arguments.cluster, until_breach=arguments.until_breach)
            json.dump(sums, sys.stdout)
            return 0
        result, lines = run_seed(arguments.seed, Path(home), cluster=arguments.cluster, whole_trace=True)
    lines.append(f"digest {result.digest}; {sum(result.faults.values())} faults; settled in {result.settled_s:.1f} s")
    lines += [f"BREACH  {breach}" for breach in result.breaches]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if result.breaches else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.simulation.seeds 17`` tells one seed, line by line; ``--first 0 --count 500`` runs many, as JSON.

One process, one seed after the other; whoever wants both cores starts two.
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
from tests.simulation.story import Story, Told
from tests.simulation.virtual_time import run


def tell(seed: int, home: Path, *, whole: bool = False) -> tuple[Told, list[str]]:
    """What became of it, and, where asked for, every line of it."""

    async def story() -> tuple[Told, list[str]]:
        one = Story(seed, home, whole=whole)
        told = await one.tell()
        return told, one.trace.all or []

    # The collector's moments must not decide when a forgotten generator is closed.
    gc.collect()
    gc.disable()
    try:
        return run(story())
    finally:
        gc.enable()


def many(seeds: range, home: Path, *, until_breach: bool) -> dict[str, Any]:
    """The sums."""
    faults, applied_keys, jobs, least, slowest = Counter[str](), Counter[str](), 0, 10**9, 0.0
    failures: list[dict[str, Any]] = []
    told, digest = 0, hashlib.blake2b(digest_size=16)
    for seed in seeds:
        one, _ = tell(seed, home / str(seed))
        told += 1
        digest.update(one.digest.encode())
        faults += one.faults
        applied_keys += one.applied_keys
        jobs += one.jobs
        least, slowest = min(least, sum(one.faults.values())), max(slowest, one.settled_s)
        if one.breaches:
            failures.append({"seed": seed, "breaches": [str(each) for each in one.breaches[:5]], "last": one.last})
            if until_breach:
                break
    return {
        "told": told, "jobs": jobs, "faults": faults, "wishes": applied_keys, "least": least, "slowest_s": slowest,
        "failures": failures, "digest": digest.hexdigest(),
        "services": services.__path__[0],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--until-breach", action="store_true")
    asked = parser.parse_args()
    gc.freeze()  # what was imported is not garbage: it need not be looked through after each seed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as home:
        if asked.seed is None:
            seeds = range(asked.first, asked.first + asked.count)
            json.dump(many(seeds, Path(home), until_breach=asked.until_breach), sys.stdout)
            return 0
        told, lines = tell(asked.seed, Path(home), whole=True)
    lines.append(f"digest {told.digest}; {sum(told.faults.values())} faults; settled in {told.settled_s:.1f} s")
    lines += [f"BREACH  {breach}" for breach in told.breaches]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if told.breaches else 0


if __name__ == "__main__":
    sys.exit(main())

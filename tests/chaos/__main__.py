"""``python -m tests.chaos [--seed 17] [--faults 30]``: the real platform under faults, and an auditor.

``make chaos SEED=17 N=200`` is the same. A run that finds something prints the command that replays it, and keeps the
services' logs in build/chaos. Ctrl-C ends everything it has started.
"""

from __future__ import annotations

import argparse
import random
import sys

from bench.own_platform import ending_cleanly
from tests.chaos.run import run


def main() -> int:
    """1 where the auditor found something."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=None, help="of the schedule and the load (default: a new one)")
    parser.add_argument("--faults", type=int, default=30, help="how many (default: 30)")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if args.seed is None else args.seed
    _say(f"chaos: seed {seed}, {args.faults} faults")
    try:
        with ending_cleanly():
            outcome = run(seed, args.faults, say=_say, progress=_progress)
    except KeyboardInterrupt:
        _say("\nchaos: ended before its time; nothing is left running")
        return 130
    except Exception:
        _say(f"\nreplay: make chaos SEED={seed} N={args.faults}")
        raise
    for line in outcome.lines:
        _say(line)
    if outcome.verdict.wrong:
        _say(f"{len(outcome.verdict.wrong)} things that must not be:")
        for wrong in outcome.verdict.wrong:
            _say(f"  {wrong}")
        _say(f"replay: make chaos SEED={seed} N={args.faults}")
        return 1
    _say("nothing lost, nothing doubled, nothing left behind")
    return 0


def _say(text: str) -> None:
    _progress("")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _progress(text: str) -> None:
    """One line that changes, on a terminal only."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

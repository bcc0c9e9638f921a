"""``python -m tests.chaos [--seed 17] [--faults 30]``: runs the real platform under faults and audits the result.

``make chaos SEED=17 N=200`` is the same; with ``ON=kubernetes`` learners are pods of the test cluster. A run with a
failure prints the command that replays it and keeps the services' logs in build/chaos. Ctrl-C ends every process that
the run started.
"""

from __future__ import annotations

import argparse
import random
import sys

from bench.own_platform import ending_cleanly
from tests.chaos import on_kubernetes
from tests.chaos import run as on_this_machine


def main() -> int:
    """Returns the exit code: 1 if the auditor found a failure, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the schedule and the load (default: a random one)"
    )
    parser.add_argument("--faults", type=int, default=30, help="number of faults (default: 30)")
    parser.add_argument(
        "--on",
        choices=("local", "kubernetes"),
        default="local",
        help="learners: processes of this machine, or pods of the test cluster, whose own parts are killed (as root)",
    )
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if args.seed is None else args.seed
    run = on_kubernetes.run if args.on == "kubernetes" else on_this_machine.run
    again = f"make chaos SEED={seed} N={args.faults}{' ON=kubernetes' if args.on == 'kubernetes' else ''}"
    _say(f"chaos: seed {seed}, {args.faults} faults")
    try:
        with ending_cleanly():
            outcome = run(seed, args.faults, say=_say, progress=_progress)
    except KeyboardInterrupt:
        _say("\nchaos: interrupted; nothing is left running")
        return 130
    except Exception:
        _say(f"\nreplay: {again}")
        raise
    for line in outcome.lines:
        _say(line)
    if outcome.verdict.failures:
        _say(f"{len(outcome.verdict.failures)} failures:")
        for failure in outcome.verdict.failures:
            _say(f"  {failure}")
        _say(f"replay: {again}")
        return 1
    _say("nothing lost, nothing duplicated, nothing left behind")
    return 0


def _say(text: str) -> None:
    _progress("")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _progress(text: str) -> None:
    """Rewrites the progress line; prints nothing if stdout is no terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

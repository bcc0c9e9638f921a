"""Entry point of `python -m bench.bare`; the package's text says what it does."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from bench.bare import environment_for, example_spec, run_bare


def main() -> int:
    """Run the example; 1 if any learner's exit code is not 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare", description="Run an example as bare processes.")
    parser.add_argument("--example", required=True, help="a folder of examples/")
    parser.add_argument("--learners", type=int, help="default: what its weft.yaml says")
    parser.add_argument("--state", type=Path, help="folder for all that is written (default: a temporary one)")
    parser.add_argument("--python", type=Path, help="interpreter to use (default: an environment built once)")
    parser.add_argument("--quiet", action="store_true", help="do not show what rank 0 prints")
    parser.add_argument("arguments", nargs="*", help="after --: arguments for the example's command")
    args = parser.parse_args()
    spec = example_spec(args.example)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state = args.state or Path(tempfile.mkdtemp(prefix="weft-bare-"))
    outcome = run_bare(
        example=args.example,
        learners=args.learners or spec.get("learners", 1),
        state=state.resolve(),
        python=args.python or environment_for(spec, caches / "weft-bench"),
        arguments=args.arguments,
        quiet=args.quiet,
    )
    print(json.dumps({"wall_s": round(outcome.wall_s, 3), "exits": outcome.exits, "state": str(state)}))
    return 1 if any(outcome.exits) else 0


if __name__ == "__main__":
    sys.exit(main())

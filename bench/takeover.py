"""Measures how soon a killed part of the platform works again, beside the figures that FfDL reports.

    python -m bench.takeover [--runs 20] [--quick]

Each part in turn is ended with kill -9, by its pid, on a running platform. The time is that from the kill to the part's
next useful work, seen from the outside (tests/chaos/takeover.py):

* api: a request is answered; lcm: a job submitted after the kill is admitted; guardian: a halt requested after the kill
  begins; metrics, helper: a line written after the kill can be read.
* learner, shim: another process of the learner runs (in the next attempt, by its retry budget).
* node, etcd: a job submitted after the kill has its process. etcd loses all its keys each time.

FfDL's figures are those of its paper, as recalled (docs/promises.md, R6), on another cluster: they are an orientation,
not a comparison on equal machines.
"""

from __future__ import annotations

import argparse

from bench.own_platform import own_platform
from bench.report import Row, show
from tests.chaos.takeover import PARTS, measuring


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="kills of each part (default: 20)")
    parser.add_argument("--quick", action="store_true", help="three of each")
    args = parser.parse_args()
    runs = 3 if args.quick else args.runs
    times: dict[str, list[float]] = {part.name: [] for part in PARTS}
    with own_platform({"WEFT_NODE_CPUS": "4"}) as (platform, _), measuring(platform) as bench:
        # Round by round: no part is killed again while it is hardly up.
        for _ in range(runs):
            for part in PARTS:
                times[part.name].append(part.measure(bench))
    rows = [
        Row(
            f"{part.name} killed",
            times[part.name],
            unit="s",
            promised="" if part.crash_s is None else f"<= {part.crash_s:g}",
        )
        for part in PARTS
    ]
    theirs = ", ".join(f"{part.name} {part.ffdl} s" for part in PARTS if part.ffdl != "-")
    show("takeover: from kill -9 until the part works again", rows, notes=[f"FfDL's paper, as recalled: {theirs}"])


if __name__ == "__main__":
    main()

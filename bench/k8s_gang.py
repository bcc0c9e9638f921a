"""Measures how soon 400 gangs of 8 pods are bound on 500 nodes.

    python -m bench.k8s_gang [--gangs 400] [--pods 8] [--nodes 500] [--runs 1] [--tuned] [--quick]

On the test bed's control plane with simulated nodes (as root). In the same run: Weft's adapter with native gangs and
with gates, native gangs created directly by the same client (a PodGroup and its pods: the scheduler alone), plain pods
created likewise, and Kubernetes' own Jobs. The promise compares Weft with the native gangs: plain pods are bound one by
one, which is less than a gang asks of the scheduler. From the first request to the last pod's binding, as a watch
sees it. ``--tuned``: the scheduler has the settings that the
operator guide recommends, for all ways. All gangs fit; tests/cluster/test_overload.py shows what happens when they do
not.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from bench.simulated_cluster import TUNED_SCHEDULER, WAYS, measure_all, scheduler_rows
from tests.testbed.kubernetes.cluster import cluster

GPUS = 8


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=400, help="(default: 400)")
    parser.add_argument("--pods", type=int, default=8, help="of each gang (default: 8)")
    parser.add_argument("--nodes", type=int, default=500, help="with 8 GPUs each (default: 500)")
    parser.add_argument("--runs", type=int, default=1, help="of each way (default: 1)")
    parser.add_argument("--tuned", action="store_true", help="the scheduler with the recommended settings")
    parser.add_argument("--quick", action="store_true", help="20 gangs on 25 nodes")
    args = parser.parse_args()
    gangs, nodes = (20, 25) if args.quick else (args.gangs, args.nodes)
    if gangs * args.pods > nodes * GPUS:
        parser.error("the gangs do not fit on the nodes")
    flags = TUNED_SCHEDULER if args.tuned else ()
    with ending_cleanly(), cluster(nodes=0, simulated_nodes=nodes, gpus=GPUS, scheduler_flags=flags) as machines:
        results = asyncio.run(measure_all(machines, list(WAYS), jobs=gangs, pods=args.pods, runs=args.runs))
    rows = [Row(f"{way}: all bound", [result.bound_s for result in measured], "s") for way, measured in results.items()]
    for other, promised in (("native gangs", "<= 1"), ("plain pods", "")):
        alone = [result.bound_s for result in results[other]]
        for way in (way for way in results if way.startswith("Weft")):
            ratios = [result.bound_s / alone_s for result, alone_s in zip(results[way], alone, strict=True)]
            rows.append(Row(f"{way} / {other}", ratios, "", promised=promised))
    rows += scheduler_rows(results)
    tuned = ", tuned scheduler" if args.tuned else ""
    show(f"k8s_gang: {gangs} gangs of {args.pods} pods on {nodes} nodes{tuned}", rows)


if __name__ == "__main__":
    main()

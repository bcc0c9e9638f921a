"""Measures how soon the pods of 100 jobs with 4 learners each exist, and what they cost the API server.

    python -m bench.k8s_create [--jobs 100] [--pods 4] [--runs 3] [--quick]

On the test bed's control plane with simulated nodes (as root). In the same run: Weft's adapter with native gangs and
with gates, native gangs and plain pods created directly by the same client, and Kubernetes' own Jobs, whose pods the
controller manager creates at its default rate. From the first request to the last pod's creation, as a watch sees it.
Weft's time contains the owner object, tokens, network policy, gang object and names of each job. Writes are requests
that are not GET, per job.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from bench.simulated_cluster import WAYS, measure_all
from tests.testbed.kubernetes.cluster import cluster

GPUS = 8


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="(default: 100)")
    parser.add_argument("--pods", type=int, default=4, help="learners of each job (default: 4)")
    parser.add_argument("--runs", type=int, default=3, help="of each way (default: 3)")
    parser.add_argument("--quick", action="store_true", help="20 jobs, one run")
    args = parser.parse_args()
    jobs, runs = (20, 1) if args.quick else (args.jobs, args.runs)
    nodes = -(-jobs * args.pods // GPUS) + 1
    with ending_cleanly(), cluster(nodes=0, simulated_nodes=nodes, gpus=GPUS) as machines:
        results = asyncio.run(measure_all(machines, list(WAYS), jobs=jobs, pods=args.pods, runs=runs))
    rows = [
        Row(
            f"{way}: {jobs * args.pods} pods created",
            [result.created_s for result in measured],
            "s",
            promised="<= 2" if way.startswith("Weft") and (jobs, args.pods) == (100, 4) else "",
        )
        for way, measured in results.items()
    ]
    rows += [
        Row(f"{way}: writes per job", [result.writes_per_job for result in measured], "")
        for way, measured in results.items()
    ]
    show(f"k8s_create: {jobs} jobs of {args.pods} pods", rows)


if __name__ == "__main__":
    main()

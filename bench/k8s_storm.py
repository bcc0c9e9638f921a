"""Measures a storm of submits: 2,000 jobs within 10 seconds, whose learners are pods.

    python -m bench.k8s_storm [--jobs 2000] [--seconds 10] [--train 60] [--gang auto] [--tuned] [--quick]

Each job has one learner with a GPU, which trains for ``--train`` seconds; there are GPUs for all. Platform, cluster and
helpers as in ``bench.k8s_load``. But the cluster's control plane and the helpers get an eighth of what a service of the
platform gets of the processors: in production they stand on other machines. No job may be lost or need a second
attempt, and nothing may be left in the cluster: otherwise the benchmark fails. The promise is that all are provisioned,
and the p99 of the submits.

In the same run: as many plain pods and Kubernetes Jobs that come at the same moments, until they are bound.
"""

from __future__ import annotations

import argparse

from bench.report import Row, show
from bench.simulated_cluster import bound_without_weft
from bench.simulated_platform import simulated_platform, submit_all
from tests.testbed.kubernetes.platform_in_pods import objects_left
from tests.waiting import eventually


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000, help="(default: 2000)")
    parser.add_argument("--seconds", type=float, default=10, help="within which they are submitted (default: 10)")
    parser.add_argument("--train", type=float, default=60, help="seconds that each job trains (default: 60)")
    parser.add_argument("--gang", default="auto", help="as WEFT_KUBERNETES_GANG (default: auto)")
    parser.add_argument("--tuned", action="store_true", help="the scheduler with the recommended settings")
    parser.add_argument("--quick", action="store_true", help="100 jobs within half a second")
    args = parser.parse_args()
    count, seconds, train_s = (100, 0.5, 10.0) if args.quick else (args.jobs, args.seconds, args.train)
    due = [number * seconds / count for number in range(count)]
    with simulated_platform(count, gang=args.gang, tuned=args.tuned, low_share=True) as (machines, _, client):
        submit_all(client, [0.0], train_s=1)  # prepares the tenant
        lives = submit_all(client, due, train_s=train_s)
        eventually(lambda: objects_left(machines) == [])
        plain, jobs = bound_without_weft(machines, due)
    show(
        f"k8s_storm: {count} jobs within {seconds:g} s, trainings of {train_s:g} s",
        [
            Row("due -> submit acknowledged", [life.acknowledged_s * 1e3 for life in lives], promised="p99 <= 500"),
            Row("due -> the learner runs", [life.started_s for life in lives], "s"),
            Row("first submit -> all learners run", [max(life.due_s + life.started_s for life in lives)], "s"),
            Row("end to end, without training", [life.ended_s - train_s for life in lives], "s"),
            Row("plain pods: due -> bound", plain, "s"),
            Row("Kubernetes Jobs: due -> bound", jobs, "s"),
        ],
        notes=[f"{len(lives)} of {count} jobs completed in their first attempt; nothing is left in the cluster"],
    )


if __name__ == "__main__":
    main()

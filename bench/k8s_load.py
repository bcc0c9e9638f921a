"""Measures how much longer a job takes among 700 jobs than among 70, as in FfDL's test of a heavy load.

    python -m bench.k8s_load [--minute 2] [--train 120] [--overlap] [--gang auto] [--tuned] [--quick]

FfDL's heavy load is 300, 240, 110 and 50 jobs that come after 0, 15, 30 and 32 minutes; the light one is a tenth of
each. Here a minute takes ``--minute`` seconds. Each job has one learner with a GPU, which trains for ``--train``
seconds; there are GPUs for all. The whole platform runs on this machine; its learners are pods of the test bed's
Kubernetes on simulated nodes (as root), whose helpers speak the real protocol with the metrics service
(tests/testbed/kubernetes/simulated_helpers.py).

* end to end: from the moment at which the job is due to be submitted until it is COMPLETED, without the training
  itself: what platform and cluster add.
* a job among 700 / among 70: end to end, with the training, in relation to the median of the light load. The promise
  is about this ratio. Real trainings last for hours: what the heavy load adds to one stays the same, so the note below
  the table says for which trainings it is 2 % at most.

With ``--overlap`` the heavy load comes while the light one trains: long trainings are then waited for once.

In the same run: as many plain pods and Kubernetes Jobs, which come at the same moments, until they are bound.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from bench.report import Row, p99, show
from bench.simulated_cluster import bound_without_weft
from bench.simulated_platform import Life, simulated_platform, submit_all
from weft import Client

MINUTES = (0, 15, 30, 32)
HEAVY = (300, 240, 110, 50)
LIGHT = (30, 24, 11, 5)
PROMISED = 1.02


def due_times(counts: tuple[int, ...], minute_s: float) -> list[float]:
    """Seconds from the beginning at which each job comes."""
    return [minute * minute_s for minute, count in zip(MINUTES, counts, strict=True) for _ in range(count)]


def await_running(client: Client, count: int) -> None:
    """Returns once so many jobs train at the same moment."""
    while len(list(client.jobs.list(status="PROCESSING"))) < count:
        time.sleep(1)


def rows_of(load: str, lives: list[Life], train_s: float) -> list[Row]:
    """What a user sees of a load."""
    return [
        Row(f"{load}: submit acknowledged", [life.acknowledged_s * 1e3 for life in lives]),
        Row(f"{load}: due -> the learner runs", [life.started_s for life in lives], "s"),
        Row(f"{load}: end to end, without training", [life.ended_s - train_s for life in lives], "s"),
    ]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minute", type=float, default=2, help="seconds of a minute of the load (default: 2)")
    parser.add_argument("--train", type=float, default=120, help="seconds that each job trains (default: 120)")
    parser.add_argument("--overlap", action="store_true", help="the heavy load comes while the light one trains")
    parser.add_argument("--gang", default="auto", help="as WEFT_KUBERNETES_GANG (default: auto)")
    parser.add_argument("--tuned", action="store_true", help="the scheduler with the recommended settings")
    parser.add_argument("--quick", action="store_true", help="70 jobs against 7")
    args = parser.parse_args()
    light, heavy = (tuple(count // 10 for count in LIGHT), LIGHT) if args.quick else (LIGHT, HEAVY)
    light = tuple(max(1, count) for count in light)
    minute_s, train_s = (0.2, 10.0) if args.quick else (args.minute, args.train)
    with simulated_platform(sum(light) + sum(heavy), gang=args.gang, tuned=args.tuned) as (machines, _, client):
        submit_all(client, [0.0], train_s=1)  # prepares the tenant
        with ThreadPoolExecutor(1) as threads:
            light_ends = threads.submit(submit_all, client, due_times(light, minute_s), train_s=train_s)
            if args.overlap:
                await_running(client, sum(light))
            else:
                light_ends.result()
            many = submit_all(client, due_times(heavy, minute_s), train_s=train_s)
            few = light_ends.result()
        plain, jobs = bound_without_weft(machines, due_times(heavy, minute_s))
    usual_s = statistics.median(life.ended_s for life in few)
    ratios = [life.ended_s / usual_s for life in many]
    added_s = p99([life.ended_s for life in many]) - usual_s
    enough_min = max(0.0, added_s) / (PROMISED - 1) / 60
    few_name, many_name = f"among {sum(light)}", f"among {sum(heavy)}"
    show(
        f"k8s_load: {sum(heavy)} jobs against {sum(light)}, a minute takes {minute_s:g} s, trainings of {train_s:g} s",
        [
            *rows_of(few_name, few, train_s),
            *rows_of(many_name, many, train_s),
            Row(f"a job {many_name} / {few_name}", ratios, "", promised=f"<= {PROMISED}"),
            Row("plain pods: due -> bound", plain, "s"),
            Row("Kubernetes Jobs: due -> bound", jobs, "s"),
        ],
        notes=[f"99 of 100 jobs take {added_s:.1f} s longer at most: 2 % of a training of {enough_min:.0f} minutes"],
    )


if __name__ == "__main__":
    main()

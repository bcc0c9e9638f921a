"""Any pod of the platform is killed, one after another, while jobs train: all of them complete, and lose no line."""

from __future__ import annotations

import pytest

from tests.helm.installation import Installation
from tests.helm.ticking import LONG_S, Ticking
from tests.promises import Promise
from tests.waiting import Stopwatch

COMPONENTS = ("lcm", "guardian", "metrics", "worker", "api", "etcd", "rabbitmq", "s3", "mongodb")
REPLICAS = "--set=api.replicas=2,lcm.replicas=2,guardian.replicas=2,worker.replicas=2"


@pytest.mark.promise("R6")
@pytest.mark.parametrize("options", [(), (REPLICAS,)], ids=["one replica", "two replicas"])
def test_jobs_complete_while_a_pod_of_each_service_and_store_is_killed(
    trained: Installation, promise: Promise, options: tuple[str, ...]
) -> None:
    count = promise.n(short=4, long=20)
    if count > 4:  # the nodes have no CPUs for so many helpers of the usual size
        options = (*options, "--set=learners.helper.cpus=0.1")
    trained.upgrade(*options)
    jobs = Ticking(trained, count)
    for component in COMPONENTS:
        with Stopwatch() as stopwatch:
            trained.kill_pod(component, LONG_S)
        promise.saw(f"pods: {component} killed, as many as before are ready after {stopwatch.took_s:.1f} s")
    jobs.end()
    promise.kept(count * len(COMPONENTS), "pods: jobs that trained while a pod of each service and store was killed")

"""Learners whose pods are evicted or deleted while they train, on the running platform: no job fails for it.

What the adapter names each of these is in test_failures.py. Here the job goes on in another attempt, from what its
learner has saved on SIGTERM, and no retry is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.promises import Promise
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.jobs_in_pods import end_command, history, lines, pods
from tests.testbed.kubernetes.kubectl import Kubectl
from tests.testbed.kubernetes.platform_in_pods import load_helper_image, objects_left, platform_in_pods
from tests.testbed.kubernetes.watcher import watching
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._job import Job

NAMESPACE: Final = "lost-default"
Say = Callable[[str], None]
Untimed = Callable[[], AbstractContextManager[None]]
Loss = Callable[[Kubectl, str], None]

SAVES: Final = """
  n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0)
  trap 'sleep 7; echo $((n + 1)) > "$CHECKPOINT_DIR/n"; exit %d' TERM
  echo "from $n"
  [ "$n" = 0 ] || exit 0
  while :; do sleep 0.1; done
"""
"""Saves a checkpoint when it is ended, in more time than peers of a failed learner get, and completes with it."""
TRAINS: Final = "echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def weft_up(testbed_cluster: Cluster, announce: Say, untimed: Untimed) -> Iterator[Platform]:
    """None of these tests lets two attempts of a job live at the same moment."""
    with untimed():
        image = load_helper_image(testbed_cluster, announce)
    with (
        watching(testbed_cluster.kubeconfig) as witness,
        platform_in_pods(testbed_cluster, image, name="lost") as running,
    ):
        yield running
        assert witness.overlaps == []


@pytest.fixture
def client(weft_up: Platform, testbed_cluster: Cluster) -> Generator[Client]:
    """Afterwards nothing of any job is left in the cluster."""
    with Client(weft_up.url, weft_up.key) as made:
        yield made
        for job in made.jobs.list():
            if not job.at_rest:
                job.kill()
        eventually(lambda: objects_left(testbed_cluster) == [])


@pytest.fixture
def kubectl(testbed_cluster: Cluster) -> Kubectl:
    return replace(testbed_cluster.kubectl, namespace=NAMESPACE)


def evict(kubectl: Kubectl, pod: str) -> None:
    """As `kubectl drain` does."""
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    kubectl("create", f"--raw={path}", "--filename=-", text=json.dumps(document))


def delete(kubectl: Kubectl, pod: str) -> None:
    kubectl("delete", "pod", pod, "--wait=false")


def delete_by_force(kubectl: Kubectl, pod: str) -> None:
    kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")


def pod_names(cluster: Cluster, job: Job) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in pods(cluster, job))


def spec(command: str, **fields: Any) -> dict[str, Any]:
    """With a grace of which enough is left for ``SAVES`` on a machine that stalls."""
    resources = {"cpus": 0.25, "memory": "64MiB"}
    return {"name": "lost", "command": command, "resources": resources, "grace": "60s", **fields}


def again(job: Job) -> list[str]:
    """Why it was queued again."""
    return [str(event.reason) for event in job.history() if event.to == "QUEUED"][1:]


@pytest.mark.promise("R4")
@pytest.mark.parametrize(
    ("loss", "reason"),
    [(evict, "Evicted"), (delete, "PodDeleted")],
    ids=["evicted", "deleted"],
)
def test_learner_whose_pod_is_ended_saves_its_checkpoint_and_goes_on_from_it_without_using_a_retry(
    client: Client, testbed_cluster: Cluster, kubectl: Kubectl, promise: Promise, loss: Loss, reason: str
) -> None:
    """Whatever it answers to SIGTERM: an exit code of its own, that of the signal, or success."""
    jobs = [client.jobs.submit(spec(SAVES % code, retries={"max": 0})) for code in (1, 143, 0)]
    for job in jobs:
        eventually(lambda job=job: lines(job) == ["from 0"])  # type: ignore[misc]
        (pod,) = pod_names(testbed_cluster, job)
        loss(kubectl, pod)
    for job in jobs:
        assert job.wait(HANG_S).status == "COMPLETED", history(job)
        assert lines(job) == ["from 0", "from 1"], history(job)
        assert (job.attempt, again(job)) == (2, [reason]), history(job)
    promise.kept(len(jobs), f"jobs whose pod was ended ({reason}): another attempt goes on from the checkpoint")


@pytest.mark.parametrize("loss", [evict, delete, delete_by_force], ids=["evicted", "deleted", "by force"])
def test_gang_of_which_one_pod_is_ended_is_tried_again_whole(
    client: Client, testbed_cluster: Cluster, kubectl: Kubectl, loss: Loss
) -> None:
    job = client.jobs.submit(spec(TRAINS, learners=2, retries={"max": 0}))
    eventually(lambda: lines(job) == ["up", "up"])
    _, second = pod_names(testbed_cluster, job)
    loss(kubectl, second)
    eventually(lambda: lines(job) == ["up"] * 4)
    for pod in pods(testbed_cluster, job):
        end_command(testbed_cluster, pod)
    assert job.wait(HANG_S).status == "COMPLETED", history(job)
    assert job.attempt == 2, history(job)

"""A real model, trained by learners in pods on two nodes: examples/digits, with the framework library's image of JAX.

Training is deterministic: the same arguments give the same weights to the last bit, on any nodes. So equal weights show
that nothing was lost or done twice (tests/integration/test_digits.py: the same on one machine).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.framework_image import load_framework_image
from tests.testbed.kubernetes.jobs_in_pods import history, pods
from tests.testbed.kubernetes.platform_in_pods import load_helper_image, objects_left, platform_in_pods
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._job import Job

STEPS: Final = 200
EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "digits"
DONE_S: Final = 2 * HANG_S
Say = Callable[[str], None]
Untimed = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def weft_up(testbed_cluster: Cluster, announce: Say, untimed: Untimed) -> Iterator[Platform]:
    with untimed():
        helper = load_helper_image(testbed_cluster, announce)
        jax = load_framework_image(testbed_cluster, "jax", announce)
    images = {"WEFT_KUBERNETES_FRAMEWORK_IMAGES": json.dumps({"jax-0.10": jax})}
    with platform_in_pods(testbed_cluster, helper, name="digits", settings=images) as running:
        yield running


@pytest.fixture(scope="module")
def client(weft_up: Platform) -> Generator[Client]:
    with Client(weft_up.url, weft_up.key) as made:
        yield made
        for job in made.jobs.list():
            if not job.at_rest:
                job.kill()


def submit(client: Client, *, gpus: int, slow_ms: int = 0, every: int = 50) -> Job:
    """``slow_ms``: in each step of the first attempt. ``every``: steps from checkpoint to checkpoint."""
    slow = f"$((WEFT_ATTEMPT == 1 ? {slow_ms} : 0))"
    spec: dict[str, Any] = {
        "name": "digits",
        "framework": {"name": "jax", "version": "0.10"},
        "command": f"exec python train.py --steps {STEPS} --every {every} --slow {slow}",
        "learners": 2,
        "distribution": "jax",
        "placement": "spread",
        "resources": {"cpus": 0.5, "memory": "1GiB", "gpus": gpus},
        "retries": {"backoff": "1s"},
    }
    return client.jobs.submit(spec, code=EXAMPLE)


def nodes_of(cluster: Cluster, job: Job) -> dict[str, str]:
    """Node -> its learner, of those that run."""
    return {pod["spec"]["nodeName"]: pod["metadata"]["labels"]["weft.dev/learner"] for pod in pods(cluster, job)}


def steps_of(job: Job, attempt: int) -> list[int]:
    return [point.step or 0 for point in job.points(name="loss") if point.attempt == attempt]


def weights(job: Job, folder: Path) -> str:
    """Digest of the final weights, as downloaded."""
    assert job.refresh().status == "COMPLETED", history(job)
    job.download(folder)
    (path,) = folder.rglob("weights.npz")
    return sha256(path.read_bytes()).hexdigest()


def in_the_middle(job: Job) -> bool:
    """Also while the training ended early, which the test then shows."""
    return job.at_rest or len(steps_of(job.refresh(), 1)) >= 20


@pytest.fixture(scope="module")
def undisturbed(client: Client, testbed_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run that nothing disturbs, with a learner on each of the two nodes."""
    job = submit(client, gpus=3)  # of four on each node
    eventually(lambda: job.refresh().status in {"PROCESSING", "STORING", "COMPLETED", "FAILED"}, DONE_S)
    assert set(nodes_of(testbed_cluster, job)) == {"node-1", "node-2"}, history(job)
    assert job.wait(DONE_S).status == "COMPLETED", history(job)
    assert steps_of(job, 1) == list(range(1, STEPS + 1))
    _, accuracy = job.metrics("accuracy")
    assert (accuracy[-1] or 0) > 0.9
    assert [line.text for line in job.logs(search="unseen digits are classified correctly")] != []
    eventually(lambda: objects_left(testbed_cluster) == [])
    return weights(job, tmp_path_factory.mktemp("undisturbed"))


def test_digits_job_that_is_halted_on_two_nodes_resumes_with_the_step_after_its_checkpoint(
    client: Client, testbed_cluster: Cluster, undisturbed: str, tmp_path: Path
) -> None:
    job = submit(client, gpus=3, slow_ms=200)
    eventually(lambda: in_the_middle(job), DONE_S)
    assert job.halt().wait(DONE_S).status == "HALTED", history(job)
    before = steps_of(job, 1)
    assert job.resume().wait(DONE_S).attempt == 2, history(job)
    assert before == list(range(1, before[-1] + 1))
    assert steps_of(job, 2) == list(range(before[-1] + 1, STEPS + 1))
    assert weights(job, tmp_path) == undisturbed
    eventually(lambda: objects_left(testbed_cluster) == [])


def test_digits_job_whose_node_is_killed_goes_on_from_its_last_stored_checkpoint(
    client: Client, testbed_cluster: Cluster, undisturbed: str, tmp_path: Path
) -> None:
    job = submit(client, gpus=2, slow_ms=500, every=10)  # both learners fit on one node
    eventually(lambda: job.at_rest or stored_checkpoint(job), DONE_S)
    learners = nodes_of(testbed_cluster, job)
    assert set(learners) == {"node-1", "node-2"}, history(job)
    # Rank 0 alone writes checkpoints: what it had stored is all that is left of them.
    (lost,) = (node for node in testbed_cluster.nodes if learners[node.name] == "worker-0")
    lost.machine.kill()
    try:
        assert job.wait(DONE_S).status == "COMPLETED", history(job)
    finally:
        testbed_cluster.restart_node(lost)
    assert [event.reason for event in job.history() if event.to == "QUEUED"][1:] == ["NodeLost"], history(job)
    resumed = steps_of(job, 2)
    assert resumed[0] > 1
    assert (resumed[0] - 1) % 10 == 0
    assert resumed == list(range(resumed[0], STEPS + 1))
    assert weights(job, tmp_path) == undisturbed


def stored_checkpoint(job: Job) -> bool:
    return job.refresh().document.get("checkpoint") is not None

"""The platform with RabbitMQ for its hints, which is killed while jobs run and one is submitted."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from services.core.runtime.operations_client import read_operations
from tests.testbed.platform import Platform, platform
from tests.testbed.rabbitmq import RabbitMQ
from tests.waiting import HANG_S, eventually, in_thread
from weft import Client
from weft._job import Job

SMALL = {"cpus": 0.5, "memory": "64MiB"}
PATH = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
UNTIL_FILE = 'until [ -e "$JOB_STATE_DIR/go-on" ]; do sleep 0.1; done'


def test_jobs_survive_a_kill_of_rabbitmq_and_hints_are_delivered_afterwards(own_rabbitmq: RabbitMQ) -> None:
    with (
        platform({"WEFT_BROKER_URL": own_rabbitmq.url, "WEFT_NODE_CPUS": "4"}) as weft,
        Client(weft.url, weft.key) as client,
    ):
        eventually(lambda: why_not_ready(weft) == "")
        running = [client.jobs.submit(spec(UNTIL_FILE)) for _ in range(2)]
        for job in running:
            wait_for(job, "PROCESSING")
        jobs_whose_hints_arrive(weft, client)
        assert list((weft.home / "broker").rglob("*.msg")) == [], "no hint is in the folder"

        own_rabbitmq.kill()
        try:
            eventually(lambda: "the broker of WEFT_BROKER_URL is away" in why_not_ready(weft))
            meanwhile = client.jobs.submit(spec("echo done")).wait(HANG_S)
            assert path_of(meanwhile) == PATH
            release_learners(weft, running[0])
            assert path_of(running[0].wait(HANG_S)) == PATH
        finally:
            own_rabbitmq.start()
            in_thread(own_rabbitmq.ready)

        eventually(lambda: why_not_ready(weft) == "")
        later = jobs_whose_hints_arrive(weft, client)
        release_learners(weft, running[1])
        assert path_of(running[1].wait(HANG_S)) == PATH
        assert [path_of(job) for job in later] == [PATH] * len(later)
        assert {job.refresh().attempt for job in (*running, meanwhile, *later)} == {1}
        # Those of the meantime: the api has found out that the broker is away before it counts them.
        eventually(lambda: weft.counter("api", "weft_hints_dropped_total") >= 1)


def jobs_whose_hints_arrive(weft: Platform, client: Client) -> list[Job]:
    """Runs jobs until a hint was delivered: of each submit the api sends one, which may be lost on a busy machine."""
    jobs: list[Job] = []
    before = weft.counter("worker", "weft_hints_delivered_total")

    def delivered() -> bool:
        jobs.append(client.jobs.submit(spec("echo done")).wait(HANG_S))
        return weft.counter("worker", "weft_hints_delivered_total") > before

    eventually(delivered)
    return jobs


def spec(command: str) -> dict[str, Any]:
    return {"name": "life", "command": command, "resources": SMALL, "grace": "2s"}


def path_of(job: Job) -> list[str]:
    return [event.to for event in job.history()]


def release_learners(weft: Platform, job: Job) -> None:
    for learner in (weft.home / "node" / job.id / "1").glob("*/job"):
        (learner / "go-on").touch()


def wait_for(job: Job, status: str) -> None:
    eventually(lambda: job.refresh().status == status)


def why_not_ready(weft: Platform) -> str:
    """The reason that the worker gives for not being ready; empty if it is ready."""
    try:
        answer = read_operations(weft.home.address("worker-ops"), "/readyz", timeout_s=HANG_S, headers=weft.operator)
    except OSError as error:
        return str(error)
    return "" if answer.status == HTTPStatus.OK else answer.body.decode()

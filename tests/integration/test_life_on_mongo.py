"""The platform with its jobs on MongoDB, which is killed while one runs."""

from __future__ import annotations

from tests.testbed.mongo import Mongo
from tests.testbed.platform import platform
from tests.waiting import HANG_S, eventually
from weft import Client

SMALL = {"cpus": 0.5, "memory": "64MiB"}


def test_a_running_job_and_its_platform_outlive_a_kill_of_mongodb(own_mongo: Mongo) -> None:
    with platform({"WEFT_JOB_STORE": f"{own_mongo.uri}weft"}) as weft, Client(weft.url, weft.key) as client:
        command = "echo started; exec sleep 600"
        job = client.jobs.submit({"name": "life", "command": command, "resources": SMALL, "grace": "10s"})
        eventually(lambda: job.refresh().status == "PROCESSING" and list(job.logs()))
        learners = weft.learner_pids(job.id)

        own_mongo.kill()
        own_mongo.start()

        assert job.refresh().status == "PROCESSING"
        assert weft.learner_pids(job.id) == learners
        job.halt()
        assert (job.wait(HANG_S).status, job.attempt) == ("HALTED", 1)
        path = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "HALTING", "HALTED"]
        assert [event.to for event in job.history()] == path
        assert [line.text for line in job.logs()] == ["started"]
        assert list(weft.home.root.glob("*.sqlite")) == []

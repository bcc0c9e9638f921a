"""A real model, trained by two learners that all-reduce their gradients, while services fail.

Training is deterministic: the same arguments give the same weights to the last bit. So equal weights show that nothing
was lost, done twice, or mixed up with another job.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from services.core.domain.usage import USAGE_NAMES
from services.core.runtime.learner_folder import JOB_FOLDER
from services.core.runtime.processes import identify
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._job import Job

STEPS = 300
UNTIL_LET_GO = "until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done"
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
HELD = """\
import os, runpy, time
import weft

report = weft.report


def held(*, step, **values):
    report(step=step, **values)
    while step == 20 and not os.path.exists(os.path.join(os.environ["JOB_STATE_DIR"], "go")):
        time.sleep(0.05)


weft.report = held
runpy.run_path("train.py", run_name="__main__")
"""
"""Trains as train.py does, and goes on after step 20 once it is let go."""
DONE_S = 2 * HANG_S


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    """Room for two gangs of two at once."""
    with platform({"WEFT_NODE_CPUS": "4"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as client:
        yield client


def submit(
    client: Client, *, slow_ms: int = 0, before: str = "", code: Path = EXAMPLE, program: str = "train.py"
) -> Job:
    """``slow_ms``: in each step of the first attempt. ``before``: a command that is run before the training."""
    slow = f"$((WEFT_ATTEMPT == 1 ? {slow_ms} : 0))"
    spec = {
        "name": "digits",
        "framework": {"name": "jax", "version": "0.10"},
        "command": f"{before}exec python {program} --steps {STEPS} --every 50 --slow {slow}",
        "learners": 2,
        "distribution": "jax",
        "resources": {"cpus": 1, "memory": "1GiB"},
    }
    return client.jobs.submit(spec, code=code)


def let_go(platform: Platform, job: Job) -> None:
    for learner in (platform.home / "node" / job.id / "1").glob(f"*/{JOB_FOLDER}"):
        (learner / "go").touch()


def weights(job: Job, folder: Path) -> str:
    """Digest of the final weights, as downloaded."""
    assert job.refresh().status == "COMPLETED", job.message
    job.download(folder)
    (path,) = folder.rglob("weights.npz")
    return sha256(path.read_bytes()).hexdigest()


def in_the_middle(client: Client, job: Job, step: int = 40) -> bool:
    latest = client.jobs.progress(job.id)["latest"]
    return "loss" in latest and latest["loss"]["step"] >= step


@pytest.fixture(scope="module")
def undisturbed(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of an undisturbed run."""
    job = submit(client).wait(DONE_S)
    steps, accuracy = job.metrics("accuracy")
    assert steps[-1] == STEPS
    assert (accuracy[-1] or 0) > 0.95
    return weights(job, tmp_path_factory.mktemp("undisturbed"))


def test_two_jobs_side_by_side_do_not_affect_each_other(
    client: Client, weft_up: Platform, undisturbed: str, tmp_path: Path
) -> None:
    first, second = (submit(client, slow_ms=5, before=f"{UNTIL_LET_GO}; ") for _ in range(2))
    eventually(lambda: {first.refresh().status, second.refresh().status} == {"PROCESSING"}, DONE_S)
    for job in (first, second):
        let_go(weft_up, job)
    for job in (first, second):
        job.wait(DONE_S)
        assert weights(job, tmp_path / job.id) == undisturbed


def test_resumed_job_continues_with_the_step_after_its_checkpoint(
    client: Client, undisturbed: str, tmp_path: Path
) -> None:
    job = submit(client, slow_ms=200)  # it is halted before it ends, also where the machine stalls for long
    eventually(lambda: in_the_middle(client, job), DONE_S)
    assert job.halt().wait(DONE_S).status == "HALTED"
    steps = [point.step or 0 for point in job.points(name="loss")]
    (last_step,) = {line.text.split("step ")[1].split(",")[0] for line in job.logs(search="left after step")}
    assert job.resume().wait(DONE_S).attempt == 2
    resumed = [point.step or 0 for point in job.points(name="loss") if point.attempt == 2]
    assert resumed == list(range(int(last_step) + 1, STEPS + 1))
    assert steps == list(range(1, int(last_step) + 1))
    assert weights(job, tmp_path) == undisturbed


@pytest.mark.parametrize("service", ["guardian", "node"])
def test_killed_service_does_not_disturb_training(
    client: Client, weft_up: Platform, undisturbed: str, tmp_path: Path, service: str
) -> None:
    code = tmp_path / "code"
    shutil.copytree(EXAMPLE, code)
    (code / "held.py").write_text(HELD)
    job = submit(client, code=code, program="held.py")
    eventually(lambda: in_the_middle(client, job, step=10), DONE_S)
    before = weft_up.learner_pids(job.id)
    killed = weft_up.kill(service)
    eventually(lambda: weft_up.again(service, killed))
    assert all(identify(pid) is not None for pid in before.values())
    assert weft_up.learner_pids(job.id) == before
    assert len(before) == 2
    let_go(weft_up, job)
    job.wait(DONE_S)
    assert (job.attempt, weights(job, tmp_path / "results")) == (1, undisturbed)
    usage = job.points(name=USAGE_NAMES)  # numbered with the other points
    for stored in ((*job.points(), *usage), job.logs()):
        seqs = sorted(entry.seq for entry in stored)
        assert seqs == list(range(1, len(seqs) + 1))
    assert [point.step for point in job.points(name="loss")] == list(range(1, STEPS + 1))

"""Many lines, points and acknowledged submits, while every service on their path is killed repeatedly."""

from __future__ import annotations

import itertools
import shlex
import threading
from collections import Counter

import pytest

from tests.chaos.gangs import DONE_S, all_run, folders, kill_helpers, learners, step_failures
from tests.promises import Promise
from tests.testbed.platform import Platform
from tests.waiting import eventually
from weft import Client, WeftError

FLOODS = """
import os, sys, time
place, bursts, each = os.environ["JOB_STATE_DIR"], int(sys.argv[1]), int(sys.argv[2])
for burst in range(bursts):
    while not os.path.exists(f"{place}/burst-{burst}"):
        time.sleep(0.01)
    for step in range(burst * each + 1, (burst + 1) * each + 1):
        print(f'{{"step": {step}, "loss": 1.5}}')
    sys.stdout.flush()
while not os.path.exists(f"{place}/end"):
    time.sleep(0.01)
print("said all")
"""
VICTIMS = ("metrics", "helpers", "etcd", "metrics", "node", "helpers", "metrics", "guardian", "helpers", "api", "lcm")


@pytest.mark.promise("R11")
@pytest.mark.timeout(7200)
def test_lines_and_points_are_stored_once_and_in_order_under_kills(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    total = promise.n(short=20_000, long=1_000_000)
    kills = max(5, total // 5_000) if total > 20_000 else 5
    per_burst = total // kills // 2 // 2
    command = f"exec python3 -c {shlex.quote(FLOODS)} {kills} {per_burst}"
    spec = {"name": "floods", "command": command, "learners": 2, "resources": {"cpus": 0.5, "memory": "256MiB"}}
    job = client.jobs.submit(spec)
    eventually(lambda: all_run(weft_up, [job], 2), DONE_S)
    before = learners(weft_up, job)
    done: Counter[str] = Counter()
    for burst, victim in zip(range(kills), itertools.cycle(VICTIMS), strict=False):
        for folder in folders(weft_up, job):
            (folder / "job" / f"burst-{burst}").touch()
        if victim == "helpers":
            kill_helpers(weft_up, job)
        else:
            killed = weft_up.kill(victim)
            eventually(lambda part=victim, killed_process=killed: weft_up.again(part, killed_process), DONE_S)  # type: ignore[misc]
        done[victim] += 1
        assert len(learners(weft_up, job)) == 2
    assert learners(weft_up, job).keys() == before.keys()
    for folder in folders(weft_up, job):
        (folder / "job" / "end").touch()
    job.wait(DONE_S + total / 1_000)
    assert (job.status, job.attempt, job.message) == ("COMPLETED", 1, "")
    for rank in (0, 1):
        assert not step_failures(job, rank, kills * per_burst, "said all")
    kills_by_part = ", ".join(f"{victim} {count}" for victim, count in done.items())
    promise.kept(4 * kills * per_burst, f"lines and points under {kills} kills ({kills_by_part})")


@pytest.mark.promise("R1")
@pytest.mark.timeout(7200)
def test_acknowledged_submits_survive_kills(weft_up: Platform, client: Client, promise: Promise) -> None:
    count = promise.n(short=120, long=20_000)
    kills = max(3, count // 20) if count > 120 else 3
    spec = {"name": "waits", "command": "true", "resources": {"cpus": 1000, "memory": "64MiB"}}  # never runs
    numbers, acknowledged, failures = itertools.count(), list[str](), list[BaseException]()

    def submit() -> None:
        try:
            while (number := next(numbers)) < count:
                acknowledged.append(
                    submit_until_answered(client, {**spec, "tags": [f"n{number}"]}, f"outlives-{number}")
                )
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failures.append(error)

    users = [threading.Thread(target=submit) for _ in range(4)]
    for user in users:
        user.start()
    for number, victim in zip(range(kills), itertools.cycle(("api", "api", "lcm", "etcd")), strict=False):
        eventually(lambda n=number: len(acknowledged) >= n * count // kills or failures, DONE_S)  # type: ignore[misc]
        killed = weft_up.kill(victim)
        eventually(lambda part=victim, killed_process=killed: weft_up.again(part, killed_process), DONE_S)  # type: ignore[misc]
    for user in users:
        user.join()
    assert not failures
    listed = Counter(job.id for job in client.jobs.list(name="waits"))
    assert set(listed) == set(acknowledged)
    assert max(listed.values()) == 1
    assert len(set(acknowledged)) == count
    for job_id in acknowledged:
        client.jobs.kill(job_id)
    promise.kept(count, f"acknowledged submits under {kills} kills")


def submit_until_answered(client: Client, spec: dict[str, object], key: str) -> str:
    """Submits under this key until there is an answer. Returns the job's id."""
    while True:
        try:
            return client.jobs.submit(spec, idempotency_key=key).id
        except WeftError as error:
            if not error.retryable:
                raise

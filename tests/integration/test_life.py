"""Lives of jobs on the running platform, through the SDK."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.codec import dump
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.status_keys import learner_key
from services.local.commands import PLATFORM
from tests.testbed.platform import Platform
from tests.testbed.second import Second
from tests.waiting import HANG_S, eventually, tries_within, until
from weft import Client, Conflict
from weft._job import Job

SMALL = {"cpus": 0.5, "memory": "64MiB"}
DONE_S = HANG_S


def spec(command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "life", "command": command, "resources": SMALL, "grace": "2s", **fields}


def path_of(job: Job) -> list[str]:
    return [event.to for event in job.history()]


def running(job: Job) -> bool:
    return job.refresh().status == "PROCESSING"


def test_a_job_goes_through_every_status_once_and_leaves_its_result(client: Client, tmp_path: Path) -> None:
    command = 'echo "out $LEARNER_ID"; echo "err" >&2; echo 42 > "$RESULT_DIR/answer"'
    job = client.jobs.submit(spec(command)).wait(DONE_S)
    assert (job.status, job.attempt) == ("COMPLETED", 1)
    assert path_of(job) == ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
    times = [event.time for event in job.history()]
    assert times == sorted(times)
    assert {(line.stream, line.text) for line in job.logs()} == {("stdout", "out 1"), ("stderr", "err")}
    job.download(tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("answer")] == ["42\n"]


def test_guardian_of_one_job_is_a_process_that_ends_when_its_job_is_released(
    client: Client, weft_up: Platform, tmp_path: Path
) -> None:
    job = client.jobs.submit(spec("true")).wait(DONE_S)
    with weft_up.environment():
        guardian = Second(weft_up.home, "guardian", tmp_path / "guardian", {"WEFT_GUARDED_JOB": job.id})
    guardian.start()
    try:
        eventually(lambda: guardian.exit_code is not None)
    finally:
        guardian.stop()
    assert guardian.exit_code == 0, guardian.log


def test_a_follower_gets_every_line_once_and_ends_when_the_job_is_released(client: Client) -> None:
    job = client.jobs.submit(spec("for i in $(seq 2000); do echo line $i; done"))
    lines = list(job.logs(follow=True))
    assert [line.text for line in lines] == [f"line {i}" for i in range(1, 2001)]
    assert [line.seq for line in lines] == list(range(1, 2001))
    assert (job.status, job.at_rest) == ("COMPLETED", True)
    assert job.refresh().at_rest


def test_the_learner_that_failed_first_is_named_and_its_peers_are_ended(client: Client, weft_up: Platform) -> None:
    command = 'if [ "$WEFT_RANK" = 1 ]; then sleep 0.3; exit 3; fi; exec sleep 600'
    job = client.jobs.submit(spec(command, learners=3)).wait(DONE_S)
    assert (job.status, job.reason) == ("FAILED", "ExitCode")
    assert "worker-1" in job.message
    assert "code 3" in job.message
    assert weft_up.processes_of(job.id) == []


def test_a_learner_that_runs_out_of_memory_fails_as_oom_killed(client: Client, weft_up: Platform) -> None:
    isolation = PLATFORM.status(str(weft_up.home.root))["isolation"]
    if "memory" not in isolation["enforced"]:
        assert "not enforced" in isolation["why"]
        return
    job = client.jobs.submit(spec("python3 -c 'x = b\"x\" * (1 << 28)'")).wait(DONE_S)
    assert (job.status, job.reason) == ("FAILED", "OOMKilled")
    assert "it used more than its limit of 64MiB; raise resources.memory" in job.message


def test_explain_names_the_cause_from_the_output_of_the_learner_that_failed(client: Client) -> None:
    failing = """python3 -c 'import pandos_that_is_nowhere'"""
    command = f'if [ "$WEFT_RANK" = 1 ]; then {failing}; else exec sleep 600; fi'
    job = client.jobs.submit(spec(command, learners=2)).wait(HANG_S)
    answer = job.explain()
    assert "ModuleNotFoundError: No module named 'pandos_that_is_nowhere'" in answer["cause"]
    assert "add the line `pandos_that_is_nowhere` to requirements.txt" in answer["hints"][0]


def test_a_failure_is_retried_within_its_budget_and_not_beyond(client: Client) -> None:
    job = client.jobs.submit(spec("exit 7", retries={"max": 2, "backoff": "10ms"})).wait(DONE_S)
    assert (job.status, job.attempt) == ("FAILED", 3)
    once = ["PENDING", "DOWNLOADING", "PROCESSING", "STORING"]
    assert path_of(job) == ["QUEUED", *once, "QUEUED", *once, "QUEUED", *once, "FAILED"]


def test_a_failed_learner_is_started_again_alone_from_its_checkpoint(client: Client, weft_up: Platform) -> None:
    once = 'cd "$CHECKPOINT_DIR"; if [ -e mark ]; then echo again; else echo first; touch mark; exit 3; fi'
    roles = {"worker": {"count": 2, "on_failure": "restart"}}
    command = f'if [ "$WEFT_RANK" = 1 ]; then {once}; else echo alone; fi'
    job = client.jobs.submit(spec(command, roles=roles, retries={"max": 1, "backoff": "10ms"})).wait(DONE_S)
    assert (job.status, job.attempt) == ("COMPLETED", 1)
    assert path_of(job) == ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
    assert sorted((line.rank, line.text) for line in job.logs()) == [(0, "alone"), (1, "again"), (1, "first")]
    assert weft_up.processes_of(job.id) == []


def test_only_the_exit_codes_named_in_retries_are_retried(client: Client) -> None:
    retries = {"max": 5, "backoff": "10ms", "on": ["exit:9"]}
    job = client.jobs.submit(spec('[ "$WEFT_ATTEMPT" = 1 ] && exit 9; exit 8', retries=retries)).wait(DONE_S)
    assert (job.status, job.attempt) == ("FAILED", 2)
    assert "code 8" in job.message


def test_a_killed_job_has_no_process_left_after_a_second(client: Client, weft_up: Platform) -> None:
    # It ignores every signal that it can, and leaves children in sessions of their own.
    command = "trap '' TERM INT; setsid sleep 600 & (setsid sleep 600 &) ; echo up; while :; do sleep 1; done"
    # Without a hint a sweep finds the kill within a second; the promise is about what follows.
    for stopwatch in tries_within(1.0 if weft_up.hints else 2.5):
        job = client.jobs.submit(spec(command, learners=2))
        eventually(lambda: running(job) and len(list(job.logs())) == 2)  # noqa: B023 - in this round only
        assert len(weft_up.processes_of(job.id)) >= 6
        with stopwatch:
            job.kill()
            eventually(lambda: not weft_up.processes_of(job.id))  # noqa: B023 - as above
        job.wait(DONE_S)
        assert (job.refresh().status, path_of(job)[-1]) == ("KILLED", "KILLED")


def test_a_halted_job_resumes_from_its_checkpoint(client: Client) -> None:
    command = """
      n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0)
      trap 'stop=1' TERM
      while [ "$n" -lt 40 ] && [ -z "$stop" ]; do
        sleep 0.05
        [ "$WEFT_ATTEMPT" = 1 ] && [ "$n" = 20 ] && continue  # it does not end before it is halted
        n=$((n + 1)); echo "{\\"step\\": $n, \\"loss\\": 1.5}"
      done
      echo "$n" > "$CHECKPOINT_DIR/n"
      [ -z "$stop" ] || exit 143
    """
    job = client.jobs.submit(spec(command, grace="60s"))
    eventually(lambda: running(job) and client.jobs.progress(job.id)["points"] > 3, DONE_S)
    job.halt().wait(DONE_S)
    assert job.refresh().status == "HALTED"
    last = max(point.step or 0 for point in job.points())
    job.resume().wait(DONE_S)
    assert (job.refresh().status, job.attempt) == ("COMPLETED", 2)
    assert [event for event in path_of(job) if event in {"HALTING", "HALTED", "RESUMED"}] == [
        "HALTING",
        "HALTED",
        "RESUMED",
    ]
    second = [point.step for point in job.points() if point.attempt == 2]
    assert second == list(range(last + 1, 41))


def test_a_completed_job_cannot_be_halted(client: Client) -> None:
    job = client.jobs.submit(spec("true")).wait(DONE_S)
    with pytest.raises(Conflict):
        job.halt()
    assert job.refresh().status == "COMPLETED"


def test_a_job_stopped_at_max_runtime_keeps_its_results(client: Client, tmp_path: Path) -> None:
    command = 'echo partial > "$RESULT_DIR/answer"; exec sleep 600'
    job = client.jobs.submit(spec(command, max_runtime="6s")).wait(DONE_S)
    assert (job.status, job.reason) == ("FAILED", "DeadlineExceeded")
    job.download(tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("answer")] == ["partial\n"]


def test_a_gang_that_does_not_fit_waits_as_a_whole_and_says_why(client: Client) -> None:
    first = client.jobs.submit(spec("exec sleep 600", resources={"cpus": 3, "memory": "64MiB"}))
    eventually(lambda: running(first), DONE_S)
    second = client.jobs.submit(spec("true", learners=2, resources={"cpus": 1, "memory": "64MiB"}))
    eventually(lambda: second.explain()["pending_reason"] == "WaitingForCapacity", DONE_S)
    third = client.jobs.submit(spec("true", max_pending="1s")).wait(DONE_S)
    assert (third.status, third.reason) == ("FAILED", "Unschedulable")
    assert second.refresh().status == "QUEUED"
    first.kill()
    assert second.wait(DONE_S).status == "COMPLETED"


def warned_of(client: Client, document: dict[str, Any]) -> Job:
    """Submits a job. There is no warning where the dispatcher did not answer within its second."""

    def submitted() -> list[Job]:
        job = client.jobs.submit(document)
        if not job.warnings:
            job.delete(kill=True)
        return [job] if job.warnings else []

    [job] = eventually(submitted)
    return job


def test_a_job_larger_than_the_cluster_is_accepted_with_a_warning_and_blocks_no_other(client: Client) -> None:
    huge = warned_of(client, spec("true", learners=500))
    assert client.jobs.submit(spec("true")).wait(DONE_S).status == "COMPLETED"
    eventually(lambda: huge.explain()["pending_reason"] == "TooLargeForCluster")
    huge.halt()
    assert huge.refresh().status == "HALTED"
    huge.kill()
    assert huge.refresh().status == "KILLED"


def test_roles_run_their_own_commands_and_the_deciding_role_ends_the_job(client: Client) -> None:
    roles = {
        "ps": {"count": 1, "command": "exec sleep 600"},
        "chief": {"count": 1, "decides": True, "command": "echo chief $WEFT_RANK of $WEFT_WORLD_SIZE"},
    }
    job = client.jobs.submit(spec("true", roles=roles)).wait(DONE_S)
    assert job.status == "COMPLETED"
    assert [line.text for line in job.logs()] == ["chief 1 of 2"]


def test_learners_see_nothing_of_the_machine_or_of_each_other(client: Client, weft_up: Platform) -> None:
    command = f"env; id -u; ls {weft_up.home.root}/secrets {weft_up.home.root}/objects 2>&1 || true"
    job = client.jobs.submit(spec(command)).wait(DONE_S)
    text = "\n".join(line.text for line in job.logs())
    assert weft_up.key not in text
    assert "WEFT_HOME" not in text
    assert text.count("Permission denied") + text.count("No such file or directory") == 2  # depends on the isolation


def test_a_running_job_cannot_be_deleted_without_kill(client: Client) -> None:
    job = client.jobs.submit(spec("exec sleep 600"))
    with pytest.raises(Conflict):
        job.delete()
    job.delete(kill=True)
    assert job.id not in [listed.id for listed in client.jobs.list()]


async def test_forged_exit_in_etcd_does_not_end_a_running_job(client: Client, weft_up: Platform) -> None:
    waits = "until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done; exit 3"
    job = await asyncio.to_thread(client.jobs.submit, spec(waits))
    await until(lambda: asyncio.to_thread(running, job))
    before = weft_up.counter("guardian", "weft_guardian_reports_contradicted_total")
    forged = LearnerStatus(
        name="worker-0", role="worker", rank=0, attempt=1, seq=10**9, phase=Phase.STORED, exit=Exit(time=5, code=0)
    )
    status = EtcdStatusStore(weft_up.home.address("etcd"), timeout_s=HANG_S)
    try:
        await status.put(learner_key(job.id, "worker-0"), json.dumps(dump(forged)))
    finally:
        await status.close()

    def contradicted() -> bool:
        return weft_up.counter("guardian", "weft_guardian_reports_contradicted_total") > before

    await until(lambda: asyncio.to_thread(contradicted))
    assert await asyncio.to_thread(running, job)
    (weft_up.home / "node" / job.id / "1" / "worker-0" / "job" / "end").touch()
    await asyncio.to_thread(job.wait, DONE_S)
    assert (job.status, job.reason) == ("FAILED", "ExitCode")
    assert "code 3" in job.message

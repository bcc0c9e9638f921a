"""The explanation of a job: its state in one sentence, and commands for its owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.api.clients import Waiting
from services.api.explain import explain
from services.core.domain.job import PLATFORM, Attempt, Job, State, Verdict
from services.core.domain.status import Desired, Status

ID = "j01m7z92xb6n2cp2729b7cb"
NOW = 1_800_000_000_000


def job(status: Status, *, learners: int = 1, number: int = 1, **more: Any) -> Job:
    state = State(status=status, since=NOW - 65_000, **{k: more.pop(k) for k in ("reason", "message") if k in more})
    made = Job(
        id=ID,
        tenant="t",
        user="u",
        spec={"name": "x", "command": "true", "learners": learners},
        code_digest="",
        idem=ID,
        idem_digest="",
        state=state,
        created=NOW - 90_000,
        updated=NOW,
        observed_generation=1,
        attempt=Attempt(number=number, started=NOW - 80_000),
    )
    return replace(made, **more)


def explained(document: Job) -> tuple[str, list[str]]:
    answer = explain(document, None, now=NOW)
    return answer.summary, answer.hints


def test_explanation_of_a_completed_job_has_its_duration_and_the_download_command() -> None:
    summary, hints = explained(job(Status.COMPLETED, number=3, released=NOW, finished=NOW - 65_000))
    assert summary == "is COMPLETED after 15 s in attempt 3"
    assert hints == [f"`weft download {ID}` fetches its results", f"`weft metrics {ID}` shows its curves"]


def test_explanation_of_a_running_job_has_its_duration() -> None:
    assert explained(job(Status.DOWNLOADING))[0] == "is DOWNLOADING for 1 min 5 s"


@pytest.mark.parametrize(("learners", "which"), [(1, ""), (4, " --rank 2")])
def test_explanation_of_a_failed_job_names_the_command_for_the_learners_last_lines(learners: int, which: str) -> None:
    verdict = Verdict(to=Status.FAILED, reason="ExitCode", message="m", time=NOW, learner="worker-2", exit_code=2)
    failed = job(Status.FAILED, learners=learners, reason="ExitCode", message="it ended", verdict=verdict, released=NOW)
    assert explained(failed) == (
        "is FAILED after 15 s: it ended",
        [f"`weft logs {ID}{which} --tail 50` shows its last lines"],
    )


@pytest.mark.parametrize(
    ("resources", "field", "twice"),
    [
        ({"resources": {"memory": "512MiB"}}, "resources.memory", "1GiB"),
        ({"learners": None, "roles": {"worker": {"count": 1, "memory": "3GB"}}}, "roles.worker.memory", "6GB"),
    ],
)
def test_explanation_of_a_job_that_ran_out_of_memory_says_what_to_write_in_the_spec(
    resources: dict[str, Any], field: str, twice: str
) -> None:
    verdict = Verdict(to=Status.FAILED, reason="OOMKilled", message="m", time=NOW, learner="worker-0", signal=9)
    failed = job(Status.FAILED, reason="OOMKilled", message="m", verdict=verdict, released=NOW)
    spec = {name: value for name, value in {**failed.spec, **resources}.items() if value is not None}
    assert explained(replace(failed, spec=spec))[1] == [
        f"raise `{field}` in the spec; `weft clone {ID} --set {field}={twice}` submits it again"
    ]


def test_explanation_of_a_job_that_ran_too_long_suggests_twice_its_own_time() -> None:
    """It suggested 12h, whatever the job had."""
    failed = job(Status.FAILED, reason="DeadlineExceeded", message="m", released=NOW)
    hints = explained(replace(failed, spec={**failed.spec, "max_runtime": "45m"}))[1]
    assert hints == [f"raise `max_runtime`; `weft clone {ID} --set max_runtime=1h30m` submits it again"]


@pytest.mark.parametrize(("actor", "name"), [("user:eve", "eve"), ("", "its owner")])
def test_explanation_of_a_killed_job_names_the_user_who_killed_it(actor: str, name: str) -> None:
    killed = job(Status.KILLED, desired=Desired.KILL, desired_by=actor, released=NOW)
    assert explained(killed)[0].endswith(f": killed by {name}")


def test_explanation_of_a_halted_job_names_the_resume_command() -> None:
    assert explained(job(Status.HALTED, released=NOW))[1] == [f"`weft resume {ID}` continues from its checkpoints"]


def test_explanation_promises_to_queue_a_job_again_only_while_its_halt_is_the_platforms() -> None:
    halted = job(Status.HALTED, reason="PlatformStopped", released=NOW, desired=Desired.HALT, desired_by=PLATFORM)
    resume = f"`weft resume {ID}` continues from its checkpoints"
    assert explained(halted)[1] == ["the next `weft up` queues it again by itself", resume]
    assert explained(replace(halted, desired_by="user:ada"))[1] == [resume]


def test_explanation_of_a_job_that_waits_out_an_outage_says_that_nothing_is_wrong_with_the_job() -> None:
    waiting = Waiting(job_id=ID, pending_reason="BackOff", message="it is tried again in 40 s", position=1)
    queued = job(Status.QUEUED, reason="PackageIndexUnavailable", message="the index does not answer; trying again")
    answer = explain(queued, waiting, now=NOW)
    assert answer.summary == ("waits at place 1: the index does not answer; trying again (it is tried again in 40 s)")
    assert (answer.reason, answer.pending_reason) == ("PackageIndexUnavailable", "BackOff")
    releasing = Waiting(job_id=ID, pending_reason="Releasing", message="it gives back its hardware", position=1)
    assert "the index does not answer" in explain(queued, releasing, now=NOW).summary
    assert answer.hints == ["nothing of the job is wrong: it continues by itself once the package index answers"]


def test_explanation_names_the_bound_that_left_out_lines_and_its_setting() -> None:
    answer = explain(job(Status.PROCESSING), None, now=NOW, left_out={"log_bytes": 12_000, "series": 1})
    assert answer.hints[-2:] == [
        f"{what} are beyond the job's limit, and left out; its stored files have them"
        for what in (
            "12,000 log lines (WEFT_METRICS_JOB_LOG_BYTES)",
            "1 points of further curves (WEFT_METRICS_JOB_SERIES)",
        )
    ]

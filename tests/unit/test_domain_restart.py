"""Which learner is started again alone, and when its gang does without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.core.domain.job import Attempt, Job, Rerun, State, Verdict
from services.core.domain.learner import Exit, LearnerStatus, job_status
from services.core.domain.outages import Outage
from services.core.domain.restart import (
    as_running,
    back_off_ms,
    is_restartable,
    late_rerun,
    next_restart,
    restarted,
    survivors,
)
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Desired, Phase, Status
from services.core.domain.verdict import decide_verdict, verdict_of_lost_node
from tests.documents import NOW, a_job

LOST = Exit(time=NOW, lost=True)
BAD = Exit(time=NOW, code=3)
GOOD = Exit(time=NOW, code=0)


def a_spec(on_failure: str = "restart", count: int = 2, least: int | None = None, **more: Any) -> JobSpec:
    role = {"count": count, "on_failure": on_failure} | ({} if least is None else {"min": least})
    return parse_spec({"name": "n", "command": "true", "roles": {"worker": role}, "retries": {"max": 1}, **more})


def a_running_job(**reruns: Rerun) -> Job:
    attempt = Attempt(number=1, admitted=NOW, started=NOW, committed=True, reruns=_named(reruns))
    state = State(status=Status.PROCESSING, since=NOW)
    return replace(a_job(at=NOW), attempt=attempt, state=state)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in values.items()}


def a_rerun(run: int = 2, *, not_before: int = NOW) -> Rerun:
    return Rerun(run=run, time=NOW, not_before=not_before, reason="ExitCode", message="worker-1 exited with code 3")


def gang(**ends: Exit | str | None) -> dict[str, LearnerStatus]:
    """Learners that run (None), have ended and stored (an Exit), or whose helper failed (its reason)."""
    return {
        name: LearnerStatus(
            name=name,
            role="worker",
            rank=int(name[-1]),
            attempt=1,
            seq=1,
            phase=Phase.PROCESSING if end is None else Phase.STORED,
            times={"DOWNLOADING": NOW} | ({} if isinstance(end, str) else {"PROCESSING": NOW}),
            exit=end if isinstance(end, Exit) else None,
            reason=end if isinstance(end, str) else "",
        )
        for name, end in _named(ends).items()
    }


def on_lost_node(learners: dict[str, LearnerStatus], name: str) -> dict[str, LearnerStatus]:
    return learners | {name: replace(learners[name], exit=LOST, reason="NodeLost")}


@pytest.mark.parametrize(
    ("spec", "end", "alone"),
    [
        (a_spec("restart"), BAD, True),
        (a_spec("restart", retries={"max": 0}), BAD, False),
        (a_spec("restart", retries={"max": 0}), LOST, True),
        (a_spec("restart"), "DataNotFound", True),
        (a_spec("restart", retries={"max": 0}), Outage.NO_SPACE.value, True),
        (a_spec("restart-gang"), BAD, False),
        (a_spec("restart-gang"), LOST, False),
        (a_spec("restart-gang", least=1), BAD, False),
        (a_spec("restart-gang", least=1), LOST, True),
        (a_spec("ignore", least=1), LOST, False),
        (a_spec("ignore"), BAD, False),
    ],
)
def test_learner_that_is_started_again_alone(spec: JobSpec, end: Exit | str, *, alone: bool) -> None:
    job, learners = a_running_job(), gang(worker_0=None, worker_1=end)
    assert is_restartable(job, spec, learners["worker-1"]) is alone
    restart = next_restart(job, spec, learners, now=NOW)
    assert (restart is not None) is alone
    verdict = decide_verdict(job, spec, learners, now=NOW)
    goes_on = alone or spec.roles["worker"].on_failure == "ignore"
    assert (verdict is None) is goes_on


def test_learner_on_a_machine_that_is_lost_may_still_run_and_is_not_started_again() -> None:
    learners = on_lost_node(gang(worker_0=None, worker_1=None), "worker-1")
    for spec, goes_on in ((a_spec("restart"), False), (a_spec("restart", least=1), True), (a_spec(least=2), False)):
        assert next_restart(a_running_job(), spec, learners, now=NOW) is None
        verdict = decide_verdict(a_running_job(), spec, learners, now=NOW)
        assert (verdict is None) is goes_on
        assert verdict is None or (verdict.to, verdict.reason, verdict.budgeted) == (Status.QUEUED, "NodeLost", False)


@pytest.mark.parametrize("retries", [{"max": 0}, {"max": 1}])
def test_failure_of_a_sibling_of_a_learner_whose_node_is_lost_ends_no_job_and_uses_no_retry(
    retries: dict[str, int],
) -> None:
    job, learners = a_running_job(), gang(worker_0=None, worker_1=BAD)
    verdict = decide_verdict(job, a_spec("restart-gang", retries=retries), learners, now=NOW)
    assert verdict is not None
    assert (verdict.learner, verdict.budgeted) == ("worker-1", True)
    assert verdict_of_lost_node(job, verdict, learners, now=NOW) is None
    replaced = verdict_of_lost_node(job, verdict, on_lost_node(learners, "worker-0"), now=NOW)
    assert replaced is not None
    assert (replaced.to, replaced.reason, replaced.budgeted) == (Status.QUEUED, "NodeLost", False)
    assert "worker-1 failed after it (ExitCode)" in replaced.message


def test_verdict_stays_where_the_node_of_the_failed_learner_is_lost_later_or_the_job_is_to_end() -> None:
    job, learners = a_running_job(), gang(worker_0=None, worker_1=BAD)
    verdict = decide_verdict(job, a_spec("restart-gang", retries={"max": 0}), learners, now=NOW)
    assert verdict is not None
    assert verdict_of_lost_node(job, verdict, on_lost_node(learners, "worker-1"), now=NOW) is None
    for desired in (Desired.KILL, Desired.HALT):
        ending = replace(job, desired=desired)
        assert verdict_of_lost_node(ending, verdict, on_lost_node(learners, "worker-0"), now=NOW) is None


def test_lost_members_below_min_end_the_attempt_and_none_is_started_again() -> None:
    spec, learners = a_spec("restart-gang", count=3, least=2), gang(worker_0=None, worker_1=LOST, worker_2=LOST)
    assert next_restart(a_running_job(), spec, learners, now=NOW) is None
    verdict = decide_verdict(a_running_job(), spec, learners, now=NOW)
    assert verdict is not None
    assert verdict.to is Status.QUEUED


def test_first_failure_is_first_and_only_after_its_results_are_stored() -> None:
    spec, job = a_spec(retries={"max": 9}), a_running_job()
    learners = gang(worker_0=replace(BAD, time=NOW + 5), worker_1=BAD)
    restart = next_restart(job, spec, learners, now=NOW + 5)
    assert restart is not None
    assert (restart.learner, restart.reason, restart.budgeted) == ("worker-1", "ExitCode", True)
    storing = {name: replace(learner, phase=Phase.STORING) for name, learner in learners.items()}
    assert next_restart(job, spec, storing, now=NOW + 5) is None
    late = next_restart(job, spec, storing, now=NOW + spec.store_timeout)
    assert late is not None
    assert late.learner == "worker-1"


def test_no_learner_is_started_again_for_a_job_that_is_to_end_or_never_ran() -> None:
    spec, learners, job = a_spec(), gang(worker_0=None, worker_1=BAD), a_running_job()
    assert next_restart(replace(job, desired=Desired.HALT), spec, learners, now=NOW) is None
    never = replace(job, attempt=replace(job.attempt, started=None))
    assert next_restart(never, spec, learners, now=NOW) is None


def test_decision_counts_and_waits() -> None:
    spec, job = a_spec(retries={"max": 5, "backoff": "10s"}), a_running_job()
    restart = next_restart(job, spec, gang(worker_0=None, worker_1=BAD), now=NOW)
    assert restart is not None
    once = restarted(job, spec, restart, now=NOW)
    twice = restarted(once, spec, restart, now=NOW)
    assert (once.counters.retries, once.attempt.run_of("worker-1"), once.attempt.run_of("worker-0")) == (1, 2, 1)
    assert once.attempt.reruns["worker-1"].not_before == NOW + 10_000
    assert (twice.counters.retries, twice.attempt.reruns["worker-1"].not_before) == (2, NOW + 20_000)
    assert "worker-1 alone is started again (retry 1 of 5)" in once.state.message
    lost = next_restart(job, spec, gang(worker_0=None, worker_1=LOST), now=NOW)
    assert lost is not None
    free = restarted(job, spec, lost, now=NOW)
    assert (free.counters.retries, free.attempt.reruns["worker-1"].not_before) == (0, NOW + 1_000)
    decided = replace(job, verdict=Verdict(to=Status.FAILED, reason="", message="", time=NOW))
    assert restarted(decided, spec, restart, now=NOW) == decided


def test_back_off_doubles_up_to_its_most_unless_its_owner_wants_more() -> None:
    assert [back_off_ms(1_000, times, 10_000) for times in (1, 2, 4, 5, 99)] == [1_000, 2_000, 8_000, 10_000, 10_000]
    assert back_off_ms(60_000, 3, 10_000) == 60_000


def test_learner_that_is_started_again_survives_once_it_runs() -> None:
    spec, job = a_spec(count=3, least=1), a_running_job(worker_1=a_rerun())
    # worker-2 has not reported, and is in its first run
    assert survivors(job, spec, gang(worker_0=None)) == {"worker": 2}
    assert survivors(job, spec, gang(worker_0=BAD, worker_1=None)) == {"worker": 2}
    waiting = gang(worker_1=None)
    waiting = {"worker-1": replace(waiting["worker-1"], phase=Phase.READY)}
    assert survivors(job, spec, waiting) == {"worker": 2}


def test_gang_that_needs_a_learner_does_not_wait_for_ever_for_its_restart() -> None:
    job = a_running_job(worker_1=a_rerun(not_before=NOW + 100))
    for spec, expected in ((a_spec(), "worker-1"), (a_spec(least=1), None), (a_spec(least=2), "worker-1")):
        assert late_rerun(job, spec, gang(worker_0=None), now=NOW + 1_101, timeout_ms=1_000) == expected
        assert late_rerun(job, spec, gang(worker_0=None), now=NOW + 1_100, timeout_ms=1_000) is None
        hopeless = late_rerun(job, spec, gang(worker_0=None), now=NOW, timeout_ms=1_000, hopeless={"worker-1"})
        assert hopeless == expected
        assert late_rerun(job, spec, gang(worker_0=None, worker_1=None), now=NOW + 9_999, timeout_ms=1) is None
        assert late_rerun(job, spec, gang(worker_0=None, worker_1=BAD), now=NOW + 9_999, timeout_ms=1) is None


def test_job_does_not_store_while_its_only_learner_is_started_again() -> None:
    job, learners = a_running_job(), gang(worker_0=BAD)
    assert job_status(learners.values(), 1) is Status.STORING
    assert job_status(as_running(job, a_spec(count=1), learners).values(), 1) is Status.PROCESSING
    assert as_running(job, a_spec("restart-gang", count=1), learners) == learners
    never = gang(worker_0="DataNotFound")
    (shown,) = as_running(job, a_spec(count=1), never).values()
    assert (shown.phase, shown.reason) == (Phase.DOWNLOADING, "")


def test_role_with_min_has_finished_when_enough_succeeded_and_the_others_are_lost() -> None:
    spec, job = a_spec("restart-gang", count=3, least=2), a_running_job()

    def verdict(**ends: Exit | None) -> Status | None:
        decided = decide_verdict(job, spec, on_lost_node(gang(worker_2=None, **ends), "worker-2"), now=NOW)
        return decided.to if decided is not None else None

    assert verdict(worker_0=GOOD, worker_1=GOOD) is Status.COMPLETED
    assert verdict(worker_0=GOOD, worker_1=None) is None
    own_fault = gang(worker_0=GOOD, worker_1=GOOD, worker_2=BAD)
    failure = decide_verdict(job, spec, own_fault, now=NOW)
    assert failure is not None
    assert (failure.to, failure.reason) == (Status.QUEUED, "ExitCode")
    rejoining = a_running_job(worker_2=a_rerun())
    assert decide_verdict(rejoining, spec, gang(worker_0=GOOD, worker_1=GOOD, worker_2=None), now=NOW) is None


def test_helper_that_fails_in_a_later_run_does_not_end_the_attempt() -> None:
    spec, job = a_spec(count=1, retries={"max": 3}), a_running_job(worker_0=a_rerun())
    assert decide_verdict(job, spec, gang(worker_0="DataNotFound"), now=NOW) is None

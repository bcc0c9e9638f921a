"""The job's status and verdict, decided from the states of its learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.failure import describe_failure
from services.core.domain.job import Counters, Job
from services.core.domain.learner import (
    Exit,
    LearnerStatus,
    job_status,
    learner_name,
    step_times,
)
from services.core.domain.outages import Outage, is_outage
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import PHASE_ORDER, Desired, Phase, Status
from services.core.domain.units import format_bytes
from services.core.domain.verdict import decide_verdict
from tests.documents import NOW, a_job

OK = Exit(time=NOW, code=0)
WORKERS = {"worker": {"count": 2}}
IGNORED = {"worker": {"count": 2, "on_failure": "ignore"}}
CHIEF = {"chief": {"count": 1, "decides": True}, "worker": {"count": 2}}
LOOSE_CHIEF = {"chief": {"count": 1, "decides": True, "on_failure": "ignore"}, "worker": {"count": 1}}
SERVER = {"ps": {"count": 1}, "worker": {"count": 2, "decides": True, "on_failure": "ignore"}}
MIXED = {"chief": {"count": 1}, "worker": {"count": 1, "on_failure": "ignore"}}


def failed(code: int = 1, *, at: int = NOW, **more: Any) -> Exit:
    return Exit(time=at, code=None if more.get("lost") or more.get("signal") else code, **more)


def stopped(cause: str = "halt", code: int = 143) -> Exit:
    return Exit(time=NOW, code=code, stop_cause=cause)


def a_spec(roles: dict[str, Any] = WORKERS, **more: Any) -> JobSpec:
    return parse_spec({"name": "n", "command": "true", "roles": roles, **more})


def learners(spec: JobSpec, **ends: Exit | str | None) -> dict[str, LearnerStatus]:
    """The reports of some learners, e.g. ``worker_0=...``: an Exit, the reason of a helper's failure, or None: it runs.

    Of learners that are not named there is no report.
    """
    names = [(name, index) for name, role in spec.roles.items() for index in range(role.count)]
    reports: dict[str, LearnerStatus] = {}
    for rank, (role, index) in enumerate(names):
        key = f"{role}_{index}"
        if key in ends:
            end = ends[key]
            reports[learner_name(role, index)] = LearnerStatus(
                name=learner_name(role, index),
                role=role,
                rank=rank,
                attempt=1,
                seq=1,
                phase=Phase.PROCESSING,
                exit=end if isinstance(end, Exit) else None,
                reason=end if isinstance(end, str) else "",
            )
    return reports


RUN, HALT, KILL = Desired.RUN, Desired.HALT, Desired.KILL
W = Status

VERDICTS: list[tuple[str, dict[str, Any], Desired, dict[str, Exit | str | None], Status | None]] = [
    ("no learner has reported yet", WORKERS, RUN, {}, None),
    ("all run", WORKERS, RUN, {"worker_0": None, "worker_1": None}, None),
    ("one of two has succeeded", WORKERS, RUN, {"worker_0": OK, "worker_1": None}, None),
    ("one has succeeded, the other has not reported", WORKERS, RUN, {"worker_0": OK}, None),
    ("all have succeeded", WORKERS, RUN, {"worker_0": OK, "worker_1": OK}, W.COMPLETED),
    ("one has failed", WORKERS, RUN, {"worker_0": failed(), "worker_1": None}, W.FAILED),
    ("one has failed after the other succeeded", WORKERS, RUN, {"worker_0": OK, "worker_1": failed()}, W.FAILED),
    ("one was killed by a signal", WORKERS, RUN, {"worker_0": failed(signal=9)}, W.FAILED),
    ("one was lost", WORKERS, RUN, {"worker_0": failed(lost=True)}, W.QUEUED),
    ("one exited with 0 but is lost", WORKERS, RUN, {"worker_0": Exit(time=1, code=0, lost=True)}, W.QUEUED),
    ("a helper failed before the process started", WORKERS, RUN, {"worker_0": "DataStoreDenied"}, W.FAILED),
    # kill > success > failure > halt > run
    ("killed while all run", WORKERS, KILL, {"worker_0": None}, W.KILLED),
    ("killed after all have succeeded", WORKERS, KILL, {"worker_0": OK, "worker_1": OK}, W.KILLED),
    ("killed before any learner has reported", WORKERS, KILL, {}, W.KILLED),
    ("halting, all run", WORKERS, HALT, {"worker_0": None, "worker_1": None}, None),
    ("halting, one still runs", WORKERS, HALT, {"worker_0": stopped(), "worker_1": None}, None),
    ("halting, all were stopped", WORKERS, HALT, {"worker_0": stopped(), "worker_1": stopped()}, W.HALTED),
    (
        "halting, all exited with 0 after the stop",
        WORKERS,
        HALT,
        {"worker_0": stopped(code=0), "worker_1": stopped(code=0)},
        W.HALTED,
    ),
    ("halting, one had succeeded before", WORKERS, HALT, {"worker_0": OK, "worker_1": stopped()}, W.HALTED),
    ("halting, all had succeeded before", WORKERS, HALT, {"worker_0": OK, "worker_1": OK}, W.COMPLETED),
    ("halting, one had failed before", WORKERS, HALT, {"worker_0": failed(), "worker_1": stopped()}, W.FAILED),
    ("halting, one is lost", WORKERS, HALT, {"worker_0": failed(lost=True), "worker_1": None}, None),
    (
        "halting, one was lost, the other stopped",
        WORKERS,
        HALT,
        {"worker_0": failed(lost=True), "worker_1": stopped()},
        W.HALTED,
    ),
    (
        "halting, a learner whose failure is ignored had failed",
        IGNORED,
        HALT,
        {"worker_0": failed(), "worker_1": stopped()},
        W.HALTED,
    ),
    (
        "halting, the helper of a learner whose failure is ignored had failed",
        IGNORED,
        HALT,
        {"worker_0": "CodeInvalid", "worker_1": stopped()},
        W.HALTED,
    ),
    ("a learner that was stopped because of a peer is no reason", WORKERS, RUN, {"worker_0": stopped("peer")}, None),
    # deciding roles
    (
        "the chief has succeeded, workers go on",
        CHIEF,
        RUN,
        {"chief_0": OK, "worker_0": None, "worker_1": None},
        W.COMPLETED,
    ),
    ("workers have succeeded, the chief goes on", CHIEF, RUN, {"chief_0": None, "worker_0": OK, "worker_1": OK}, None),
    (
        "the chief has succeeded, then a worker failed",
        CHIEF,
        RUN,
        {"chief_0": OK, "worker_0": failed(), "worker_1": None},
        W.COMPLETED,
    ),
    (
        "the chief has succeeded, then a worker was lost",
        CHIEF,
        RUN,
        {"chief_0": OK, "worker_0": failed(lost=True), "worker_1": None},
        W.COMPLETED,
    ),
    ("a worker fails under a chief", CHIEF, RUN, {"chief_0": None, "worker_0": failed()}, W.FAILED),
    (
        "a chief whose failure is ignored failed, no other role decides",
        LOOSE_CHIEF,
        RUN,
        {"chief_0": failed(), "worker_0": None},
        W.FAILED,
    ),
    # roles whose failure is ignored
    ("one ignored failure, the other runs", IGNORED, RUN, {"worker_0": failed(), "worker_1": None}, None),
    ("one ignored failure, the other unknown", IGNORED, RUN, {"worker_0": failed()}, None),
    ("one ignored failure, the other succeeded", IGNORED, RUN, {"worker_0": failed(), "worker_1": OK}, W.COMPLETED),
    (
        "one ignored helper failure, the other succeeded",
        IGNORED,
        RUN,
        {"worker_0": "CodeInvalid", "worker_1": OK},
        W.COMPLETED,
    ),
    ("all ignored have failed", IGNORED, RUN, {"worker_0": failed(), "worker_1": failed(lost=True)}, W.FAILED),
    ("one ignored succeeded, the other runs", IGNORED, RUN, {"worker_0": OK, "worker_1": None}, None),
    (
        "the parameter server serves, a worker failed",
        SERVER,
        RUN,
        {"ps_0": None, "worker_0": failed(), "worker_1": None},
        None,
    ),
    (
        "the parameter server serves for ever, every worker failed",
        SERVER,
        RUN,
        {"ps_0": None, "worker_0": failed(), "worker_1": failed()},
        W.FAILED,
    ),
    (
        "the parameter server serves for ever, the last worker succeeded",
        SERVER,
        RUN,
        {"ps_0": None, "worker_0": failed(), "worker_1": OK},
        W.COMPLETED,
    ),
    ("the parameter server failed", SERVER, RUN, {"ps_0": failed(), "worker_0": None}, W.FAILED),
    ("the counted learner succeeded, the ignored one runs", MIXED, RUN, {"chief_0": OK, "worker_0": None}, None),
    (
        "the counted learner succeeded, the ignored one failed",
        MIXED,
        RUN,
        {"chief_0": OK, "worker_0": failed()},
        W.COMPLETED,
    ),
    ("the ignored learner succeeded, the counted one runs", MIXED, RUN, {"chief_0": None, "worker_0": OK}, None),
]


@pytest.mark.parametrize(
    ("first", "to"),
    [("CodeInvalid", W.FAILED), (failed(lost=True), W.QUEUED), (None, None)],
    ids=["helper failed", "lost", "running"],
)
def test_a_failure_before_the_gang_started_ends_the_attempt_even_where_it_is_ignored(
    first: Exit | str | None, to: Status | None
) -> None:
    """Otherwise the other learners would wait for the start for ever."""
    spec = a_spec(IGNORED)
    reports = learners(spec, worker_0=first, worker_1=None)
    ready = {name: replace(learner, phase=Phase.READY) for name, learner in reports.items()}
    verdict = decide_verdict(a_job(), spec, ready, now=NOW)
    assert (verdict and verdict.to) == to
    begun = ready | {"worker-1": replace(ready["worker-1"], phase=Phase.PROCESSING)}
    assert decide_verdict(a_job(), spec, begun, now=NOW) is None


@pytest.mark.parametrize(
    ("roles", "desired", "ends", "to"), [case[1:] for case in VERDICTS], ids=[case[0] for case in VERDICTS]
)
def test_the_verdict_is(
    roles: dict[str, Any], desired: Desired, ends: dict[str, Exit | str | None], to: Status | None
) -> None:
    spec = a_spec(roles)
    verdict = decide_verdict(a_job(desired=desired), spec, learners(spec, **ends), now=NOW + 5)
    assert (verdict and verdict.to) == to
    assert verdict is None or verdict.time == NOW + 5


ENDS: st.SearchStrategy[Exit | str] = st.sampled_from(
    [OK, failed(), failed(signal=9), failed(lost=True), failed(oom=True), stopped(), stopped(code=0), "CodeInvalid"]
)


@given(st.sampled_from([WORKERS, IGNORED, CHIEF, LOOSE_CHIEF, SERVER, MIXED]), st.sampled_from(Desired), st.data())
def test_an_attempt_whose_learners_have_all_ended_has_a_verdict(
    roles: dict[str, Any], desired: Desired, data: st.DataObject
) -> None:
    spec = a_spec(roles)
    names = [f"{name}_{index}" for name, role in spec.roles.items() for index in range(role.count)]
    ends = {name: data.draw(ENDS, label=name) for name in names}
    stopped_by_platform = any(isinstance(end, Exit) and end.stop_cause for end in ends.values())
    if stopped_by_platform and desired is RUN:
        return  # the platform stops learners after a verdict only
    assert decide_verdict(a_job(desired=desired), spec, learners(spec, **ends), now=NOW) is not None


# --- first cause, retries ------------------------------------------------------


def verdict_of(job: Job, spec: JobSpec, **ends: Exit | str | None) -> tuple[Status, str, str]:
    verdict = decide_verdict(job, spec, learners(spec, **ends), now=NOW)
    assert verdict is not None
    return verdict.to, verdict.learner, verdict.reason


def test_the_learner_that_failed_first_by_itself_is_the_reason() -> None:
    spec = a_spec({"worker": {"count": 4}})
    ends = {
        "worker_0": stopped("peer"),
        "worker_1": failed(7, at=NOW + 2),
        "worker_2": failed(signal=11, at=NOW + 1),
        "worker_3": failed(1, at=NOW + 1),
    }
    verdict = decide_verdict(a_job(), spec, learners(spec, **ends), now=NOW + 3)
    assert verdict is not None
    assert (verdict.learner, verdict.reason, verdict.signal, verdict.exit_code) == ("worker-2", "Signalled", 11, None)
    assert verdict.message == "learner worker-2 was ended by SIGSEGV; see its log (rank 2)"
    # A helper's failure without a time counts as of now.
    assert verdict_of(a_job(), spec, worker_0="CodeInvalid", worker_1=failed(at=NOW - 1))[1] == "worker-1"
    assert verdict_of(a_job(), spec, worker_1="CodeInvalid", worker_0=failed(at=NOW + 1))[1:] == (
        "worker-1",
        "CodeInvalid",
    )


def test_a_fatal_failure_is_the_reason_even_where_an_ignored_one_came_first() -> None:
    spec = a_spec(MIXED)
    ended = {"worker_0": failed(3, at=NOW - 10), "chief_0": failed(4, at=NOW)}
    assert verdict_of(a_job(), spec, **ended) == (W.FAILED, "chief-0", "ExitCode")


@pytest.mark.parametrize(
    ("retries", "used", "end", "to"),
    [
        ({}, 0, failed(), W.FAILED),
        ({"max": 2}, 0, failed(), W.QUEUED),
        ({"max": 2}, 1, failed(), W.QUEUED),
        ({"max": 2}, 2, failed(), W.FAILED),
        ({"max": 0}, 0, failed(lost=True), W.QUEUED),
        ({"max": 1}, 9, failed(lost=True), W.QUEUED),
        ({"max": 1, "on": ["exit:3"]}, 0, failed(3), W.QUEUED),
        ({"max": 1, "on": ["exit:3"]}, 0, failed(4), W.FAILED),
        ({"max": 1, "on": ["exit:137"]}, 0, failed(signal=9), W.QUEUED),
        ({"max": 1, "on": ["exit:137"]}, 0, failed(signal=15), W.FAILED),
        ({"max": 1, "on": ["infrastructure"]}, 0, failed(), W.FAILED),
        ({"max": 1, "on": ["infrastructure"]}, 0, failed(lost=True), W.QUEUED),
        ({"max": 1, "on": ["exit:3"]}, 0, "EnvironmentFailed", W.FAILED),
        ({"max": 1}, 0, "EnvironmentFailed", W.QUEUED),
        *(({"max": 0, "on": ["exit:3"]}, 9, outage.value, W.QUEUED) for outage in Outage),
    ],
    ids=str,
)
def test_only_the_job_s_own_failures_count_against_its_retries(
    retries: dict[str, Any], used: int, end: Exit | str, to: Status
) -> None:
    spec = a_spec(retries=retries)
    verdict = decide_verdict(a_job(counters=Counters(retries=used)), spec, learners(spec, worker_0=end), now=NOW)
    assert verdict is not None
    infrastructure = end.lost if isinstance(end, Exit) else is_outage(end)
    assert (verdict.to, verdict.budgeted) == (to, not infrastructure)
    again = "; trying again" if infrastructure else f"; trying again (retry {used + 1} of {spec.retries.max})"
    assert verdict.message.endswith(again) == (to is W.QUEUED)


@pytest.mark.parametrize(("retries", "to"), [(0, W.FAILED), (1, W.QUEUED)])
def test_gang_that_fetched_two_versions_of_its_data_on_different_nodes_fails_with_a_reason(
    retries: int, to: Status
) -> None:
    spec = a_spec({"worker": {"count": 3}}, retries={"max": retries})
    reports = learners(spec, worker_0=None, worker_1=None, worker_2=None)
    same = {name: replace(learner, data_digest="sha256:1") for name, learner in reports.items()}
    assert decide_verdict(a_job(), spec, same, now=NOW) is None
    mixed = {**same, "worker-2": replace(same["worker-2"], data_digest="sha256:2")}
    verdict = decide_verdict(a_job(), spec, mixed, now=NOW)
    assert verdict is not None
    assert (verdict.to, verdict.reason, verdict.learner) == (to, "DataChanged", "worker-2")
    assert verdict.message.startswith("learners worker-0 and worker-2 fetched different versions of the data")
    assert decide_verdict(a_job(desired=HALT), spec, mixed, now=NOW) is None
    unknown = {**same, "worker-2": replace(same["worker-2"], data_digest="")}
    assert decide_verdict(a_job(), spec, unknown, now=NOW) is None


@pytest.mark.parametrize(("used", "to"), [(0, W.HALTED), (5, W.FAILED)])
def test_a_crash_during_a_halt_ends_in_halted_while_retries_are_left(used: int, to: Status) -> None:
    spec = a_spec(retries={"max": 5})
    job = a_job(desired=HALT, counters=Counters(retries=used))
    assert verdict_of(job, spec, worker_0=failed(), worker_1=stopped())[0] is to


@pytest.mark.parametrize(
    ("end", "reason", "fragment"),
    [
        (None, "LearnerLost", "disappeared"),
        (failed(lost=True), "LearnerLost", "disappeared"),
        (failed(oom=True), "OOMKilled", "resources.memory"),
        (failed(disk_exceeded="it wrote more than 1 GiB (X)"), "DiskExceeded", "it wrote more than 1 GiB (X)"),
        (failed(port_taken="it listens on port 5"), "PortTaken", "it listens on port 5"),
        (failed(signal=9), "Signalled", "SIGKILL"),
        (failed(signal=63), "Signalled", "signal 63"),
        (failed(3), "ExitCode", "exited with code 3; see its log (rank 0)"),
        ("CodeInvalid", "CodeInvalid", "learner worker-0 could not start"),
    ],
    ids=str,
)
def test_a_failure_is_described_by_reason_and_message(end: Exit | str | None, reason: str, fragment: str) -> None:
    (learner,) = learners(a_spec(), worker_0=end).values()
    described, message = describe_failure(learner)
    assert (described, fragment in message) == (reason, True)
    assert describe_failure(replace(learner, reason="X", message="why")) == ("X", "why")


def test_a_learner_that_ran_out_of_memory_names_its_limit_and_the_field_of_the_spec() -> None:
    """The message named `resources.memory`, also where the role has a limit of its own, and no limit."""
    spec = a_spec()
    (learner,) = learners(spec, worker_0=failed(oom=True)).values()
    limit = format_bytes(spec.role_resources("worker").memory)
    wanted = f"learner worker-0 ran out of memory: it used more than its limit of {limit}; raise resources.memory"
    assert describe_failure(learner, spec) == ("OOMKilled", wanted)


# --- the job's status ------------------------------------------------


def at(*phases: str) -> list[LearnerStatus]:
    return [
        LearnerStatus(name=f"worker-{n}", role="worker", rank=n, attempt=1, seq=1, phase=Phase(phase))
        for n, phase in enumerate(phases)
    ]


@pytest.mark.parametrize(
    ("phases", "status"),
    [
        ([], W.PENDING),
        (["WAITING", "WAITING"], W.PENDING),
        (["DOWNLOADING"], W.DOWNLOADING),
        (["WAITING", "DOWNLOADING"], W.DOWNLOADING),
        (["READY", "READY"], W.DOWNLOADING),
        (["READY", "PROCESSING"], W.PROCESSING),
        (["PROCESSING", "STORING"], W.PROCESSING),
        (["STORED"], W.PROCESSING),  # the other has not reported
        (["STORING", "STORED"], W.STORING),
        (["STORED", "STORED"], W.STORING),
    ],
)
def test_the_job_s_status_follows_its_learners_phases(phases: list[str], status: Status) -> None:
    assert job_status(at(*phases), expected=2) is status


PATH = [W.PENDING, W.DOWNLOADING, W.PROCESSING, W.STORING]


@given(st.lists(st.sampled_from(Phase), min_size=2, max_size=2), st.data())
def test_the_job_s_status_never_goes_back_when_a_learner_advances(phases: list[Phase], data: st.DataObject) -> None:
    def advance(phase: Phase) -> Phase:
        return data.draw(st.sampled_from([later for later in Phase if PHASE_ORDER[later] >= PHASE_ORDER[phase]]))

    before = job_status(at(*phases), expected=2)
    after = job_status(at(*map(advance, phases)), expected=2)
    assert PATH.index(after) >= PATH.index(before)


def test_a_step_begins_with_the_first_learner_and_storing_with_the_last() -> None:
    first, second = at("STORING", "STORING")
    first = replace(first, times={"DOWNLOADING": 5, "PROCESSING": 10, "STORING": 30})
    second = replace(second, times={"DOWNLOADING": 4, "PROCESSING": 12, "STORING": 31})
    assert step_times([first, second]) == {W.DOWNLOADING: 4, W.PROCESSING: 10, W.STORING: 31}
    assert step_times([]) == {}
    assert step_times(iter([replace(first, times={"WAITING": 1})])) == {}

"""The observed state of learners, from helpers' reports and from the cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from services.core.adapters.identity import LearnerTokenVerifier
from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.codec import dump, load
from services.core.domain.job import Attempt, Job, Rerun, State, new_job
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.domain.startup import Span
from services.core.domain.status import Phase, Status
from services.core.ports.cluster import LearnerProcess, Observation
from services.core.ports.status_store import Change, Entry
from services.core.runtime.quarantine import STATUS, Quarantine
from services.guardian import observed_state
from services.guardian.learner_view import LearnerView
from services.guardian.render import digest, render
from tests.testbed.identities import SIGNER, public_keys

SPEC = parse_spec({"name": "n", "command": "true", "roles": {"ps": {"count": 1}, "worker": {"count": 2}}})
RANKS = observed_state.ranks(SPEC, Attempt())


def report(name: str, rank: int, phase: Phase, *, seq: int = 1, attempt: int = 1) -> LearnerStatus:
    return LearnerStatus(name=name, role=name.rpartition("-")[0], rank=rank, attempt=attempt, seq=seq, phase=phase)


def ended(name: str, *, attempt: int = 1, code: int = 0) -> Observation:
    process = LearnerProcess(name=name, attempt=attempt, state="exited", started=1, exit=Exit(time=5, code=code))
    return Observation(learners=[process], attempts=[attempt])


def merged(*reports: LearnerStatus, observed: Observation, attempt: int = 1) -> dict[str, LearnerStatus]:
    return observed_state.merge(RANKS, attempt, {report.name: report for report in reports}, observed)


def test_an_exit_that_only_the_cluster_has_seen_counts() -> None:
    known = merged(report("worker-1", 2, Phase.PROCESSING), observed=ended("worker-1", code=3))
    assert known["worker-1"].exit == Exit(time=5, code=3)


def test_a_learner_without_a_report_is_known_from_the_cluster_with_its_global_rank() -> None:
    known = merged(observed=ended("worker-1"))
    assert (known["worker-1"].rank, known["worker-1"].role) == (2, "worker")
    assert (known["worker-1"].phase, known["worker-1"].times) == (Phase.PROCESSING, {"PROCESSING": 1})


def test_processes_of_an_older_attempt_are_ignored() -> None:
    assert merged(observed=ended("worker-1", attempt=1), attempt=2) == {}


def test_reports_of_learners_that_the_job_does_not_have_are_ignored() -> None:
    stranger = report("worker-7", 9, Phase.STORED)
    impostor = replace(report("worker-1", 2, Phase.STORED), role="ps")
    assert merged(stranger, impostor, observed=ended("chief-0")) == {}


def test_a_learner_that_ran_counts_as_not_stored_until_the_cluster_has_recorded_it() -> None:
    observed = ended("worker-0")
    assert observed_state.not_stored(1, merged(observed=observed), observed) == ["worker-0"]
    assert observed_state.not_stored(1, {}, observed) == ["worker-0"]
    reported = merged(report("worker-0", 1, Phase.STORED), observed=observed)
    assert observed_state.not_stored(1, reported, observed) == ["worker-0"]


def test_stored_results_are_known_from_the_cluster() -> None:
    process = replace(ended("worker-0").learners[0], stored=True)
    observed = Observation(learners=[process], attempts=[1])
    assert observed_state.not_stored(1, merged(observed=observed), observed) == []


def test_results_on_a_lost_node_are_not_waited_for_and_their_loss_is_said() -> None:
    lost = replace(ended("worker-0").learners[0], can_store=False)
    observed = Observation(learners=[lost], attempts=[1])
    known = merged(report("worker-0", 1, Phase.PROCESSING), observed=observed)
    assert observed_state.not_stored(1, known, observed) == []
    assert observed_state.storage_failures(1, known, observed) == (
        "worker-0 did not store its results before its pod ended (see store_timeout) or its node was lost"
    )


def test_results_are_waited_for_although_the_status_store_has_lost_every_report() -> None:
    pod = LearnerProcess(name="worker-0", attempt=1, state="waiting", readable=False)
    observed = Observation(learners=[pod], attempts=[1])
    storing = replace(
        report("worker-0", 1, Phase.STORING), times={"PROCESSING": 3, "STORING": 5}, exit=Exit(time=5, code=0)
    )
    known = merged(storing, observed=observed)
    assert known["worker-0"].exit == Exit(time=5, code=0)
    assert observed_state.not_stored(1, known, observed) == ["worker-0"]


def test_results_are_waited_for_while_the_report_of_a_start_may_be_missing() -> None:
    pod = LearnerProcess(name="worker-0", attempt=1, state="waiting", may_have_started=True)
    observed = Observation(learners=[pod], attempts=[1])
    assert observed_state.not_stored(1, merged(observed=observed), observed) == ["worker-0"]
    ready = merged(report("worker-0", 1, Phase.READY), observed=observed)
    assert observed_state.not_stored(1, ready, observed) == ["worker-0"]
    failed = merged(replace(report("worker-0", 1, Phase.STORED), reason="DataStoreDenied"), observed=observed)
    assert observed_state.not_stored(1, failed, observed) == []


def test_a_learner_that_never_ran_has_nothing_to_store() -> None:
    waiting = Observation(learners=[LearnerProcess(name="worker-0", attempt=1, state="waiting")], attempts=[1])
    known = merged(report("worker-0", 1, Phase.DOWNLOADING), observed=waiting)
    assert observed_state.not_stored(1, known, waiting) == []


def test_a_learner_that_exists_counts_as_activated_only_once_it_has_begun() -> None:
    def observed(*states: str) -> Observation:
        processes = [
            LearnerProcess(name=name, attempt=1, state=state) for name, state in zip(RANKS, states, strict=True)
        ]
        return Observation(learners=processes, attempts=[1])

    reports = {name: report(name, rank, Phase.WAITING) for name, rank in RANKS.items()}
    inert = observed("inert", "inert", "inert")
    assert not observed_state.all_activated(RANKS, 1, reports, inert)
    assert observed_state.all_activated(RANKS, 1, {}, observed("waiting", "running", "exited"))
    assert not observed_state.all_activated(RANKS, 1, {}, observed("waiting", "running", "inert"))
    assert not observed_state.all_activated(RANKS, 2, {}, observed("waiting", "running", "exited"))
    begun = {name: replace(learner, phase=Phase.DOWNLOADING) for name, learner in reports.items()}
    assert observed_state.all_activated(RANKS, 1, begun, inert)


def test_the_learners_of_an_unreadable_spec_are_those_that_were_placed() -> None:
    attempt = Attempt(number=1, placement={"worker-1": "n", "ps-0": "n"})
    assert observed_state.ranks(None, attempt) == {"ps-0": 0, "worker-1": 1}


def test_a_learner_missing_on_the_cluster_is_lost_unless_its_end_is_known() -> None:
    reported = {
        "ps-0": replace(report("ps-0", 0, Phase.STORED), exit=Exit(time=3, code=0)),
        "worker-0": replace(report("worker-0", 1, Phase.STORED), reason="DataStoreDenied"),
    }
    learners = observed_state.with_lost(RANKS, 1, reported, Observation(learners=[], attempts=[]), now=9)
    assert {**learners, "worker-1": None} == {**reported, "worker-1": None}
    assert learners["worker-1"].exit == Exit(time=9, lost=True)


def test_learners_that_the_cluster_shows_unreadably_are_not_lost() -> None:
    reported = {"ps-0": report("ps-0", 0, Phase.PROCESSING)}
    assert observed_state.with_lost(RANKS, 1, reported, Observation(learners=[], attempts=[1]), now=9) == reported
    assert set(observed_state.with_lost(RANKS, 2, {}, Observation(learners=[], attempts=[1]), now=9)) == set(RANKS)


def test_digests_are_the_first_that_any_helper_reports() -> None:
    first = replace(report("worker-0", 1, Phase.READY), env_digest="e")
    second = replace(report("worker-1", 2, Phase.READY), data_digest="d")
    assert observed_state.digests({"worker-0": first, "worker-1": second}) == ("e", "d")
    assert observed_state.digests({}) == ("", "")


def a_job(status: Status) -> Job:
    job = new_job(
        job_id="j1", tenant="acme", user="ada", spec={}, code_digest="", idem="j1", idem_digest="", trace="", now=1
    )
    return replace(job, state=State(status=status, since=1), attempt=Attempt(number=1, committed=True))


def saved(name: str, rank: int, time: int) -> LearnerStatus:
    checkpoint = StoredCheckpoint(time=time, files=2, size=5)
    return replace(report(name, rank, Phase.PROCESSING), checkpoint=checkpoint)


def test_the_newest_checkpoint_of_all_learners_is_the_jobs() -> None:
    learners = {"worker-0": saved("worker-0", 1, 40_000), "worker-1": saved("worker-1", 2, 30_000)}
    new = StoredCheckpoint(time=40_000, files=2, size=5, learner="worker-0", attempt=1)
    job = observed_state.with_observed(a_job(Status.PROCESSING), learners, expected=3, activated=True, now=50_000)
    assert job.checkpoint == new
    assert observed_state.newest_checkpoint(job, {}, now=60_000) == new, "that of an earlier attempt stays"
    assert observed_state.newest_checkpoint(job, {"w": saved("w", 0, 10**9)}, now=60_000) == replace(
        new, time=60_000, learner="w"
    ), "no time lies in the future"


def test_checkpoints_are_recorded_some_seconds_apart() -> None:
    first = observed_state.with_observed(
        a_job(Status.PROCESSING), {"w": saved("w", 0, 40_000)}, expected=3, activated=True, now=50_000
    )
    for time, recorded in ((44_999, 40_000), (45_000, 45_000)):
        job = observed_state.with_observed(first, {"w": saved("w", 0, time)}, expected=3, activated=True, now=50_000)
        assert job.checkpoint is not None
        assert job.checkpoint.time == recorded
    assert observed_state.newest_checkpoint(first, {"w": saved("w", 0, 40_001)}, now=50_000) != first.checkpoint


@pytest.mark.parametrize("forged", [{"time": -1}, {"time": 2**62}, {"files": -1}, {"files": 2**31}, {"size": -1}])
def test_report_with_an_impossible_checkpoint_is_held_back(forged: dict[str, int]) -> None:
    view = LearnerView(lambda _: None, Quarantine(lambda: 5, CollectorRegistry()))
    status = replace(
        report("worker-0", 1, Phase.PROCESSING),
        checkpoint=load(StoredCheckpoint, {"time": 1, "files": 1, "size": 1, **forged}),
    )
    key = "/jobs/j1/learners/worker-0"
    view.apply(Change("put", key, Entry(key, json.dumps(dump(status)), 1)))
    assert view.learners("j1", 1) == {}


def test_the_view_keeps_the_newest_report_in_any_order_of_arrival() -> None:
    changed: list[str] = []
    view = LearnerView(changed.append, Quarantine(lambda: 5, CollectorRegistry()))

    def put(status: LearnerStatus) -> Change:
        key = f"/jobs/j1/learners/{status.name}"
        return Change("put", key, Entry(key, json.dumps(dump(status)), 1))

    new, old = report("worker-0", 1, Phase.STORING, seq=7), report("worker-0", 1, Phase.READY, seq=3)
    for change in (put(new), put(old), Change("reset")):
        view.apply(change)
    assert view.learners("j1", 1) == {"worker-0": new}
    assert view.learners("j1", 2) == {}


def test_a_malformed_report_is_quarantined_until_it_is_overwritten() -> None:
    changed: list[str] = []
    quarantine = Quarantine(lambda: 5, CollectorRegistry())
    view, key = LearnerView(changed.append, quarantine), "/jobs/j1/learners/worker-0"
    sound = report("worker-0", 1, Phase.STORED)
    other = json.dumps(dump(report("worker-1", 2, Phase.STORED)))
    late = json.dumps(dump(replace(sound, times={"STORED": 10**30})))
    for value in ("", "{", "[]", '{"name": 3}', '"x"', "{}", "[" * 60_000, '{"seq": Infinity}', other, late):
        view.apply(Change("put", key, Entry(key, value, 1)))
        (held,) = quarantine.entries()
        assert (held.kind, held.place, held.job, held.since) == (STATUS, key, "j1", 5)
    assert view.learners("j1", 1) == {}
    assert changed == []
    for value in (json.dumps({**dump(sound), "schema": 2, "phase": "NEWER"}), json.dumps(dump(sound))):
        view.apply(Change("put", key, Entry(key, "{", 1)))
        view.apply(Change("put", key, Entry(key, value, 1)))
        assert quarantine.entries() == []
    assert view.learners("j1", 1) == {"worker-0": sound}


@pytest.mark.parametrize("value", ["{", '{"attempt": Infinity}', '{"attempt": "two"}', '{"attempt": -1}', "null"])
def test_an_attempt_key_without_an_attempt_is_quarantined(value: str) -> None:
    quarantine = Quarantine(lambda: 5, CollectorRegistry())
    view, key = LearnerView(lambda _: None, quarantine), "/jobs/j1/attempt"
    view.apply(Change("put", key, Entry(key, '{"attempt": 3}', 1)))
    assert view.announced("j1") == 3
    view.apply(Change("put", key, Entry(key, value, 1)))
    assert (view.announced("j1"), [thing.place for thing in quarantine.entries()]) == (0, [key])
    view.apply(Change("delete", key))
    assert quarantine.entries() == []


@pytest.mark.parametrize("key", ["/jobs/j1/attempt", "/jobs/j1/learners/worker-0"])
def test_a_value_that_is_not_utf_8_is_quarantined_for_its_job_only(key: str) -> None:
    quarantine = Quarantine(lambda: 5, CollectorRegistry())
    view, sound = LearnerView(lambda _: None, quarantine), report("worker-0", 1, Phase.STORED)
    view.apply(Change("put", "/jobs/j1/attempt", Entry("/jobs/j1/attempt", '{"attempt": 3}', 1)))
    view.apply(Change("put", key, Entry(key, "", 1, malformed="the value is not UTF-8")))
    other = "/jobs/j2/learners/worker-0"
    view.apply(Change("put", other, Entry(other, json.dumps(dump(sound)), 2)))
    assert view.learners("j2", 1) == {"worker-0": sound}
    assert [(entry.job, entry.place, entry.reason) for entry in quarantine.entries()] == [
        ("j1", key, "the value is not UTF-8")
    ]
    assert view.announced("j1") == (0 if key.endswith("attempt") else 3)
    view.apply(Change("delete", key))
    assert quarantine.entries() == []


def test_a_plan_gives_every_learner_its_rank_its_node_and_its_own_token() -> None:
    job = new_job(job_id="j1", tenant="t", user="u", spec={}, code_digest="", idem="i", idem_digest="", trace="", now=0)
    job = replace(job, attempt=Attempt(number=2, placement={"ps-0": "a", "worker-0": "b", "worker-1": "b"}))
    plan = render(job, SPEC, term=4, mint=SIGNER.mint, sizes=SIZES)
    assert [(learner.name, learner.rank, learner.node) for learner in plan.learners] == [
        ("ps-0", 0, "a"),
        ("worker-0", 1, "b"),
        ("worker-1", 2, "b"),
    ]
    identity = LearnerTokenVerifier(public_keys()).verify(plan.learners[2].token)
    assert (identity.job, identity.attempt, identity.rank, identity.name) == ("j1", 2, 2, "worker-1")
    assert plan.checkpoint_attempts == (1,)
    # The digest of a repeatable run depends neither on secrets nor on the Guardian's term.
    assert digest(plan) == digest(render(job, SPEC, term=9, mint=lambda _: "other", sizes=SIZES))


PROPOSED = {"ps-0": "a", "worker-0": "a", "worker-1": "b"}


def bound(attempt: int = 1, **nodes: str) -> Observation:
    """Learners by name, with ``_`` for ``-``; an empty node: not bound."""
    pods = [
        LearnerProcess(name=name.replace("_", "-"), attempt=attempt, state="starting", node=node)
        for name, node in nodes.items()
    ]
    return Observation(learners=pods, attempts=[attempt])


def test_a_gang_stays_where_it_was_placed_until_all_of_it_is_bound() -> None:
    attempt = Attempt(number=1, placement=PROPOSED)
    part = bound(ps_0="c", worker_0="c", worker_1="")
    assert observed_state.bound_placement(attempt, part) == PROPOSED
    assert observed_state.bound_placement(attempt, bound(ps_0="c", worker_0="c")) == PROPOSED
    whole = bound(ps_0="c", worker_0="c", worker_1="b", stranger_0="d")
    assert observed_state.bound_placement(attempt, whole) == {"ps-0": "c", "worker-0": "c", "worker-1": "b"}


def test_a_learner_of_a_running_gang_that_is_bound_nowhere_stays_where_it_was() -> None:
    attempt = Attempt(number=1, placement=PROPOSED, committed=True)
    assert observed_state.bound_placement(attempt, observed_state.EMPTY) == PROPOSED
    assert observed_state.bound_placement(attempt, bound(ps_0="c", worker_0="")) == {**PROPOSED, "ps-0": "c"}


def test_pods_of_other_attempts_and_earlier_runs_do_not_say_where_a_learner_is() -> None:
    rerun = Rerun(run=2, time=1, not_before=1, reason="LearnerLost", message="")
    attempt = Attempt(number=2, placement=PROPOSED, committed=True, reruns={"ps-0": rerun})
    assert observed_state.bound_placement(attempt, bound(1, worker_0="c")) == PROPOSED
    assert observed_state.bound_placement(attempt, bound(2, ps_0="c")) == PROPOSED


def test_nodes_that_were_chosen_by_the_cluster_are_recorded_without_other_news() -> None:
    job = a_job(Status.DOWNLOADING)
    job = replace(job, attempt=replace(job.attempt, committed=True, placement={"worker-0": "a"}))
    begun = {"worker-0": fetching("worker-0", 0)}
    at_work = bound(job.attempt.number, worker_0="b")
    moved = observed_state.with_observed(job, begun, expected=1, activated=True, now=1_000, observed=at_work)
    assert moved.attempt.placement == {"worker-0": "b"}
    assert observed_state.with_observed(moved, begun, expected=1, activated=True, now=1_000, observed=at_work) is moved


def fetching(name: str, rank: int, **startup: Span) -> LearnerStatus:
    return replace(report(name, rank, Phase.DOWNLOADING), times={"DOWNLOADING": 1_000}, startup=startup)


def test_a_quick_start_costs_no_write_of_its_own() -> None:
    begun = {"worker-0": fetching("worker-0", 0, environment=Span(began=1_000))}
    job = observed_state.with_observed(a_job(Status.DOWNLOADING), begun, expected=1, activated=True, now=1_000)
    done = {"worker-0": fetching("worker-0", 0, environment=Span(began=1_000, ended=1_500))}
    assert observed_state.with_observed(job, done, expected=1, activated=True, now=2_499) == job
    running = {"worker-0": replace(done["worker-0"], phase=Phase.PROCESSING, times={"PROCESSING": 1_600})}
    started = observed_state.with_observed(job, running, expected=1, activated=True, now=1_600)
    assert started.attempt.startup == {"environment": Span(began=1_000, ended=1_500)}


def test_a_step_that_lasts_is_recorded_after_a_second() -> None:
    job = a_job(Status.DOWNLOADING)
    job = replace(job, attempt=replace(job.attempt, committed=True))
    begun = {"worker-0": fetching("worker-0", 0, environment=Span(began=1_000))}
    assert observed_state.with_observed(job, begun, expected=1, activated=True, now=1_999) is job
    recorded = observed_state.with_observed(job, begun, expected=1, activated=True, now=2_000)
    assert recorded.attempt.startup == {"environment": Span(began=1_000)}
    assert observed_state.with_observed(recorded, begun, expected=1, activated=True, now=9_000) is recorded


def test_a_pod_that_is_being_pulled_shows_its_steps_before_its_helper_reports() -> None:
    steps = {"schedule": Span(began=1, ended=2), "image": Span(began=2)}
    process = LearnerProcess(name="worker-0", attempt=1, state="starting", startup=steps)
    known = merged(observed=Observation(learners=[process], attempts=[1]))
    assert (known["worker-0"].phase, known["worker-0"].startup) == (Phase.WAITING, steps)
    assert not observed_state.all_activated({"worker-0": 0}, 1, known, Observation(learners=[process], attempts=[1]))


def test_a_gang_that_ran_is_not_undone_because_the_cluster_still_says_that_an_image_is_missing() -> None:
    """A busy kubelet reports a failed pull late: the next one had succeeded, and the learner had run."""
    late = LearnerProcess(
        name="worker-0", attempt=1, state="starting", blocked="ImagePullFailed", blocked_for_good=True
    )
    observed = Observation(learners=[late], attempts=[1])
    fetched = {"worker-0": report("worker-0", 0, Phase.READY)}
    assert not observed_state.all_activated({"worker-0": 0}, 1, fetched, observed)
    ran = {"worker-0": replace(fetched["worker-0"], phase=Phase.STORING, times={"PROCESSING": 1, "STORING": 2})}
    assert observed_state.all_activated({"worker-0": 0}, 1, ran, observed)


@pytest.mark.parametrize("span", [{"began": -1}, {"began": 2**60}, {"began": 1, "ended": -5}, {"began": "soon"}])
def test_report_with_an_impossible_step_is_held_back(span: dict[str, object]) -> None:
    view = LearnerView(lambda _: None, Quarantine(lambda: 5, CollectorRegistry()))
    document = dump(report("worker-0", 1, Phase.PROCESSING)) | {"startup": {"code": span}}
    key = "/jobs/j1/learners/worker-0"
    view.apply(Change("put", key, Entry(key, json.dumps(document), 1)))
    assert view.learners("j1", 1) == {}

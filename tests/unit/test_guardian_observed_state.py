"""What a Guardian concludes from helpers' reports and the cluster's own word."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from services.core.domain.codec import dump
from services.core.domain.job import Attempt, new_job
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.domain.status import Phase
from services.core.domain.tokens import verify
from services.core.ports.cluster import LearnerProcess, Observation
from services.core.ports.status_store import Change, Entry
from services.core.runtime.quarantine import STATUS, Quarantine
from services.guardian import observed_state
from services.guardian.learner_view import LearnerView
from services.guardian.render import digest, render

SPEC = parse_spec({"name": "n", "command": "true", "roles": {"ps": {"count": 1}, "worker": {"count": 2}}})
RANKS = observed_state.roster(SPEC, Attempt())


def report(name: str, rank: int, phase: Phase, *, seq: int = 1, attempt: int = 1) -> LearnerStatus:
    return LearnerStatus(name=name, role=name.rpartition("-")[0], rank=rank, attempt=attempt, seq=seq, phase=phase)


def ended(name: str, *, attempt: int = 1, code: int = 0) -> Observation:
    process = LearnerProcess(name=name, attempt=attempt, state="exited", started=1, exit=Exit(time=5, code=code))
    return Observation(learners=[process], attempts=[attempt])


def learners(*reports: LearnerStatus, seen: Observation, attempt: int = 1) -> dict[str, LearnerStatus]:
    return observed_state.learners(RANKS, attempt, {one.name: one for one in reports}, seen)


def test_an_exit_that_only_the_cluster_has_seen_is_a_fact() -> None:
    known = learners(report("worker-1", 2, Phase.PROCESSING), seen=ended("worker-1", code=3))
    assert known["worker-1"].exit == Exit(time=5, code=3)


def test_a_learner_whose_helper_never_spoke_is_known_by_the_cluster_with_its_global_rank() -> None:
    known = learners(seen=ended("worker-1"))
    assert (known["worker-1"].rank, known["worker-1"].role) == (2, "worker")
    assert (known["worker-1"].phase, known["worker-1"].times) == (Phase.PROCESSING, {"PROCESSING": 1})


def test_what_is_left_of_an_older_attempt_says_nothing_about_this_one() -> None:
    assert learners(seen=ended("worker-1", attempt=1), attempt=2) == {}


def test_learners_that_the_job_does_not_have_are_nobody() -> None:
    stranger = report("worker-7", 9, Phase.STORED)
    impostor = replace(report("worker-1", 2, Phase.STORED), role="ps")
    assert learners(stranger, impostor, seen=ended("chief-0")) == {}


def test_a_learner_that_ran_is_waited_for_until_it_is_stored() -> None:
    seen = ended("worker-0")
    assert observed_state.unstored(1, learners(seen=seen), seen) == ["worker-0"]
    assert observed_state.unstored(1, {}, seen) == ["worker-0"]
    assert observed_state.unstored(1, learners(report("worker-0", 1, Phase.STORED), seen=seen), seen) == []


def test_what_is_stored_is_known_although_etcd_has_forgotten_it() -> None:
    process = replace(ended("worker-0").learners[0], stored=True)
    seen = Observation(learners=[process], attempts=[1])
    assert observed_state.unstored(1, learners(seen=seen), seen) == []


def test_a_learner_that_never_ran_has_nothing_to_store() -> None:
    waiting = Observation(learners=[LearnerProcess(name="worker-0", attempt=1, state="waiting")], attempts=[1])
    known = learners(report("worker-0", 1, Phase.DOWNLOADING), seen=waiting)
    assert observed_state.unstored(1, known, waiting) == []


def test_provisioned_is_who_was_let_go_not_who_merely_exists() -> None:
    def seen(*states: str) -> Observation:
        found = [LearnerProcess(name=name, attempt=1, state=state) for name, state in zip(RANKS, states, strict=True)]
        return Observation(learners=found, attempts=[1])

    reports = {name: report(name, rank, Phase.WAITING) for name, rank in RANKS.items()}
    inert = seen("inert", "inert", "inert")
    assert not observed_state.provisioned(RANKS, 1, reports, inert)
    assert observed_state.provisioned(RANKS, 1, {}, seen("waiting", "running", "exited"))
    assert not observed_state.provisioned(RANKS, 1, {}, seen("waiting", "running", "inert"))
    assert not observed_state.provisioned(RANKS, 2, {}, seen("waiting", "running", "exited"))
    begun = {name: replace(one, phase=Phase.DOWNLOADING) for name, one in reports.items()}
    assert observed_state.provisioned(RANKS, 1, begun, inert)


def test_of_a_spec_that_cannot_be_read_the_learners_are_those_that_were_placed() -> None:
    attempt = Attempt(number=1, placement={"worker-1": "n", "ps-0": "n"})
    assert observed_state.roster(None, attempt) == {"ps-0": 0, "worker-1": 1}


def test_who_is_not_on_the_cluster_any_more_is_lost_unless_its_end_is_known() -> None:
    said = {
        "ps-0": replace(report("ps-0", 0, Phase.STORED), exit=Exit(time=3, code=0)),
        "worker-0": replace(report("worker-0", 1, Phase.STORED), reason="DataStoreDenied"),
    }
    found = observed_state.with_vanished(RANKS, 1, said, Observation(learners=[], attempts=[]), now=9)
    assert {**found, "worker-1": None} == {**said, "worker-1": None}
    assert found["worker-1"].exit == Exit(time=9, lost=True)


def test_learners_that_nobody_can_make_out_are_not_lost() -> None:
    said = {"ps-0": report("ps-0", 0, Phase.PROCESSING)}
    assert observed_state.with_vanished(RANKS, 1, said, Observation(learners=[], attempts=[1]), now=9) == said
    assert set(observed_state.with_vanished(RANKS, 2, {}, Observation(learners=[], attempts=[1]), now=9)) == set(RANKS)


def test_what_the_helpers_resolved_is_the_first_that_any_of_them_says() -> None:
    one = replace(report("worker-0", 1, Phase.READY), env_digest="e")
    other = replace(report("worker-1", 2, Phase.READY), data_digest="d")
    assert observed_state.digests({"worker-0": one, "worker-1": other}) == ("e", "d")
    assert observed_state.digests({}) == ("", "")


def test_the_view_keeps_the_newest_report_whatever_order_they_come_in() -> None:
    poked: list[str] = []
    view = LearnerView(poked.append, Quarantine(lambda: 5, CollectorRegistry()))

    def put(one: LearnerStatus) -> Change:
        key = f"/jobs/j1/learners/{one.name}"
        return Change("put", key, Entry(key, json.dumps(dump(one)), 1))

    new, old = report("worker-0", 1, Phase.STORING, seq=7), report("worker-0", 1, Phase.READY, seq=3)
    for change in (put(new), put(old), Change("reset")):
        view.apply(change)
    assert view.of("j1", 1) == {"worker-0": new}
    assert view.of("j1", 2) == {}


def test_a_malformed_report_harms_nobody_else() -> None:
    poked: list[str] = []
    quarantine = Quarantine(lambda: 5, CollectorRegistry())
    view, key = LearnerView(poked.append, quarantine), "/jobs/j1/learners/worker-0"
    sound = report("worker-0", 1, Phase.STORED)
    other = json.dumps(dump(report("worker-1", 2, Phase.STORED)))
    late = json.dumps(dump(replace(sound, times={"STORED": 10**30})))
    for value in ("", "{", "[]", '{"name": 3}', '"x"', "{}", "[" * 60_000, '{"seq": Infinity}', other, late):
        view.apply(Change("put", key, Entry(key, value, 1)))
        (held,) = quarantine.entries()
        assert (held.kind, held.place, held.job, held.since) == (STATUS, key, "j1", 5)
    assert view.of("j1", 1) == {}
    assert poked == []
    for value in (json.dumps({**dump(sound), "schema": 2, "phase": "NEWER"}), json.dumps(dump(sound))):
        view.apply(Change("put", key, Entry(key, "{", 1)))
        view.apply(Change("put", key, Entry(key, value, 1)))
        assert quarantine.entries() == []
    assert view.of("j1", 1) == {"worker-0": sound}


@pytest.mark.parametrize("value", ["{", '{"attempt": Infinity}', '{"attempt": "two"}', '{"attempt": -1}', "null"])
def test_an_announcement_that_names_no_attempt_says_nothing(value: str) -> None:
    quarantine = Quarantine(lambda: 5, CollectorRegistry())
    view, key = LearnerView(lambda _: None, quarantine), "/jobs/j1/attempt"
    view.apply(Change("put", key, Entry(key, '{"attempt": 3}', 1)))
    assert view.announced("j1") == 3
    view.apply(Change("put", key, Entry(key, value, 1)))
    assert (view.announced("j1"), [one.place for one in quarantine.entries()]) == (0, [key])
    view.apply(Change("delete", key))
    assert quarantine.entries() == []


def test_a_plan_gives_every_learner_its_rank_its_node_and_a_token_of_its_own() -> None:
    job = new_job(job_id="j1", tenant="t", user="u", spec={}, code_digest="", idem="i", idem_digest="", trace="", now=0)
    job = replace(job, attempt=Attempt(number=2, placement={"ps-0": "a", "worker-0": "b", "worker-1": "b"}))
    plan = render(job, SPEC, term=4, secret=b"s", sizes=SIZES)
    assert [(one.name, one.rank, one.node) for one in plan.learners] == [
        ("ps-0", 0, "a"), ("worker-0", 1, "b"), ("worker-1", 2, "b"),
    ]  # fmt: skip
    identity = verify(b"s", plan.learners[2].token)
    assert identity is not None
    assert (identity.job, identity.attempt, identity.rank, identity.name) == ("j1", 2, 2, "worker-1")
    assert plan.checkpoint_attempts == (1,)
    # What names a repeatable run depends neither on secrets nor on who carries it out.
    assert digest(plan) == digest(render(job, SPEC, term=9, secret=b"other", sizes=SIZES))

"""What a Guardian concludes from helpers' reports and the cluster's own word."""

from __future__ import annotations

import json
from dataclasses import replace

from services.core.domain.codec import dump
from services.core.domain.job import Attempt, new_job
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.domain.status import Phase
from services.core.domain.tokens import verify
from services.core.ports.cluster import LearnerProcess, Observation
from services.core.ports.status_store import Change, Entry
from services.guardian import facts
from services.guardian.render import digest, render
from services.guardian.view import LearnerView

SPEC = parse_spec({"name": "n", "command": "true", "roles": {"ps": {"count": 1}, "worker": {"count": 2}}})


def report(name: str, rank: int, phase: Phase, *, seq: int = 1, attempt: int = 1) -> LearnerStatus:
    return LearnerStatus(name=name, role=name.rpartition("-")[0], rank=rank, attempt=attempt, seq=seq, phase=phase)


def ended(name: str, *, attempt: int = 1, code: int = 0) -> Observation:
    process = LearnerProcess(name=name, attempt=attempt, state="exited", started=1, exit=Exit(time=5, code=code))
    return Observation(learners=[process], attempts=[attempt])


def test_an_exit_that_only_the_cluster_has_seen_is_a_fact() -> None:
    known = facts.learners(SPEC, 1, {"worker-1": report("worker-1", 2, Phase.PROCESSING)}, ended("worker-1", code=3))
    assert known["worker-1"].exit == Exit(time=5, code=3)


def test_a_learner_whose_helper_never_spoke_is_known_by_the_cluster_with_its_global_rank() -> None:
    known = facts.learners(SPEC, 1, {}, ended("worker-1"))
    assert (known["worker-1"].rank, known["worker-1"].role) == (2, "worker")


def test_what_is_left_of_an_older_attempt_says_nothing_about_this_one() -> None:
    assert facts.learners(SPEC, 2, {}, ended("worker-1", attempt=1)) == {}


def test_a_learner_that_ran_is_waited_for_until_it_is_stored() -> None:
    known = facts.learners(SPEC, 1, {}, ended("worker-0"))
    assert facts.unstored(known, ended("worker-0"), 1) == ["worker-0"]
    stored = {"worker-0": report("worker-0", 1, Phase.STORED)}
    assert facts.unstored(stored, ended("worker-0"), 1) == []


def test_a_learner_that_never_ran_and_never_reported_has_nothing_to_store() -> None:
    inert = Observation(learners=[LearnerProcess(name="worker-0", attempt=1, state="inert")], attempts=[1])
    assert facts.unstored({}, inert, 1) == []


def test_the_view_keeps_the_newest_report_whatever_order_they_come_in() -> None:
    poked: list[str] = []
    view = LearnerView(poked.append)

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
    view = LearnerView(poked.append)
    for value in ("{", "[]", '{"name": 3}', '"x"', "{}"):
        view.apply(Change("put", "/jobs/j1/learners/worker-0", Entry("/jobs/j1/learners/worker-0", value, 1)))
    assert view.of("j1", 1) == {}
    assert poked == []


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

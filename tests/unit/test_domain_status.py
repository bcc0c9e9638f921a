"""The status machine."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.status import ADMITTED, PHASE_ORDER, RESTING, TERMINAL, Phase, Status, allowed

PATH = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
LIVE = {Status.QUEUED, *ADMITTED}

EDGES = {
    "QUEUED": "PENDING HALTED HALTING FAILED KILLED",
    "PENDING": "DOWNLOADING PROCESSING STORING QUEUED HALTING COMPLETED FAILED KILLED",
    "DOWNLOADING": "PROCESSING STORING QUEUED HALTING COMPLETED FAILED KILLED",
    "PROCESSING": "STORING QUEUED HALTING COMPLETED FAILED KILLED",
    "STORING": "COMPLETED QUEUED HALTING FAILED KILLED",
    "HALTING": "HALTED COMPLETED FAILED KILLED",
    "HALTED": "RESUMED KILLED",
    "RESUMED": "QUEUED FAILED KILLED",
    "COMPLETED": "",
    "FAILED": "",
    "KILLED": "",
}


def test_the_status_machine_has_exactly_these_edges() -> None:
    edges = {current.value: {to.value for to in Status if allowed(current, to)} for current in Status}
    assert edges == {current: set(to.split()) for current, to in EDGES.items()}


def test_the_path_of_a_job_that_succeeds_is_allowed() -> None:
    assert all(allowed(Status(current), Status(to)) for current, to in itertools.pairwise(PATH))


@given(st.sampled_from(sorted(TERMINAL)), st.sampled_from(Status))
def test_no_edge_leads_out_of_a_terminal_status(current: Status, to: Status) -> None:
    assert not allowed(current, to)


@given(st.sampled_from(Status))
def test_no_edge_leads_from_a_status_to_itself(status: Status) -> None:
    assert not allowed(status, status)


def test_every_live_job_can_fail_and_be_killed() -> None:
    assert all(allowed(status, to) for status in LIVE for to in (Status.FAILED, Status.KILLED))


def test_each_status_is_queued_admitted_resting_or_resumed() -> None:
    assert {Status.QUEUED} | ADMITTED | RESTING | {Status.RESUMED} == set(Status)
    assert not ADMITTED & RESTING
    assert TERMINAL < RESTING


def test_phases_are_ordered_as_a_learner_passes_them() -> None:
    names = ["WAITING", "DOWNLOADING", "READY", "PROCESSING", "STORING", "STORED"]
    assert sorted(Phase, key=PHASE_ORDER.__getitem__) == [Phase(name) for name in names]

"""What a job document may become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.domain.errors import Conflict, IllegalTransition
from services.core.domain.job import (
    Claim,
    Event,
    Job,
    State,
    admitted,
    advanced,
    apply_desired,
    check_replace,
    moved,
    released,
    removed,
    set_desired,
    trimmed,
)
from services.core.domain.status import RESTING, TERMINAL, Desired, Status, allowed
from tests.documents import NOW, a_job, at_status

S = Status
D = Desired


def running(job: Job | None = None, *, now: int = NOW) -> Job:
    job = admitted(job or a_job(), placement={"worker-0": "n1"}, dispatcher_term=3, now=now)
    return advanced(job, S.PROCESSING, actor="guardian", now=now)


def path(job: Job) -> list[str]:
    return [event.to.value for event in job.history_tail]


# --- moving --------------------------------------------------------------------


def test_a_new_job_is_queued_with_its_first_event_inside() -> None:
    job = a_job()
    assert (job.status, job.rev, job.generation, job.holds) == (S.QUEUED, 1, 1, False)
    (event,) = job.history_tail
    assert (event.seq, event.to, event.from_status, event.actor) == (1, S.QUEUED, None, "user:ada")


@given(st.sampled_from(Status), st.sampled_from(Status), st.integers(-1000, 1000))
def test_a_move_is_one_event_or_refused(current: Status, to: Status, later: int) -> None:
    job = replace(a_job(), state=State(status=current, since=NOW))
    if not allowed(current, to):
        with pytest.raises(IllegalTransition, match=f"is {current} and cannot become {to}"):
            moved(job, to, actor="x", now=NOW)
        return
    after = moved(job, to, actor="x", now=NOW + later, reason="R", message="m")
    event = after.history_tail[-1]
    assert (after.status, after.state.reason, after.state.message) == (to, "R", "m")
    assert (event.seq, event.from_status, event.to, event.reason) == (2, current, to, "R")
    assert after.state.since == event.time == max(NOW, NOW + later)  # history never runs backwards
    assert after.finished == (event.time if to in TERMINAL else None)


def test_an_admission_is_a_new_attempt_and_its_event_says_which() -> None:
    first = running()
    assert (first.attempt.number, first.holds, first.dispatcher_term) == (1, True, 3)
    assert first.history_tail[1].attempt == 1
    claimed = replace(first, guardian=Claim(term=4, nonce="n", holder="g"))
    queued = released(moved(claimed, S.QUEUED, actor="guardian", now=NOW + 1), now=NOW + 2)
    second = admitted(queued, placement={}, dispatcher_term=5, now=NOW + 3)
    assert (second.attempt.number, second.released, second.verdict) == (2, None, None)
    assert second.guardian == Claim(term=4)
    assert second.history_tail[-1].attempt == 2
    check_replace(queued, second)


def test_advancing_notes_every_step_with_the_time_at_which_it_was_passed() -> None:
    job = admitted(a_job(), placement={}, dispatcher_term=1, now=NOW)
    times = {S.DOWNLOADING: NOW + 5, S.PROCESSING: NOW + 9_999}
    job = advanced(job, S.STORING, actor="guardian", now=NOW + 100, times=times)
    assert path(job)[2:] == ["DOWNLOADING", "PROCESSING", "STORING"]
    # No time lies in the future, whatever a learner's clock said.
    assert [event.time for event in job.history_tail[2:]] == [NOW + 5, NOW + 100, NOW + 100]
    assert job.updated == NOW + 100


@pytest.mark.parametrize("to", [S.PENDING, S.PROCESSING, S.QUEUED, S.COMPLETED])
def test_advancing_never_goes_back_and_never_leaves_the_path(to: Status) -> None:
    job = running()
    assert advanced(job, to, actor="guardian", now=NOW + 1) is job
    queued = a_job()
    assert advanced(queued, S.STORING, actor="guardian", now=NOW) is queued


# --- wishes --------------------------------------------------------------------


def test_a_waiting_job_obeys_at_once() -> None:
    for wish, status in ((D.HALT, S.HALTED), (D.KILL, S.KILLED)):
        job = set_desired(a_job(), wish, actor="user:ada", now=NOW + 1)
        assert (job.status, job.desired, job.generation, job.observed_generation) == (status, wish, 2, 2)
        assert job.history_tail[-1].actor == "user:ada"


def test_a_running_job_is_left_to_its_guardian() -> None:
    for wish in (D.HALT, D.KILL):
        job = set_desired(running(), wish, actor="user:ada", now=NOW + 1)
        assert (job.status, job.desired, job.generation, job.observed_generation) == (S.PROCESSING, wish, 2, 0)


def test_a_wish_repeated_changes_nothing() -> None:
    halting = set_desired(running(), D.HALT, actor="a", now=NOW)
    assert set_desired(halting, D.HALT, actor="a", now=NOW + 9) is halting
    killed = set_desired(a_job(), D.KILL, actor="a", now=NOW)
    assert set_desired(killed, D.KILL, actor="a", now=NOW + 9) is killed
    halted = replace(at_status(a_job(), S.HALTED), desired=D.RUN)
    assert set_desired(halted, D.HALT, actor="a", now=NOW) is halted


def test_a_kill_is_not_softened_into_a_halt() -> None:
    killing = set_desired(running(), D.KILL, actor="a", now=NOW)
    assert set_desired(killing, D.HALT, actor="a", now=NOW) is killing
    halting = set_desired(running(), D.HALT, actor="a", now=NOW)
    assert set_desired(halting, D.KILL, actor="a", now=NOW).desired is D.KILL


def test_what_has_ended_takes_no_wish() -> None:
    for status in TERMINAL:
        ended = at_status(running(), S.STORING, status)
        for wish in Desired:
            if (wish, status) == (D.KILL, S.KILLED):
                continue
            with pytest.raises(IllegalTransition, match="has ended"):
                set_desired(ended, wish, actor="a", now=NOW)


def test_only_a_halted_job_that_gave_everything_back_is_resumed() -> None:
    for job in (a_job(), running()):
        with pytest.raises(IllegalTransition, match="only a HALTED job"):
            set_desired(job, D.RUN, actor="a", now=NOW)
    halted = at_status(set_desired(running(), D.HALT, actor="a", now=NOW), S.HALTING, S.HALTED)
    with pytest.raises(IllegalTransition, match="resume it again in a moment"):
        set_desired(halted, D.RUN, actor="a", now=NOW)
    free = released(replace(halted, not_before=NOW + 999), now=NOW)
    resumed = set_desired(free, D.RUN, actor="a", now=NOW + 1)
    assert (resumed.status, resumed.desired, resumed.not_before) == (S.QUEUED, D.RUN, 0)
    assert path(resumed)[-2:] == ["RESUMED", "QUEUED"]
    assert resumed.observed_generation == resumed.generation == 3
    check_replace(free, resumed)


def test_a_halted_job_can_be_killed() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    assert set_desired(halted, D.KILL, actor="a", now=NOW).status is S.KILLED


def test_what_was_wished_while_a_job_held_hardware_is_obeyed_at_its_release() -> None:
    rolled_back = moved(running(), S.QUEUED, actor="guardian", now=NOW)
    for wish, status in ((D.HALT, S.HALTED), (D.KILL, S.KILLED)):
        waiting = set_desired(rolled_back, wish, actor="a", now=NOW)
        assert waiting.status is S.QUEUED
        done = released(waiting, now=NOW + 1)
        assert (done.status, done.observed_generation, done.released) == (status, 2, NOW + 1)
        assert (done.guardian.holder, done.guardian.nonce) == ("", "")
    assert released(rolled_back, now=NOW).status is S.QUEUED


def test_obeying_twice_is_obeying_once() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    assert apply_desired(halted, actor="lcm", now=NOW) is halted
    ended = at_status(running(), S.FAILED)
    assert apply_desired(replace(ended, released=NOW, desired=D.KILL), actor="lcm", now=NOW).status is S.FAILED


def test_only_what_is_at_rest_and_holds_nothing_is_removed() -> None:
    for live in (a_job(), running()):
        with pytest.raises(Conflict, match="kill it first"):
            removed(live, now=NOW)
    ended = at_status(running(), S.FAILED)
    with pytest.raises(Conflict, match="giving back its hardware"):
        removed(ended, now=NOW)
    gone = removed(released(ended, now=NOW), now=NOW + 1)
    assert gone.deleted == NOW + 1
    check_replace(ended, gone)


def test_trimming_drops_what_was_copied() -> None:
    job = running()
    assert [event.seq for event in trimmed(job, copied_seq=2).history_tail] == [3, 4]
    check_replace(job, trimmed(job, copied_seq=2))
    check_replace(job, trimmed(job, copied_seq=99))


# --- what a store refuses ------------------------------------------------------

PRIOR = replace(
    running(),
    generation=3,
    observed_generation=2,
    guardian=Claim(term=2, nonce="n", holder="g"),
    code_digest="sha256:1",
)
NEXT = moved(PRIOR, S.STORING, actor="guardian", now=NOW)
EVENT = NEXT.history_tail[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "jx"}, "id never changes"),
        ({"tenant": "x"}, "tenant never changes"),
        ({"user": "x"}, "user never changes"),
        ({"idem": "x"}, "idem never changes"),
        ({"created": 1}, "created never changes"),
        ({"code_digest": "x"}, "code_digest never changes"),
        ({"generation": 2}, "generation never falls"),
        ({"observed_generation": 1}, "observed_generation never falls"),
        ({"history_seq": 3}, "history_seq never falls"),
        ({"dispatcher_term": 2}, "dispatcher_term never falls"),
        ({"attempt": replace(PRIOR.attempt, number=0)}, "attempt and term never fall"),
        ({"guardian": Claim(term=1)}, "attempt and term never fall"),
        ({"history_seq": 6}, "gap"),
        ({"history_tail": ()}, "gap"),
        ({"history_tail": (*PRIOR.history_tail, replace(EVENT, seq=6))}, "gap"),
        ({"history_tail": (*NEXT.history_tail, EVENT)}, "gap"),
        ({"history_tail": (*PRIOR.history_tail[:2], EVENT)}, "what is in its history never changes"),
        ({"history_tail": (replace(PRIOR.history_tail[0], actor="x"), *NEXT.history_tail[1:])}, "never changes"),
        (
            {"history_tail": (*PRIOR.history_tail, replace(EVENT, to=S.PENDING))},
            "is PROCESSING and cannot become PENDING",
        ),
        ({"history_tail": (*PRIOR.history_tail, replace(EVENT, from_status=S.PENDING))}, "cannot become STORING"),
        ({"history_tail": (*PRIOR.history_tail, replace(EVENT, from_status=None))}, "cannot become STORING"),
        ({"state": PRIOR.state}, "a change of status needs its event"),
        ({"attempt": replace(PRIOR.attempt, number=2)}, "attempt 1 still holds hardware"),
    ],
    ids=str,
)
def test_a_store_refuses(change: dict[str, Any], says: str) -> None:
    check_replace(PRIOR, NEXT)
    with pytest.raises(IllegalTransition, match=says):
        check_replace(PRIOR, replace(NEXT, **change))


def test_resumed_is_an_event_and_never_a_stored_status() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    with pytest.raises(IllegalTransition):
        check_replace(halted, moved(halted, S.RESUMED, actor="a", now=NOW))


def test_a_status_does_not_change_without_its_event() -> None:
    with pytest.raises(IllegalTransition, match="needs its event"):
        check_replace(PRIOR, replace(PRIOR, state=State(status=S.FAILED, since=NOW)))


# --- every change of the domain's own is one that stores accept -----------------


class LifeOfAJob(RuleBasedStateMachine):
    """Owner, dispatcher and Guardian do what they may, in any order; the store looks on."""

    def __init__(self) -> None:
        super().__init__()
        self.job = a_job()
        self.copied: list[Event] = []
        self.now = NOW

    def store(self, new: Job) -> None:
        check_replace(self.job, new)
        self.job = replace(new, rev=self.job.rev + 1)
        self.now += 1

    @rule(wish=st.sampled_from(Desired))
    def wish(self, wish: Desired) -> None:
        try:
            wanted = set_desired(self.job, wish, actor="user:ada", now=self.now)
        except IllegalTransition:
            return
        self.store(wanted)

    @rule()
    def admit(self) -> None:
        if self.job.status is S.QUEUED and not self.job.holds:
            self.store(admitted(self.job, placement={}, dispatcher_term=self.job.dispatcher_term + 1, now=self.now))

    @rule(to=st.sampled_from(Status))
    def advance(self, to: Status) -> None:
        self.store(advanced(self.job, to, actor="guardian", now=self.now))

    @rule(to=st.sampled_from([S.COMPLETED, S.FAILED, S.KILLED, S.HALTING, S.HALTED, S.QUEUED]))
    def end(self, to: Status) -> None:
        if self.job.holds and allowed(self.job.status, to):
            self.store(moved(self.job, to, actor="guardian", now=self.now))

    @rule()
    def release(self) -> None:
        if self.job.holds and self.job.status in RESTING | {S.QUEUED}:
            self.store(released(self.job, now=self.now))

    @rule(upto=st.integers(0, 10))
    def copy(self, upto: int) -> None:
        tail = self.job.history_tail[:upto]
        if tail:
            self.copied += tail
            self.store(trimmed(self.job, copied_seq=tail[-1].seq))

    @invariant()
    def history_is_whole(self) -> None:
        events = [*self.copied, *self.job.history_tail]
        assert [event.seq for event in events] == list(range(1, self.job.history_seq + 1))
        assert [event.time for event in events] == sorted(event.time for event in events)
        assert events[-1].to is self.job.status

    @invariant()
    def a_wish_that_can_be_had_at_once_is(self) -> None:
        if self.job.status is S.QUEUED and not self.job.holds:
            assert self.job.desired is D.RUN


TestLifeOfAJob = LifeOfAJob.TestCase

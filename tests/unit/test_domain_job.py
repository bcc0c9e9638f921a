"""Changes of the job document, and the replaces that stores refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.domain.errors import Conflict, IllegalTransition, NotFound
from services.core.domain.job import (
    KEPT_APPLIED_KEYS,
    PLATFORM,
    AppliedKey,
    Claim,
    Event,
    Job,
    State,
    admitted,
    advanced,
    apply_desired,
    check_replace,
    erased,
    moved,
    released,
    removed,
    set_desired,
    trimmed,
    with_applied_key,
)
from services.core.domain.status import RESTING, TERMINAL, Desired, Status, allowed
from tests.documents import NOW, a_job, at_status

S = Status
D = Desired


def running(job: Job | None = None, *, now: int = NOW) -> Job:
    job = admitted(job or a_job(), placement={"worker-0": "n1"}, dispatcher_term=3, now=now)
    return advanced(job, S.PROCESSING, actor="guardian", now=now)


def statuses(job: Job) -> list[str]:
    """The statuses in the history tail, in order."""
    return [event.to.value for event in job.history_tail]


# --- changes of status --------------------------------------------------------------------


def test_a_new_job_is_queued_with_its_first_event() -> None:
    job = a_job()
    assert (job.status, job.rev, job.generation, job.holds) == (S.QUEUED, 1, 1, False)
    (event,) = job.history_tail
    assert (event.seq, event.to, event.from_status, event.actor) == (1, S.QUEUED, None, "user:ada")


@given(st.sampled_from(Status), st.sampled_from(Status), st.integers(-1000, 1000))
def test_a_change_of_status_appends_one_event_or_is_refused(current: Status, to: Status, later: int) -> None:
    job = replace(a_job(), state=State(status=current, since=NOW))
    if not allowed(current, to):
        with pytest.raises(IllegalTransition, match=f"is {current} and cannot become {to}"):
            moved(job, to, actor="x", now=NOW)
        return
    after = moved(job, to, actor="x", now=NOW + later, reason="R", message="m")
    event = after.history_tail[-1]
    assert (after.status, after.state.reason, after.state.message) == (to, "R", "m")
    assert (event.seq, event.from_status, event.to, event.reason) == (2, current, to, "R")
    assert after.state.since == event.time == max(NOW, NOW + later)  # times in the history never decrease
    assert after.finished == (event.time if to in TERMINAL else None)


def test_an_admission_begins_a_new_attempt_and_its_event_has_the_number() -> None:
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


def test_advancing_appends_an_event_for_each_step_with_its_time() -> None:
    job = admitted(a_job(), placement={}, dispatcher_term=1, now=NOW)
    times = {S.DOWNLOADING: NOW + 5, S.PROCESSING: NOW + 9_999}
    job = advanced(job, S.STORING, actor="guardian", now=NOW + 100, times=times)
    assert statuses(job)[2:] == ["DOWNLOADING", "PROCESSING", "STORING"]
    # A time in the future, from a learner's wrong clock, counts as now.
    assert [event.time for event in job.history_tail[2:]] == [NOW + 5, NOW + 100, NOW + 100]
    assert job.updated == NOW + 100


@pytest.mark.parametrize("to", [S.PENDING, S.PROCESSING, S.QUEUED, S.COMPLETED])
def test_advancing_changes_nothing_backwards_or_off_the_path(to: Status) -> None:
    job = running()
    assert advanced(job, to, actor="guardian", now=NOW + 1) is job
    queued = a_job()
    assert advanced(queued, S.STORING, actor="guardian", now=NOW) is queued


# --- desired state -------------------------------------------------------------


def test_halt_and_kill_of_a_queued_job_apply_at_once() -> None:
    for desired, status in ((D.HALT, S.HALTED), (D.KILL, S.KILLED)):
        job = set_desired(a_job(), desired, actor="user:ada", now=NOW + 1)
        assert (job.status, job.desired, job.generation, job.observed_generation) == (status, desired, 2, 2)
        assert job.history_tail[-1].actor == "user:ada"


def test_halt_and_kill_of_a_running_job_are_left_to_its_guardian() -> None:
    for desired in (D.HALT, D.KILL):
        job = set_desired(running(), desired, actor="user:ada", now=NOW + 1)
        assert (job.status, job.desired, job.generation, job.observed_generation) == (S.PROCESSING, desired, 2, 0)


def test_a_repeated_request_changes_nothing() -> None:
    halting = set_desired(running(), D.HALT, actor="a", now=NOW)
    assert set_desired(halting, D.HALT, actor="a", now=NOW + 9) is halting
    killed = set_desired(a_job(), D.KILL, actor="a", now=NOW)
    assert set_desired(killed, D.KILL, actor="a", now=NOW + 9) is killed
    halted = replace(at_status(a_job(), S.HALTED), desired=D.RUN)
    assert set_desired(halted, D.HALT, actor="a", now=NOW) is halted


def test_a_users_halt_of_a_job_that_the_stop_of_the_platform_halts_becomes_the_users() -> None:
    halting = set_desired(running(), D.HALT, actor=PLATFORM, now=NOW)
    halted = set_desired(a_job(), D.HALT, actor=PLATFORM, now=NOW)
    for job in (halting, halted):
        assert job.halted_by_platform
        taken = set_desired(job, D.HALT, actor="user:ada", now=NOW + 9)
        assert taken == replace(job, desired_by="user:ada", updated=NOW + 9)
        assert not taken.halted_by_platform
        assert set_desired(taken, D.HALT, actor=PLATFORM, now=NOW + 10) is taken


def test_a_halt_after_a_kill_changes_nothing() -> None:
    killing = set_desired(running(), D.KILL, actor="a", now=NOW)
    assert set_desired(killing, D.HALT, actor="a", now=NOW) is killing
    halting = set_desired(running(), D.HALT, actor="a", now=NOW)
    assert set_desired(halting, D.KILL, actor="a", now=NOW).desired is D.KILL


def test_the_desired_state_of_an_ended_job_cannot_be_changed() -> None:
    for status in TERMINAL:
        ended = at_status(running(), S.STORING, status)
        for desired in Desired:
            if (desired, status) == (D.KILL, S.KILLED):
                continue
            with pytest.raises(IllegalTransition, match="has ended"):
                set_desired(ended, desired, actor="a", now=NOW)


def test_only_a_halted_and_released_job_can_be_resumed() -> None:
    for job in (a_job(), running()):
        with pytest.raises(IllegalTransition, match="only a HALTED job"):
            set_desired(job, D.RUN, actor="a", now=NOW)
    halted = at_status(set_desired(running(), D.HALT, actor="a", now=NOW), S.HALTING, S.HALTED)
    with pytest.raises(IllegalTransition, match="resume it again in a moment"):
        set_desired(halted, D.RUN, actor="a", now=NOW)
    free = released(replace(halted, not_before=NOW + 999), now=NOW)
    resumed = set_desired(free, D.RUN, actor="a", now=NOW + 1)
    assert (resumed.status, resumed.desired, resumed.not_before) == (S.QUEUED, D.RUN, 0)
    assert statuses(resumed)[-2:] == ["RESUMED", "QUEUED"]
    assert resumed.observed_generation == resumed.generation == 3
    check_replace(free, resumed)


def test_a_halted_job_can_be_killed() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    assert set_desired(halted, D.KILL, actor="a", now=NOW).status is S.KILLED


def test_a_halt_or_kill_of_a_job_that_holds_hardware_applies_at_its_release() -> None:
    rolled_back = moved(running(), S.QUEUED, actor="guardian", now=NOW)
    for desired, status in ((D.HALT, S.HALTED), (D.KILL, S.KILLED)):
        waiting = set_desired(rolled_back, desired, actor="a", now=NOW)
        assert waiting.status is S.QUEUED
        done = released(waiting, now=NOW + 1)
        assert (done.status, done.observed_generation, done.released) == (status, 2, NOW + 1)
        assert (done.guardian.holder, done.guardian.nonce) == ("", "")
    assert released(rolled_back, now=NOW).status is S.QUEUED


def test_a_job_that_is_killed_or_halted_without_hardware_says_by_whom() -> None:
    """`weft list` and `weft events` showed no reason for it."""
    halted = set_desired(a_job(), D.HALT, actor="user:ada", now=NOW)
    killed = set_desired(halted, D.KILL, actor="user:bob", now=NOW)
    assert (halted.state.reason, halted.state.message) == ("Halted", "halted by ada")
    assert (killed.state.reason, killed.state.message) == ("Killed", "killed by bob")
    assert killed.history_tail[-1].message == "killed by bob"


def test_applying_the_desired_state_again_changes_nothing() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    assert apply_desired(halted, now=NOW) is halted
    ended = at_status(running(), S.FAILED)
    assert apply_desired(replace(ended, released=NOW, desired=D.KILL), now=NOW).status is S.FAILED


def test_the_latest_applied_keys_are_kept_and_the_oldest_dropped() -> None:
    job = a_job()
    dropped: list[AppliedKey] = []
    for number in range(KEPT_APPLIED_KEYS + 2):
        job, oldest = with_applied_key(job, f"key {number}", now=NOW + number)
        dropped += oldest
    assert [applied.key for applied in dropped] == ["key 0", "key 1"]
    assert len(job.applied_keys) == KEPT_APPLIED_KEYS
    assert job.was_applied("key 2", since=NOW + 1)
    assert not job.was_applied("key 2", since=NOW + 2)
    assert not job.was_applied("key 0", since=NOW - 1)


def test_only_a_job_at_rest_can_be_deleted_and_then_not_changed() -> None:
    for live in (a_job(), running()):
        with pytest.raises(Conflict, match="kill it first"):
            removed(live, actor="user:ada", now=NOW)
    ended = at_status(running(), S.FAILED)
    with pytest.raises(Conflict, match="giving back its hardware"):
        removed(ended, actor="user:ada", now=NOW)
    deleted = removed(released(ended, now=NOW), actor="user:ada", now=NOW + 1)
    assert deleted.deleted == NOW + 1
    check_replace(ended, deleted)
    with pytest.raises(NotFound, match="there is no job"):
        set_desired(deleted, D.KILL, actor="a", now=NOW + 2)


def test_a_deletion_cannot_be_undone_and_only_a_deleted_job_is_erased() -> None:
    halted = at_status(a_job(), S.HALTED)
    with pytest.raises(Conflict, match="not deleted"):
        erased(halted, now=NOW)
    with pytest.raises(IllegalTransition, match="is never erased"):
        check_replace(halted, replace(halted, erased=NOW))
    deleted = removed(halted, actor="user:eve", now=NOW + 1)
    assert deleted.deleted_by == "user:eve"
    check_replace(halted, deleted)
    for changed in (replace(deleted, deleted=None), replace(deleted, deleted=NOW + 2)):
        with pytest.raises(IllegalTransition, match="never changes"):
            check_replace(deleted, changed)
    resumed = at_status(replace(deleted, desired=D.RUN), S.RESUMED, S.QUEUED)
    with pytest.raises(IllegalTransition, match="stays at rest"):
        check_replace(deleted, resumed)
    done = erased(deleted, now=NOW + 2)
    assert done.erased == NOW + 2
    assert erased(done, now=NOW + 3) is done
    check_replace(deleted, done)
    with pytest.raises(IllegalTransition, match="never changes"):
        check_replace(done, replace(done, erased=None))


def test_trimming_drops_the_copied_events() -> None:
    job = running()
    assert [event.seq for event in trimmed(job, copied_seq=2).history_tail] == [3, 4]
    check_replace(job, trimmed(job, copied_seq=2))
    check_replace(job, trimmed(job, copied_seq=99))


# --- replaces that a store refuses ------------------------------------------------------

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
    ("change", "message"),
    [
        ({"id": "jx"}, "id never changes"),
        ({"tenant": "x"}, "tenant never changes"),
        ({"user": "x"}, "user never changes"),
        ({"idem": "x"}, "idem never changes"),
        ({"created": 1}, "created never changes"),
        ({"code_digest": "x"}, "code_digest never changes"),
        ({"generation": 2}, "generation never decreases"),
        ({"observed_generation": 1}, "observed_generation never decreases"),
        ({"history_seq": 3}, "history_seq never decreases"),
        ({"dispatcher_term": 2}, "dispatcher_term never decreases"),
        ({"attempt": replace(PRIOR.attempt, number=0)}, "attempt and term never decrease"),
        ({"guardian": Claim(term=1)}, "attempt and term never decrease"),
        ({"history_seq": 6}, "gap"),
        ({"history_tail": ()}, "gap"),
        ({"history_tail": (*PRIOR.history_tail, replace(EVENT, seq=6))}, "gap"),
        ({"history_tail": (*NEXT.history_tail, EVENT)}, "gap"),
        ({"history_tail": (*PRIOR.history_tail[:2], EVENT)}, "past events of the history never change"),
        ({"history_tail": (replace(PRIOR.history_tail[0], actor="x"), *NEXT.history_tail[1:])}, "never change"),
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
def test_a_store_refuses_an_illegal_replace(change: dict[str, Any], message: str) -> None:
    check_replace(PRIOR, NEXT)
    with pytest.raises(IllegalTransition, match=message):
        check_replace(PRIOR, replace(NEXT, **change))


def test_resumed_is_never_a_stored_status() -> None:
    halted = set_desired(a_job(), D.HALT, actor="a", now=NOW)
    with pytest.raises(IllegalTransition):
        check_replace(halted, moved(halted, S.RESUMED, actor="a", now=NOW))


def test_a_change_of_status_without_its_event_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="needs its event"):
        check_replace(PRIOR, replace(PRIOR, state=State(status=S.FAILED, since=NOW)))


# --- stores accept every change that the domain makes ---------------------------


class LifeOfAJob(RuleBasedStateMachine):
    """Owner, dispatcher and Guardian make their changes in any order; ``check_replace`` accepts each."""

    def __init__(self) -> None:
        super().__init__()
        self.job = a_job()
        self.copied: list[Event] = []
        self.now = NOW

    def store(self, new: Job) -> None:
        check_replace(self.job, new)
        self.job = replace(new, rev=self.job.rev + 1)
        self.now += 1

    @rule(desired=st.sampled_from(Desired))
    def set_desired(self, desired: Desired) -> None:
        try:
            changed = set_desired(self.job, desired, actor="user:ada", now=self.now)
        except IllegalTransition:
            return
        self.store(changed)

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

    @rule(count=st.integers(0, 10))
    def copy_history(self, count: int) -> None:
        tail = self.job.history_tail[:count]
        if tail:
            self.copied += tail
            self.store(trimmed(self.job, copied_seq=tail[-1].seq))

    @invariant()
    def history_is_complete(self) -> None:
        events = [*self.copied, *self.job.history_tail]
        assert [event.seq for event in events] == list(range(1, self.job.history_seq + 1))
        assert [event.time for event in events] == sorted(event.time for event in events)
        assert events[-1].to is self.job.status

    @invariant()
    def a_queued_job_without_hardware_desires_to_run(self) -> None:
        if self.job.status is S.QUEUED and not self.job.holds:
            assert self.job.desired is D.RUN


TestLifeOfAJob = LifeOfAJob.TestCase

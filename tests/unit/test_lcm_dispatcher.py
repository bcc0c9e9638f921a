"""The dispatcher: one process leads, gangs are admitted as a whole, no place is given away twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.core.domain.errors import Conflict
from services.core.domain.ids import make_id
from services.core.domain.job import admitted, released
from services.core.domain.spec import parse_spec
from services.core.domain.status import Desired, PendingReason, Status
from services.core.ports.cluster import Node
from services.core.ports.job_store import DispatcherDoc
from services.core.use_cases.jobs import copy_history, history
from services.lcm.scheduling import policies
from services.lcm.scheduling.fifo import FifoWalk
from services.lcm.scheduling.policy import Waiter
from tests.documents import a_job
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, Process
from tests.testbed.tripwire import Tripwire

pytestmark = pytest.mark.looptime(noop_cycles=0)
PENDING = ["QUEUED", "PENDING"]
ALL = {"resources": {"cpus": 16, "memory": "1GB"}}
"""All CPUs of the only node."""


async def leading(plane: ControlPlane, process: Process) -> int:
    """The process's term, once it leads."""
    while not process.service.term:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.05)
    return int(process.service.term)


async def late_admission(plane: ControlPlane, job_id: str, *, term: int) -> None:
    """Writes what a dispatcher writes that was paused between its last read and its write."""
    job = await plane.job(job_id)
    late = admitted(job, placement={"worker-0": "local"}, dispatcher_term=term, now=plane.clock.now_ms())
    await copy_history(plane.jobs, await plane.jobs.replace(job, late))


# --- leadership --------------------------------------------------------------------


async def test_a_second_dispatcher_leads_after_the_first_was_killed(plane: ControlPlane) -> None:
    first = await plane.start_lcm(place="one")
    assert await leading(plane, first) == 1
    second = await plane.start_lcm(place="two")
    await asyncio.sleep(10)
    assert (first.service.term, second.service.term) == (1, 0)
    await plane.kill(first)
    await asyncio.sleep(4)
    assert second.service.term == 2
    await plane.start_pool()
    assert (await plane.rested(await plane.submit())).status is Status.COMPLETED


async def test_a_restarted_dispatcher_leads_again_at_once(plane: ControlPlane) -> None:
    first = await plane.start_lcm()
    await leading(plane, first)
    await plane.kill(first)
    second = await plane.start_lcm()
    await asyncio.sleep(1.1)
    assert second.service.term == 2


async def test_a_stopped_dispatcher_hands_the_lead_over_at_once(plane: ControlPlane) -> None:
    first = await plane.start_lcm(place="one")
    await leading(plane, first)
    second = await plane.start_lcm(place="two")
    await plane.stop(first)
    await asyncio.sleep(1.1)
    assert second.service.term == 2


async def test_a_leader_continues_to_lead_after_etcd_lost_its_data(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    plane.status.forget()
    await asyncio.sleep(3)
    assert process.service.term == 2
    entry = await plane.status.get("/lcm/leader")
    assert entry is not None
    assert process.membership.id in entry.value


async def test_a_leader_that_lost_its_lease_leads_again_on_a_new_lease(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    first = process.membership.lease
    assert first is not None
    plane.status.pause(first.id)
    await asyncio.sleep(5)
    assert process.service.term == 2
    await asyncio.sleep(20)
    assert process.service.term == 2
    assert await plane.status.get("/lcm/leader") is not None


async def test_a_leader_keeps_the_lead_while_the_cluster_is_away(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    plane.cluster.go_away()
    await asyncio.sleep(30)
    plane.cluster.come_back()
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING, within_s=2)
    assert process.service.term == 1


async def test_a_dispatcher_that_never_led_stops_on_request(plane: ControlPlane) -> None:
    first = await plane.start_lcm(place="one")
    await leading(plane, first)
    second = await plane.start_lcm(place="two")
    await asyncio.sleep(1)
    await plane.stop(second)
    assert second.service.term == 0


async def test_only_one_of_two_dispatchers_that_start_at_once_leads(plane: ControlPlane) -> None:
    other = make_id("m", now_ms=plane.clock.now_ms(), random_bits=99)
    await plane.status.put(f"/members/lcm/{other}", "{}")
    wire = Tripwire(at=("status.put_if", 1), what="act", act=lambda: plane.status.put("/lcm/leader", f'"{other}"'))
    process = await plane.start_lcm(wire)
    await asyncio.sleep(5)
    assert (process.service.term, (await plane.jobs.dispatcher()).term) == (0, 0)


@pytest.mark.parametrize("value", ['"m-nobody"', "{", "", '"m-\\u0000"', "[" * 10_000])
async def test_a_leader_key_without_a_live_holder_does_not_prevent_leading(plane: ControlPlane, value: str) -> None:
    await plane.status.put("/lcm/leader", value)
    await plane.start_lcm()
    await plane.start_pool()
    assert (await plane.rested(await plane.submit())).status is Status.COMPLETED


async def test_a_superseded_dispatcher_admits_no_job(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    await plane.jobs.replace_dispatcher(await plane.jobs.dispatcher(), DispatcherDoc(term=7, holder="m-other", rev=1))
    with capture_logs() as logs:
        job_id = await plane.submit()
        await asyncio.sleep(0.1)
        assert (await plane.job(job_id)).status is Status.QUEUED
        await asyncio.sleep(2)
    assert "a newer dispatcher leads" in [line.get("why") for line in logs]
    assert process.service.term == 8
    assert (await plane.job(job_id)).dispatcher_term == 8


async def test_a_superseded_dispatcher_withdraws_no_admission_of_its_successor(
    plane: ControlPlane,
) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    plane.hints.lost = True
    job_id = await plane.submit(learners=1000)  # too large for the only node
    await late_admission(plane, job_id, term=7)
    with capture_logs() as logs:
        await asyncio.sleep(3)
    assert "a newer dispatcher leads" in [line.get("why") for line in logs]
    job = await plane.job(job_id)
    assert (job.status, job.verdict, job.dispatcher_term) == (Status.PENDING, None, 7)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_admission_of_unknown_outcome_has_an_older_term_if_it_arrives_late(
    plane: ControlPlane, when: str
) -> None:
    """Else it would take the place that the next round, which could not see it, gives to another job."""
    wire = Tripwire()
    process = await plane.start_lcm(wire)
    await leading(plane, process)
    job_id = await plane.submit()
    await copy_history(plane.jobs, await plane.job(job_id))
    wire.at, wire.when, wire.what = ("jobs.replace", wire.calls.count("jobs.replace") + 1), when, "cut"
    await plane.until(lambda job: job.dispatcher_term == 2, job_id, within_s=5)
    assert (process.service.term, (await plane.job(job_id)).attempt.number) == (2, 1)


# --- admissions of an older dispatcher -----------------------------------------------


async def test_an_admission_of_an_older_dispatcher_is_provisioned_only_after_it_was_stamped(
    plane: ControlPlane,
) -> None:
    await plane.jobs.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=2, holder="m-newer"))
    await plane.start_pool()
    job_id = await plane.submit()
    await late_admission(plane, job_id, term=1)
    await asyncio.sleep(30)
    assert (await plane.job(job_id)).guardian.term == 1
    assert plane.cluster.done == []
    await plane.start_lcm()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.dispatcher_term) == (Status.COMPLETED, 1, 3)


async def test_a_late_admission_that_fits_is_stamped_by_the_leader(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    await plane.start_pool()
    plane.hints.lost = True
    job_id = await plane.submit()
    await late_admission(plane, job_id, term=0)
    assert (await plane.rested(job_id)).attempt.number == 1
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_a_late_admission_whose_place_is_taken_is_withdrawn_and_never_provisioned(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    await plane.start_pool()
    first = await plane.submit(**ALL)
    plane.helpers.fate(first, run_s=5)
    await plane.running(first)
    plane.hints.lost = True
    second = await plane.submit(retries={"backoff": "0s"}, **ALL)
    await late_admission(plane, second, term=0)
    job = await plane.until(lambda job: job.status is Status.QUEUED and not job.holds, second, within_s=10)
    assert (job.state.reason, job.counters.retries) == ("AdmissionWithdrawn", 0)
    assert {plan.job for _, plan in plane.cluster.done} == {first}
    job = await plane.rested(second)
    assert await plane.path(second) == [*PENDING, *WHOLE_LIFE]
    assert job.attempt.number == 2


async def test_a_committed_attempt_is_not_withdrawn_when_capacity_shrinks(plane: ControlPlane) -> None:
    lcm = await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(**ALL)
    plane.helpers.fate(job_id, run_s=10)
    await plane.until(lambda job: job.attempt.committed, job_id)
    await plane.kill(lcm)
    plane.cluster.nodes = [Node(name="local", cpus=1, memory=10**9, gpus=0)]
    await plane.start_lcm()
    assert (await plane.rested(job_id)).attempt.number == 1


async def test_a_release_during_the_check_of_an_old_admission_is_kept(plane: ControlPlane) -> None:
    wire = Tripwire()
    process = await plane.start_lcm(wire)
    await leading(plane, process)
    plane.hints.lost = True
    fits, does_not = await plane.submit(), await plane.submit(learners=1000)

    async def release(job_id: str) -> None:
        job = await plane.job(job_id)
        await plane.jobs.replace(job, released(replace(job, verdict=None), now=plane.clock.now_ms()))

    for job_id in (fits, does_not):
        await late_admission(plane, job_id, term=0)
        wire.at, wire.act = ("jobs.replace", wire.calls.count("jobs.replace") + 1), partial(release, job_id)
        await asyncio.sleep(1.5)
        job = await plane.job(job_id)
        assert (job.released is not None, job.verdict, job.dispatcher_term) == (True, None, 0)


async def test_a_halt_during_the_admission_is_not_overwritten(plane: ControlPlane) -> None:
    wire = Tripwire(at=("jobs.replace", 1))
    process = await plane.start_lcm(wire)
    await leading(plane, process)
    plane.hints.lost = True
    job_id = await plane.submit()
    await copy_history(plane.jobs, await plane.job(job_id))  # else a background task's write would be the first
    wire.act = partial(plane.set_desired, job_id, Desired.HALT)
    await asyncio.sleep(3)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.number) == (Status.HALTED, 0)


async def test_a_job_halted_at_the_end_of_max_pending_is_not_failed(plane: ControlPlane) -> None:
    wire = Tripwire()
    process = await plane.start_lcm(wire)
    await leading(plane, process)
    job_id = await plane.submit(learners=1000, max_pending="3s")
    wire.at, wire.act = (
        ("jobs.replace", wire.calls.count("jobs.replace") + 2),
        lambda: plane.set_desired(job_id, Desired.HALT),
    )
    await asyncio.sleep(10)
    assert (await plane.job(job_id)).status is Status.HALTED


async def test_a_holding_job_with_an_unreadable_spec_blocks_no_other(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    job_id = await plane.submit(**ALL)
    await plane.reached(job_id, Status.PENDING)
    job = await plane.job(job_id)
    await plane.jobs.replace(job, replace(job, spec={"name": 7}))
    other = await plane.submit()
    await plane.reached(other, Status.PENDING)


# --- what is free ------------------------------------------------------------------


async def test_a_completed_job_holds_its_hardware_until_it_is_released(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    teardown = plane.cluster.hold("teardown")
    first, second = await plane.submit(**ALL), await plane.submit(**ALL)
    await plane.reached(first, Status.COMPLETED)
    await asyncio.sleep(30)
    assert (await plane.job(second)).status is Status.QUEUED
    teardown.set()
    await plane.until(lambda job: job.attempt.number == 1, second, within_s=1)
    await plane.rested(second)


async def test_a_waiting_job_with_an_unreadable_spec_blocks_no_other(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    job_id = await plane.submit(nonsense=True)
    other = await plane.submit()
    await plane.reached(other, Status.PENDING)
    assert [(decision.job.id, decision.pending_reason) for decision in process.service.waiting.values()] == [
        (job_id, "Misconfigured")
    ]
    with capture_logs() as logs:
        await asyncio.sleep(30)
    assert [line for line in logs if line.get("job") == job_id] == []
    assert (await plane.set_desired(job_id, Desired.KILL)).status is Status.KILLED


async def test_jobs_beyond_queue_scan_are_admitted_if_no_job_before_them_waits_for_hardware(
    plane: ControlPlane,
) -> None:
    await plane.start_lcm(queue_scan=3)
    too_large = [await plane.submit(learners=1000) for _ in range(7)]
    fitting = await plane.submit()
    await plane.reached(fitting, Status.PENDING)
    assert {(await plane.job(job_id)).status for job_id in too_large} == {Status.QUEUED}


class NewestFirst(FifoWalk):
    """A policy with an order of its own, in which no job blocks the others."""

    @property
    def blocked(self) -> bool:
        return False

    def order(self, scanned: Sequence[Waiter]) -> Sequence[Waiter]:
        return scanned[::-1]


async def test_policy_orders_each_scan_and_every_job_is_decided_once(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "POLICIES", {"newest-first": NewestFirst})
    first, second, third, fourth, fifth = [await plane.submit(**ALL) for _ in range(5)]
    process = await plane.start_lcm(queue_scan=2, policy="newest-first")
    await plane.reached(second, Status.PENDING)
    await asyncio.sleep(1)  # virtual time: one more round
    assert [decision.job.id for decision in process.service.waiting.values()] == [third, first, fifth, fourth]


async def test_max_pending_applies_to_jobs_beyond_queue_scan(plane: ControlPlane) -> None:
    await plane.start_lcm(queue_scan=2)
    held = await plane.submit(**ALL)
    await plane.reached(held, Status.PENDING)
    waiting = [await plane.submit(max_pending="20s" if number % 2 else "1h", **ALL) for number in range(11)]
    await asyncio.sleep(30)
    assert [(await plane.job(job_id)).status for job_id in waiting] == [
        Status.FAILED if number % 2 else Status.QUEUED for number in range(11)
    ]


async def test_a_job_that_the_store_refuses_to_change_blocks_no_other(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    # The store refuses every admission of it: its dispatcher's term would fall.
    bad = await plane.job(await plane.submit())
    await plane.jobs.replace(bad, replace(bad, dispatcher_term=10**6))
    good = await plane.submit()
    await plane.reached(good, Status.PENDING)
    assert (await plane.job(bad.id)).status is Status.QUEUED


# --- crashes -----------------------------------------------------------------------


async def admit_two(home: Path, wire: Tripwire) -> list[str]:
    """Runs two jobs that need the whole node, and a small one; the first life-cycle manager has the tripwire."""
    plane = ControlPlane(home)
    first = await plane.start_lcm(wire)
    await plane.start_pool()
    jobs = [await plane.submit(**fields) for fields in (ALL, ALL, {})]

    async def succeed() -> None:
        await wire.dead.wait()
        await plane.kill(first)
        await plane.start_lcm()

    successor = asyncio.create_task(succeed())
    for job_id in jobs:
        job = await plane.rested(job_id, within_s=120)
        assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
        assert await plane.path(job_id) == WHOLE_LIFE
    calls = list(wire.calls)
    successor.cancel()
    await asyncio.gather(successor, return_exceptions=True)
    assert await plane.leftovers() == []
    await plane.close()
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["crash", "cut"])
async def test_every_job_runs_once_whichever_call_of_the_dispatcher_fails(what: str, when: str, tmp_path: Path) -> None:
    calls = await admit_two(tmp_path / "undisturbed", Tripwire())
    assert len(calls) > 50
    for number, call in enumerate(calls):
        wire = Tripwire(at=number, when=when, what=what)
        try:
            with capture_logs():
                await admit_two(tmp_path / str(number), wire)
        except AssertionError as error:
            raise AssertionError(f"{what} {when} call {number} ({call}): {error}") from error


async def test_histories_are_copied_after_the_store_returns(plane: ControlPlane) -> None:
    wire = Tripwire(at=("jobs.append_history", 1), what="cut")
    await plane.start_lcm(wire)
    job_id = await plane.submit(learners=1000)
    await plane.until(lambda job: not job.history_tail, job_id)


async def test_a_history_that_cannot_be_copied_stops_no_other(plane: ControlPlane) -> None:
    gone, good = await plane.submit(learners=1000), await plane.submit(learners=1000)
    wire = Tripwire(at=("jobs.append_history", 1), what="act", act=lambda: plane.jobs.delete(gone))
    await plane.start_lcm(wire)
    await plane.until(lambda job: not job.history_tail, good)


async def test_no_dispatcher_leads_until_etcd_answers(plane: ControlPlane) -> None:
    plane.status.go_away()
    process = await plane.start_lcm()
    await asyncio.sleep(10)
    assert process.service.term == 0
    plane.status.come_back()
    await asyncio.sleep(2)
    assert process.service.term == 1


async def test_a_background_task_continues_after_a_bug(plane: ControlPlane) -> None:
    async def fault() -> None:
        raise ValueError("a bug")

    wire = Tripwire(at=("cluster.jobs", 1), what="act", act=fault)
    await plane.start_lcm(wire)
    await plane.status.put("/jobs/jghost/attempt", "{}")
    await asyncio.sleep(45)
    assert await plane.leftovers() == []


async def test_history_is_copied_and_removed_from_the_document(plane: ControlPlane) -> None:
    await plane.start_lcm()
    job_id = await plane.submit(learners=1000)
    job = await plane.until(lambda job: not job.history_tail, job_id)
    assert [event.to for event in await history(plane.jobs, job)] == [Status.QUEUED]


# --- almost full disks ----------------------------------------------------------------------------------------------


async def test_nothing_is_admitted_while_the_only_nodes_disk_is_almost_full_and_it_goes_on_by_itself(
    plane: ControlPlane,
) -> None:
    process = await plane.start_lcm()
    await plane.start_pool()
    await leading(plane, process)
    (node,) = plane.cluster.nodes
    plane.cluster.nodes[:] = [replace(node, pressure="the disk of learners is almost full")]
    with capture_logs() as logs:
        first, second = [await plane.submit() for _ in range(2)]
        await asyncio.sleep(30)
        assert [(await plane.job(job_id)).status for job_id in (first, second)] == [Status.QUEUED] * 2
        reasons = {decision.pending_reason for decision in process.service.waiting.values()}
        assert reasons == {PendingReason.WAITING_FOR_DISK}
        why = {decision.message for decision in process.service.waiting.values()}
        assert why == {"the disk of learners is almost full; it starts when there is room"}
        fit = await process.service.fit(parse_spec({"name": "x", "command": "true"}))
        assert (fit.verdict, fit.message) == ("later", *why)
        plane.cluster.nodes[:] = [node]
        ended = [await plane.rested(job_id) for job_id in (first, second)]
    assert [(job.status, job.attempt.number) for job in ended] == [(Status.COMPLETED, 1)] * 2
    events = [entry["event"] for entry in logs if entry["event"].startswith("admission.")]
    assert events == ["admission.held", "admission.continued"]


async def test_nothing_is_admitted_while_weft_down_halts_the_jobs(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await plane.start_pool()
    await leading(plane, process)
    process.service.stopping = lambda: True
    job_id = await plane.submit()
    await asyncio.sleep(3)
    (decision,) = process.service.waiting.values()
    assert (decision.pending_reason, "next `weft up`" in decision.message) == (PendingReason.PLATFORM_STOPPING, True)
    process.service.stopping = lambda: False
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_running_job_ends_well_while_admission_is_held(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await plane.start_pool()
    await leading(plane, process)
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    (node,) = plane.cluster.nodes
    plane.cluster.nodes[:] = [replace(node, pressure="full")]
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_jobs_are_placed_on_the_nodes_whose_disks_have_room(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await plane.start_pool()
    await leading(plane, process)
    (node,) = plane.cluster.nodes
    plane.cluster.nodes[:] = [replace(node, pressure="full"), replace(node, name="other")]
    job = await plane.rested(await plane.submit(learners=2))
    assert (job.status, set(job.attempt.placement.values())) == (Status.COMPLETED, {"other"})


async def test_tenant_whose_namespace_cannot_be_made_keeps_no_hardware_from_other_tenants(
    plane: ControlPlane,
) -> None:
    """Its job was given all that is free in each round, and could not be admitted: those behind it waited for ever."""
    process = await plane.start_lcm()
    await plane.start_pool()
    await leading(plane, process)
    refused = Conflict("the namespace weft-system is not this installation's; choose another prefix")
    plane.cluster.unprepared = {"system": refused, "other": refused}
    spec = {"name": "digits", "command": "true", **ALL}
    first, second = [
        await plane.jobs.insert(a_job(at=plane.clock.now_ms(), spec=spec, tenant=tenant))
        for tenant in ("system", "other")
    ]
    behind = await plane.submit(**ALL)
    assert (await plane.rested(behind)).status is Status.COMPLETED
    waiting = {job_id: decision.pending_reason for job_id, decision in process.service.waiting.items()}
    assert waiting == dict.fromkeys((first.id, second.id), PendingReason.TENANT_NOT_READY)
    assert process.service.waiting[first.id].message.startswith(refused.message)

    plane.cluster.unprepared.clear()
    assert [(await plane.rested(job.id)).status for job in (first, second)] == [Status.COMPLETED] * 2


async def test_job_that_can_never_fit_is_told_so_while_admission_is_held(plane: ControlPlane) -> None:
    process = await plane.start_lcm()
    await leading(plane, process)
    (node,) = plane.cluster.nodes
    plane.cluster.nodes[:] = [replace(node, pressure="full")]
    await plane.submit(resources={"cpus": 4000})
    await asyncio.sleep(3)
    (decision,) = process.service.waiting.values()
    assert decision.pending_reason is PendingReason.TOO_LARGE_FOR_CLUSTER

"""Whether a gang fits is answered by the dispatcher's own placement code: the answer is what it would decide."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.core.domain.errors import InvalidRequest, Unavailable
from services.core.domain.job import admitted
from services.core.domain.sizes import Size
from services.core.domain.spec import dump_spec, parse_spec
from services.core.domain.status import Status
from services.core.gen.weft.v1 import control_pb2
from services.core.ports.cluster import Node
from services.core.ports.job_store import DispatcherDoc
from services.core.runtime.membership import Membership
from services.core.runtime.quarantine import Quarantine
from services.lcm.dispatcher import Dispatcher
from services.lcm.instrumentation import Instrumentation
from services.lcm.rpc import Queue
from services.lcm.scheduling.snapshot import Fit
from services.lcm.settings import LcmSettings
from tests.testbed.control_plane import ControlPlane

GB = 10**9
VERDICTS: dict[str, Literal["later", "never"]] = {
    "WaitingForCapacity": "later",
    "WaitingInQueue": "later",
    "TooLargeForCluster": "never",
}
SMALL = {"resources": {"cpus": 1, "memory": "1GB"}}


def spec_of(fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": "digits", "command": "true", **fields}


async def leading(plane: ControlPlane, *, place: str = "one") -> Dispatcher:
    """A dispatcher that leads."""
    process = await plane.start_lcm(place=place)
    while not process.service.term:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.05)
    leader: Dispatcher = process.service
    return leader


async def fit(of: Dispatcher, **fields: Any) -> Fit:
    return await of.fit(parse_spec(spec_of(fields)))


nodes = st.lists(
    st.builds(
        Node,
        name=st.uuids().map(str),
        cpus=st.integers(4, 16),
        memory=st.integers(4, 16).map(lambda gb: gb * GB),
        gpus=st.integers(0, 4),
        gpu_type=st.sampled_from(["v100", "h100"]),
        ready=st.sampled_from([True, True, False]),
    ),
    min_size=1,
    max_size=4,
)
roles = st.fixed_dictionaries(
    {
        "count": st.integers(1, 3),
        "cpus": st.sampled_from([0.5, 1, 2, 4]),
        "memory": st.sampled_from(["512MB", "1GB", "4GB"]),
    },
    optional={"gpus": st.integers(0, 2), "gpu_type": st.sampled_from(["v100", "h100"])},
)
gangs = st.fixed_dictionaries(
    {
        "roles": st.dictionaries(st.sampled_from(["ps", "worker", "evaluator"]), roles, min_size=1, max_size=3),
        "placement": st.sampled_from(["pack", "spread"]),
    }
)


@pytest.mark.slow
@given(nodes, st.lists(gangs, min_size=2, max_size=8), gangs)
def test_a_dry_run_on_several_nodes_agrees_with_what_the_dispatcher_then_decides(
    cluster: list[Node], before: list[dict[str, Any]], gang: dict[str, Any]
) -> None:
    async def decide(home: Path) -> tuple[Fit, Fit]:
        plane = ControlPlane(home, nodes=cluster)
        leader = await leader_without_loop(plane)
        for fields in before:
            await plane.submit(**fields)
            await leader.round()
        answer = await fit(leader, **gang)
        job_id = await plane.submit(**gang)
        await leader.round()
        status = (await plane.job(job_id)).status
        await plane.close()
        if status is Status.PENDING:
            return answer, Fit("now")
        [decision] = [decision for decision in leader.waiting.values() if decision.job.id == job_id]
        return answer, Fit(VERDICTS[decision.pending_reason or ""], decision.message)

    with tempfile.TemporaryDirectory() as home:
        answer, decision = asyncio.run(decide(Path(home)))
    assert answer == decision


async def leader_without_loop(plane: ControlPlane) -> Dispatcher:
    """A dispatcher that leads, and whose rounds the test runs itself."""
    settings, clock = LcmSettings(home=plane.home), plane.clock
    leader = Dispatcher(
        plane.jobs,
        plane.status,
        plane.cluster,
        plane.hints,
        clock,
        settings,
        Membership("lcm", plane.status, clock, settings),
        Instrumentation(CollectorRegistry()),
        Quarantine(clock.now_ms, CollectorRegistry()),
    )
    document = await plane.jobs.replace_dispatcher(await plane.jobs.dispatcher(), DispatcherDoc(term=1))
    leader.term = document.term
    return leader


@pytest.mark.looptime(noop_cycles=0)
async def test_a_life_cycle_manager_that_does_not_lead_answers_as_the_leader_does(plane: ControlPlane) -> None:
    leader = await leading(plane, place="one")
    await plane.submit(resources={"cpus": 10, "memory": "1GB"})
    await asyncio.sleep(3)
    follower: Dispatcher = (await plane.start_lcm(place="two")).service
    await asyncio.sleep(3)
    assert (leader.term, follower.term) == (1, 0)
    for fields in (SMALL, {"resources": {"cpus": 7, "memory": "1GB"}}, {"learners": 1000}):
        assert await fit(follower, **fields) == await fit(leader, **fields)
    assert (await follower.snapshot()).usage() == (await leader.snapshot()).usage()
    assert (await plane.jobs.dispatcher()).term == 1


@pytest.mark.looptime(noop_cycles=0)
async def test_an_answer_follows_a_release_within_two_sweeps_where_nobody_leads(plane: ControlPlane) -> None:
    plane.status.go_away()
    follower: Dispatcher = (await plane.start_lcm()).service
    assert (await fit(follower, **SMALL)).verdict == "now"
    job_id = await plane.submit(resources={"cpus": 16, "memory": "1GB"})
    job = await plane.job(job_id)
    now = plane.clock.now_ms()
    await plane.jobs.replace(job, admitted(job, placement={"worker-0": "local"}, dispatcher_term=1, now=now))
    await asyncio.sleep(2.1)
    assert (await fit(follower, **SMALL)).verdict == "later"
    job = await plane.job(job_id)
    await plane.jobs.replace(job, replace(job, released=plane.clock.now_ms()))
    await asyncio.sleep(2.1)
    assert (await fit(follower, **SMALL)).verdict == "now"


@pytest.mark.looptime(noop_cycles=0)
async def test_fit_is_unavailable_while_the_cluster_is_away(plane: ControlPlane) -> None:
    leader = await leading(plane)
    assert (await fit(leader, **SMALL)).verdict == "now"
    plane.cluster.go_away()
    await asyncio.sleep(5)
    with pytest.raises(Unavailable):
        await fit(leader, **SMALL)
    plane.cluster.come_back()
    assert (await fit(leader, **SMALL)).verdict == "now"


@pytest.mark.looptime(noop_cycles=0)
async def test_usage_names_the_jobs_that_hold_a_node_and_what_they_hold(plane: ControlPlane) -> None:
    leader = await leading(plane)
    jobs = sorted([await plane.submit(learners=2, **SMALL), await plane.submit(**SMALL)])
    await asyncio.sleep(2)
    [usage] = (await leader.snapshot()).usage()
    assert (usage.node.name, usage.used, usage.jobs) == ("local", Size(0, 3, 3 * GB), jobs)


@pytest.mark.looptime(noop_cycles=0)
async def test_what_a_job_with_an_unreadable_document_holds_is_shown_as_used(plane: ControlPlane) -> None:
    leader = await leading(plane)
    await plane.start_pool()
    job_id = await plane.submit(**SMALL)
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    plane.jobs.plant(job_id, "{")
    await asyncio.sleep(5)
    [usage] = (await leader.snapshot()).usage()
    assert (usage.used, usage.jobs) == (Size(0, 1, GB), [job_id])
    verdict = (await fit(leader, resources={"cpus": 16, "memory": "1GB"})).verdict
    assert verdict == "later"


@pytest.mark.looptime(noop_cycles=0)
async def test_a_spec_that_cannot_be_read_is_refused_with_its_error(plane: ControlPlane) -> None:
    queue = Queue(await leading(plane))
    with pytest.raises(InvalidRequest, match="not JSON"):
        await queue.Fit(control_pb2.FitRequest(spec=b"{"), None)
    with pytest.raises(InvalidRequest, match="learnerz"):
        await queue.Fit(control_pb2.FitRequest(spec=json.dumps(spec_of({"learnerz": 1})).encode()), None)
    stored = json.dumps(dump_spec(parse_spec(spec_of({"learners": 2})))).encode()
    assert (await queue.Fit(control_pb2.FitRequest(spec=stored), None)).verdict == "now"


@pytest.mark.looptime(noop_cycles=0)
async def test_positions_and_reasons_of_waiting_jobs_are_the_same_from_a_process_that_does_not_lead(
    plane: ControlPlane,
) -> None:
    leader = await leading(plane, place="one")
    follower: Dispatcher = (await plane.start_lcm(place="two")).service
    await plane.submit(resources={"cpus": 10, "memory": "1GB"})
    waiting = [await plane.submit(resources={"cpus": cpus, "memory": "1GB"}) for cpus in (10, 2000, 1)]
    await asyncio.sleep(5)
    assert (leader.term, follower.term) == (1, 0)
    replies = [
        await Queue(of).Explain(control_pb2.ExplainRequest(job_ids=job_ids), None)
        for of in (leader, follower)
        for job_ids in ([], waiting[1:])
    ]
    assert [entry.job_id for entry in replies[0].waiting] == waiting
    assert replies[:2] == replies[2:]


@pytest.mark.looptime(noop_cycles=0)
async def test_a_hint_to_a_process_that_does_not_lead_starts_a_round_of_the_leader_at_once(plane: ControlPlane) -> None:
    await leading(plane, place="one")
    follower = await plane.start_lcm(place="two", sweep_s=60.0)
    await asyncio.sleep(5)
    receivers, plane.hints.receivers = plane.hints.receivers, [follower.on_hint]
    for _ in range(5):  # whatever part of its sweep the leader has slept through
        job_id = await plane.submit(**SMALL)
        await asyncio.sleep(0.01)
        assert (await plane.job(job_id)).status is Status.PENDING
    plane.hints.receivers = receivers
    assert follower.service.term == 0

"""The contract of the Cluster port on Kubernetes: real pods on real kubelets, with the entry script of learners.

Their helpers are stand-ins (tests/testbed/kubernetes/stand_in.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.options import GangMethod
from services.core.domain.errors import QuotaExceeded, Unavailable
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.domain.status_keys import job_prefix
from services.core.ports.cluster import LearnerProcess
from tests.testbed.cluster_rules import *  # noqa: F403 - the tests
from tests.testbed.cluster_rules import FOREVER, Scene, replaced, waits_for_the_end
from tests.testbed.gangs import await_all, await_exit, await_state, learner, start, stop, teardown
from tests.testbed.kubernetes.accounts import Installed
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.fault_proxy import fault_proxy
from tests.testbed.kubernetes.images import TINY_IMAGE
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.stand_in import AnnouncingCluster, StandIn, pods_of, standing_in
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan as large_plan
from tests.waiting import until


def small_plan(commands: list[str], **fields: object) -> AttemptPlan:
    """Learners of which many fit on a node."""
    full = large_plan(commands, **fields)  # type: ignore[arg-type]
    return replace(
        full, learners=tuple(replace(entry, cpus=0.05, memory=min(entry.memory, 2**26)) for entry in full.learners)
    )


@pytest.fixture
def status() -> MemoryStatusStore:
    return MemoryStatusStore()


@pytest.fixture
async def stand_in(testbed_cluster: Machines, api: Api, status: MemoryStatusStore) -> AsyncGenerator[StandIn]:
    async with standing_in(StandIn(api, testbed_cluster, OPTIONS, status)) as running:
        yield running


@pytest.fixture
async def cluster(
    accounts: Installed, status: MemoryStatusStore, stand_in: StandIn
) -> AsyncGenerator[KubernetesCluster]:
    """With the service accounts of the guardian and the lcm."""
    lcm = KubernetesCluster(Api(accounts.lcm), OPTIONS, status)
    client = AnnouncingCluster(Api(accounts.guardian), OPTIONS, status, lcm=lcm)
    await client.prepare("t")
    yield client
    for job in await client.jobs():
        attempts = (await client.observe(job)).attempts
        await client.teardown(job, attempt=max(attempts, default=1), term=2**50)
    await client.close()


@pytest.fixture
def scene(cluster: KubernetesCluster, stand_in: StandIn, api: Api) -> Scene:
    async def prints_up(gang: AttemptPlan) -> None:
        await await_all(cluster, gang, "running")
        await until(output(stand_in, api, gang, "up"))

    return Scene(cluster, ["node-1", "node-2"], prints_up, partial(waits_for_the_end, cluster))


def output(stand_in: StandIn, api: Api, gang: AttemptPlan, line: str) -> Callable[[], Awaitable[bool]]:
    """A condition: every learner has printed this line.

    One line only: those of its stderr come anywhere between two of its stdout ("Terminated", of a shell whose program
    is ended by a signal).
    """

    async def printed() -> bool:
        pods = await pods_of(api, OPTIONS, gang.job)
        logs = await asyncio.gather(*(stand_in.log(pod, "learner") for pod in pods.values()))
        return len(logs) == len(gang.learners) and all(line in log.splitlines() for log in logs)

    return printed


async def test_gang_of_two_reaches_each_other_by_name_with_rank_and_world_size(
    cluster: KubernetesCluster, stand_in: StandIn, api: Api
) -> None:
    serves = """
        mkdir /tmp/served; echo "$WEFT_RANK of $WEFT_WORLD_SIZE at $MASTER_PORT" > /tmp/served/rank
        httpd -p 8080 -h /tmp/served
        until wget -q -O - http://${MASTER_ADDR}:8080/rank 2> /dev/null; do sleep 0.1; done; exec sleep 1000
    """
    gang = small_plan([serves] * 2, distribution="torchrun")
    await start(cluster, gang)
    await until(output(stand_in, api, gang, "0 of 2 at 29500"))
    processes = await await_all(cluster, gang, "running")
    assert {process.node for process in processes.values()} <= {"node-1", "node-2"}
    assert all(process.run == 1 and process.started for process in processes.values())
    await teardown(cluster, gang)


async def test_exit_codes_signals_and_a_lack_of_memory_are_reported(cluster: KubernetesCluster) -> None:
    ways = "0) exit 0;; 1) exit 3;; 2) kill -SEGV $$;; 3) no-such-program;; 4) tail /dev/zero;;"
    gang = small_plan([f"case $WEFT_RANK in {ways} esac"] * 5)
    await start(cluster, gang)
    processes = await await_all(cluster, gang, "exited")
    ends = [process.exit for process in processes.values() if process.exit is not None]
    assert [(end.code, end.signal, end.oom) for end in ends[:4]] == [
        (0, None, False),
        (3, None, False),
        (None, 11, False),
        (127, None, False),
    ]
    assert (ends[4].signal, ends[4].oom) == (9, True)
    assert all(end.natural and not end.lost for end in ends)
    await teardown(cluster, gang)


async def test_jobs_that_just_train_cost_no_requests_and_ends_of_learners_are_noticed(
    accounts: Installed,
    cluster: KubernetesCluster,
    status: MemoryStatusStore,
    stand_in: StandIn,
    api: Api,
    tmp_path: Path,
) -> None:
    gangs = [small_plan(["until [ -e /tmp/end ]; do sleep 0.1; done; exit 3"]) for _ in range(5)]
    for gang in gangs:
        await start(cluster, gang)
    for gang in gangs:
        await await_all(cluster, gang, "running")
    with fault_proxy(accounts.guardian, seed=1) as proxy:
        client = KubernetesCluster(Api(proxy.kubeconfig(tmp_path / "kubeconfig")), OPTIONS, status)

        async def observe_all() -> int:
            """Observes each job as its Guardian does, and lists the jobs. Returns the number of requests."""
            before = proxy.requests
            for gang in gangs:
                (process,) = (await client.observe(gang.job, cached=True)).learners
                assert process.state == "running"
            assert {gang.job for gang in gangs} <= {*await client.jobs(cached=True)}
            return proxy.requests - before

        async def is_quiet() -> bool:
            return await observe_all() == 0

        async def end_of(gang: AttemptPlan) -> Exit | None:
            (process,) = (await client.observe(gang.job, cached=True)).learners
            return process.exit

        async def end_once_commanded(gang: AttemptPlan, pod: Document) -> Exit | None:
            await stand_in.execute(pod, "learner", "touch /tmp/end")  # again, where kubectl fails
            return await end_of(gang)

        async with aclosing(client.watch()) as changes:
            assert await anext(changes) == ""
            await until(is_quiet)
            requests = sum([await observe_all() for _ in range(100)])
            assert requests < 50, f"{requests} requests for 500 observations and 100 rounds"
            first, second = [(await pods_of(api, OPTIONS, gang.job))["worker-0"] for gang in gangs[:2]]
            ended = await until(partial(end_once_commanded, gangs[0], first))
            assert ended is not None
            assert (ended.code, ended.lost) == (3, False)
            await api.delete(collection("Pod", "weft-t", second["metadata"]["name"]), grace_s=0)
            lost = await until(partial(end_of, gangs[1]))
            assert lost is not None
            assert lost.lost, "of this end there is no report: the watch alone says that the pod is gone"
        await client.close()
    for gang in gangs:
        await teardown(cluster, gang)


async def test_users_text_reaches_the_command_unchanged(
    cluster: KubernetesCluster, stand_in: StandIn, api: Api
) -> None:
    text = "$(WEFT_RANK) $$ ${HOME} 'a' \"b\" ä"
    gang = small_plan(['printf "%s\\n" "$MINE"'], env={"MINE": text})
    await start(cluster, gang)
    await await_all(cluster, gang, "exited")
    await until(output(stand_in, api, gang, text))
    await teardown(cluster, gang)


async def test_halted_learner_saves_within_its_grace(cluster: KubernetesCluster, stand_in: StandIn, api: Api) -> None:
    gang = small_plan(['trap "echo saved; exit 9" TERM; echo up; while :; do sleep 0.01; done'])
    await start(cluster, gang)
    await until(output(stand_in, api, gang, "up"))
    await stop(cluster, gang, "halt", 60_000)  # it saves at once, but for a machine that stalls
    end = await await_exit(cluster, gang)
    assert (end.code, end.stop_cause) == (9, "halt")
    await until(output(stand_in, api, gang, "saved"))
    await teardown(cluster, gang)


async def test_helper_that_does_not_obey_is_stopped_with_its_pod(
    cluster: KubernetesCluster, stand_in: StandIn, api: Api
) -> None:
    stand_in.obeys = False
    gang = small_plan(["trap '' TERM; echo up; while :; do sleep 0.01; done"])
    await start(cluster, gang)
    await until(output(stand_in, api, gang, "up"))
    await stop(cluster, gang, "kill", 0)

    async def ended() -> bool:
        process = await learner(cluster, gang)
        return process.exit is not None and process.exit.stop_cause == "kill"

    await until(ended)
    await teardown(cluster, gang)


async def test_learner_without_its_image_blocks_the_gang_with_reason_and_advice(cluster: KubernetesCluster) -> None:
    gang = replace(small_plan([FOREVER] * 2), image="127.0.0.1:9/no-such-image:1")
    await start(cluster, gang)
    process = await blocked(cluster, gang, "ImagePullFailed")
    assert (process.state, process.blocked_for_good) == ("starting", False)  # the registry may come back
    assert "check the image's name and tag" in process.blocked_message
    await teardown(cluster, gang)
    assert (await cluster.observe(gang.job)).attempts == []


async def test_gang_that_does_not_fit_is_placed_not_at_all_with_the_resource_as_reason(
    cluster: KubernetesCluster,
) -> None:
    gang = small_plan([FOREVER] * 3, gpus=4)
    await start(cluster, gang)
    process = await blocked(cluster, gang, "Unschedulable")
    assert "nvidia.com/gpu" in process.blocked_message or "gang" in process.blocked_message.lower()
    present = (await cluster.observe(gang.job)).learners
    assert {entry.node for entry in present} == {""}
    await teardown(cluster, gang)


async def test_gang_is_placed_on_the_chosen_nodes_where_the_cluster_has_no_native_gangs(
    accounts: Installed, status: MemoryStatusStore, stand_in: StandIn, cluster: KubernetesCluster
) -> None:
    gates = AnnouncingCluster(Api(accounts.guardian), replace(OPTIONS, gang=GangMethod.GATES), status)
    gang = small_plan([FOREVER] * 2, gpus=1)
    chosen = tuple(replace(entry, node=f"node-{2 - entry.rank}", gpu_type="Fake-GPU") for entry in gang.learners)
    gang = replace(gang, learners=chosen)
    await start(gates, gang)
    processes = await await_all(gates, gang, "running")
    assert {name: process.node for name, process in processes.items()} == {"worker-0": "node-2", "worker-1": "node-1"}
    await teardown(gates, gang)
    await gates.close()


async def test_pods_of_others_reduce_the_capacity_and_own_ones_do_not(
    cluster: KubernetesCluster, testbed_cluster: Machines
) -> None:
    before = {node.name: node for node in await cluster.capacity()}
    assert {(node.gpus, node.gpu_type, node.labels["weft.dev/isolation"]) for node in before.values()} == {
        (4, "Fake-GPU", "pod")
    }
    gang = small_plan([FOREVER], gpus=1)
    await start(cluster, gang)
    node = (await await_state(cluster, gang, "running")).node
    assert (await cluster.capacity()) == list(before.values())
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other"},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": TINY_IMAGE,
                    "command": ["sleep", "1000"],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "2"},
                        "limits": {"nvidia.com/gpu": "2"},
                    },
                }
            ],
        },
    }
    testbed_cluster.kubectl.create(other)
    try:

        async def reduced() -> bool:
            after = {entry.name: entry for entry in await cluster.capacity()}
            return after[node].gpus == 2 and before[node].memory - after[node].memory == 2**26

        await until(reduced)
    finally:
        testbed_cluster.kubectl("delete", "pod", "other", "--wait")
    await teardown(cluster, gang)


async def test_learner_of_a_lost_node_is_lost_and_its_attempt_can_be_removed(
    cluster: KubernetesCluster, testbed_cluster: Machines
) -> None:
    gang = small_plan([FOREVER])
    await start(cluster, gang)
    node = (await await_state(cluster, gang, "running")).node
    (machine,) = (entry for entry in testbed_cluster.nodes if entry.name == node)
    machine.machine.kill()
    try:
        end = await await_exit(cluster, gang)
        assert end.lost
        present = await learner(cluster, gang)
        assert present.reason == "NodeLost"
        assert "another node" in present.message
        assert [entry.ready for entry in await cluster.capacity() if entry.name == node] == [False]
        await teardown(cluster, gang)
    finally:
        await asyncio.to_thread(testbed_cluster.restart_node, machine)
    assert (await cluster.observe(gang.job)).attempts == []


async def test_learner_on_a_node_that_is_cut_off_is_replaced_elsewhere_and_ends_when_its_node_is_back(
    cluster: KubernetesCluster, testbed_cluster: Machines, api: Api
) -> None:
    gang = small_plan([FOREVER])
    await start(cluster, gang)
    node = (await await_state(cluster, gang, "running")).node
    pod = (await pods_of(api, OPTIONS, gang.job))["worker-0"]
    (machine,) = (entry for entry in testbed_cluster.nodes if entry.name == node)
    machine.cut_network()
    try:
        await await_exit(cluster, gang)
        lost = await learner(cluster, gang)
        assert (lost.reason, lost.exit is not None and lost.exit.lost) == ("NodeLost", True)
        # It may still run, so it is not started again beside itself: only another attempt may take its place.
        again = replace(gang, learners=(replace(gang.learners[0], run=2),))
        with pytest.raises(Unavailable, match="being removed"):
            await cluster.do("learners", again)
        assert processes_of(pod)
        await teardown(cluster, gang)
        successor = replace(gang, attempt=2, term=2)
        await start(cluster, successor)

        async def runs_elsewhere() -> bool:
            process = await learner(cluster, successor)
            return process.state in {"waiting", "running"} and process.node not in {"", node}

        await until(runs_elsewhere)  # no further: the stand-in waits for the log of the lost one
        assert processes_of(pod)
    finally:
        machine.mend_network()
    await until(lambda: not processes_of(pod))
    await until(lambda: nodes_ready(cluster))
    await await_state(cluster, successor, "running")
    await teardown(cluster, successor)


async def nodes_ready(cluster: KubernetesCluster) -> bool:
    return all(node.ready for node in await cluster.capacity())


def processes_of(pod: Document) -> list[int]:
    """The processes of a pod's command FOREVER, on this machine."""
    pids: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if not folder.name.isdigit() or (folder / "cmdline").read_bytes() != b"sleep\0001000\0":
                continue
            if pod["metadata"]["uid"] in (folder / "mountinfo").read_text():
                pids.append(int(folder.name))
    return pids


async def test_learner_that_is_started_again_after_an_upgrade_finds_the_entry_script_of_the_new_version(
    accounts: Installed, cluster: KubernetesCluster, status: MemoryStatusStore
) -> None:
    """Its pod hung until provision_timeout: only the reservation of a new attempt made the script."""
    gang = small_plan([f'[ "$WEFT_RANK" = 1 ] || exit 3; {FOREVER}'] * 2)
    await start(cluster, gang)
    await await_exit(cluster, gang)
    options = replace(OPTIONS, entry_script=f"{OPTIONS.entry_script}# of the next version\n")
    upgraded = AnnouncingCluster(Api(accounts.guardian), options, status)
    first, second = gang.learners
    again = replace(gang, term=gang.term + 1, learners=(replace(first, run=2), second))
    try:
        await until(lambda: replaced(upgraded, again))
        await until(lambda: _ran_again(upgraded, again))
    finally:
        await upgraded.close()
    await teardown(cluster, again)


async def _ran_again(cluster: KubernetesCluster, gang: AttemptPlan) -> bool:
    process = await learner(cluster, gang)
    return process.run == 2 and process.exit is not None and process.exit.code == 3


async def test_full_quota_of_objects_does_not_end_an_attempt_whose_objects_are_all_there(
    cluster: KubernetesCluster, api: Api, testbed_cluster: Machines
) -> None:
    """The API server looks at the quota before it looks whether an object is there: it answers 403 instead of 409."""
    gang = small_plan([FOREVER] * 2)
    await start(cluster, gang)
    counted = {
        f"count/{kind}": "1" for kind in ("secrets", "services", "configmaps", "networkpolicies.networking.k8s.io")
    }
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": counted}}
    kubectl = replace(testbed_cluster.kubectl, namespace="weft-t")
    path = collection("ResourceQuota", "weft-t", "full")
    kubectl.create(quota)
    try:
        await until(lambda: _is_full(api, path, counted))
        other = small_plan([FOREVER])
        with pytest.raises(QuotaExceeded):
            await cluster.do("reserve", other)
        for step in cluster.steps():
            await cluster.do(step, gang)
    finally:
        await api.delete(path)
    await teardown(cluster, gang)


async def _is_full(api: Api, path: str, counted: Mapping[str, str]) -> bool:
    used = ((await api.get(path)).get("status") or {}).get("used") or {}
    return all(int(used.get(name, 0)) >= int(most) for name, most in counted.items())


async def test_late_step_of_a_released_job_creates_nothing(
    cluster: KubernetesCluster, status: MemoryStatusStore
) -> None:
    gang = small_plan([FOREVER])
    await start(cluster, gang)
    await teardown(cluster, gang)
    await status.delete_prefix(job_prefix(gang.job))
    for step in cluster.steps():
        with pytest.raises(Unavailable, match="not announced"):
            await cluster.do(step, gang)
    assert gang.job not in await cluster.jobs()


async def test_no_object_of_an_attempt_is_left_after_its_teardown(
    cluster: KubernetesCluster, testbed_cluster: Machines
) -> None:
    gang = small_plan([FOREVER] * 2)
    await start(cluster, gang)
    await await_all(cluster, gang, "running")
    await teardown(cluster, gang)
    kinds = "pods,configmaps,secrets,services,networkpolicies,podgroups"
    listed = replace(testbed_cluster.kubectl, namespace="weft-t").list(kinds)
    assert [entry for entry in listed if gang.job in entry["metadata"]["name"] and _remains(entry)] == []


def _remains(document: Document) -> bool:
    """A PodGroup has a finalizer: the cluster removes it after its last pod."""
    return document["kind"] != "PodGroup" or "deletionTimestamp" not in document["metadata"]


async def blocked(cluster: KubernetesCluster, gang: AttemptPlan, reason: str) -> LearnerProcess:
    """Waits until rank 0 is blocked for this reason. Returns it as it was then: it is tried again meanwhile."""

    async def is_blocked() -> LearnerProcess | None:
        process = await learner(cluster, gang)
        return process if process.blocked == reason else None

    process = await until(is_blocked)
    assert process is not None
    return process

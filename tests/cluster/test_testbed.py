"""The test bed's own cluster: what it pretends (GPUs, hundreds of nodes), its failures, and that it leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from services.core.runtime.processes import alive
from tests.testbed.kubernetes import traces
from tests.testbed.kubernetes.cluster import Cluster, cluster, clusters, sweep
from tests.testbed.kubernetes.images import (
    TINY_IMAGE,
    busybox_layer,
    layer_of,
    read_image,
    write_image,
    write_private_image,
)
from tests.testbed.kubernetes.init import DISK_INSIDE, FOLDER_INSIDE
from tests.testbed.kubernetes.kubectl import Kubectl, Object, condition
from tests.testbed.kubernetes.pods import script_pod
from tests.waiting import eventually

_COMMAND: Final = (sys.executable, "-m", "tests.testbed.kubernetes")


def test_nodes_are_ready_and_run_the_pinned_version(testbed_cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in testbed_cluster.kubectl.list("nodes")}
    assert sorted(nodes) == ["node-1", "node-2"]
    eventually(lambda: testbed_cluster.ready_nodes() == ["node-1", "node-2"])
    assert {node["kubeletVersion"] for node in nodes.values()} == {"v1.36.3"}


def test_fake_gpus_are_scheduled_and_a_gang_without_room_stays_pending(
    testbed_cluster: Cluster, kubectl: Kubectl
) -> None:
    learners = [
        script_pod(f"worker-{rank}", TINY_IMAGE, "sleep 600", limits={"nvidia.com/gpu": "4"}) for rank in range(3)
    ]
    kubectl.create(*learners[:2])
    kubectl.wait_phase("Running", "worker-0", "worker-1")
    assert {kubectl.get("pod", f"worker-{rank}")["spec"]["nodeName"] for rank in range(2)} == {"node-1", "node-2"}
    kubectl.create(learners[2])

    def scheduled() -> Object:
        return condition(kubectl.get("pod", "worker-2"), "PodScheduled")

    eventually(lambda: "2 Insufficient nvidia.com/gpu" in scheduled().get("message", ""))
    assert (scheduled()["status"], scheduled()["reason"]) == ("False", "Unschedulable")
    kubectl("delete", "pods", "--all", "--wait")


def test_native_gang_is_placed_whole_or_not_at_all(testbed_cluster: Cluster, kubectl: Kubectl) -> None:
    kubectl.create(*_gang("too-large", 3), *_gang("fits", 2))
    kubectl.wait_phase("Running", "fits-0", "fits-1")
    kubectl.wait("condition=PodScheduled=False", *(f"pod/too-large-{rank}" for rank in range(3)))
    assert all("nodeName" not in kubectl.get("pod", f"too-large-{rank}")["spec"] for rank in range(3))
    kubectl("delete", "pods", "--all", "--wait")


def test_node_without_its_kubelet_is_not_ready_and_recovers(testbed_cluster: Cluster) -> None:
    node = testbed_cluster.nodes[1]
    kubelet = node.machine.server("kubelet")
    assert kubelet is not None

    def taints() -> set[str]:
        lost = testbed_cluster.kubectl.get("node", node.name)
        return {taint["key"] for taint in lost["spec"].get("taints", ())}

    kubelet.kill()
    try:
        eventually(lambda: testbed_cluster.ready_nodes() == ["node-1"])
        # The controller taints a node in another loop than the one that finds it not Ready.
        eventually(lambda: "node.kubernetes.io/unreachable" in taints())
    finally:  # otherwise the tests that follow on this cluster would fail as well
        node.start_kubelet()
        testbed_cluster.wait_ready(node.name)
        testbed_cluster.set_gpus(node.name, 4)


def test_node_that_is_cut_off_is_not_ready_and_its_pods_run_on(testbed_cluster: Cluster, kubectl: Kubectl) -> None:
    node = testbed_cluster.nodes[1]
    marker = f"sleep 6{uuid.uuid4().int % 10**9}"
    kubectl.create(script_pod("cut-off", TINY_IMAGE, f"exec {marker}", nodeName=node.name))
    kubectl.wait_phase("Running", "cut-off")
    node.cut_network()
    try:
        eventually(lambda: testbed_cluster.ready_nodes() == ["node-1"])
        assert _running(marker)
    finally:
        node.mend_network()
        testbed_cluster.wait_ready(node.name)
    assert _running(marker)


def test_node_that_loses_power_takes_its_pods_along_and_starts_again(
    testbed_cluster: Cluster, kubectl: Kubectl
) -> None:
    node = testbed_cluster.nodes[1]
    marker = f"sleep 6{uuid.uuid4().int % 10**9}"
    kubectl.create(script_pod("lost", TINY_IMAGE, f"exec {marker}", nodeName=node.name))
    kubectl.wait_phase("Running", "lost")
    eventually(lambda: _running(marker))  # the shell of a pod that runs may not have started it yet
    node.machine.kill()
    try:
        assert not _running(marker)
    finally:
        testbed_cluster.restart_node(node)
    eventually(lambda: testbed_cluster.ready_nodes() == ["node-1", "node-2"])


def test_image_of_the_same_name_and_other_content_is_not_on_the_disk(testbed_cluster: Cluster, tmp_path: Path) -> None:
    disk = testbed_cluster.disk
    assert disk is not None
    assert disk.has(testbed_cluster.folder / "images" / "busybox.tar")
    other = write_private_image(tmp_path)
    assert read_image(other).name == TINY_IMAGE
    assert not disk.has(other)


def test_image_that_changes_is_seen_changed_on_a_layer_of_the_disk(testbed_cluster: Cluster) -> None:
    disk, (node, _) = testbed_cluster.disk, testbed_cluster.nodes
    assert disk is not None
    archive, name = testbed_cluster.folder / "images" / "changing.tar", "testbed.invalid/changing:1"
    try:
        for content in ("first", "second"):
            layers = [busybox_layer(), layer_of("etc/content", content.encode())]
            write_image(archive, name, layers, config={}, without=disk.layers)
            assert archive.stat().st_size < len(layers[0]), "the archive has the lower layer, too"
            node.import_image(f"{FOLDER_INSIDE}/images/{archive.name}")
            place = f"/run/{content}"  # containerd may forget an unmounted place a moment later
            node.machine.call("mkdir", place)
            node.machine.call("ctr", "--namespace=k8s.io", "images", "mount", name, place)
            output = node.machine.call("chroot", place, "/bin/cat", "/etc/content")
            node.machine.call("ctr", "--namespace=k8s.io", "images", "unmount", "--rm", place)
            assert output == content
    finally:
        node.remove_image(name)
        archive.unlink()


def test_node_cannot_write_to_the_disk(testbed_cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="Read-only file system"):
        testbed_cluster.nodes[0].machine.call("touch", f"{DISK_INSIDE}/written")


def test_hundred_simulated_nodes_run_pods_in_name(testbed_programs: None) -> None:
    with cluster(nodes=0, simulated_nodes=100, gpus=8) as running:
        eventually(lambda: len(running.ready_nodes()) == 100)
        kubectl = running.kubectl
        learners = [
            script_pod(f"worker-{rank}", TINY_IMAGE, "true", limits={"nvidia.com/gpu": "8"}) for rank in range(20)
        ]
        kubectl.create(*learners)
        kubectl.wait_phase("Running", *(f"worker-{rank}" for rank in range(20)))
        assert len({pod["spec"]["nodeName"] for pod in kubectl.list("pods")}) == 20


@pytest.fixture
def kept_name() -> Iterator[str]:
    """Of a cluster that outlives the process that starts it."""
    name = f"test-{uuid.uuid4().hex[:6]}"
    yield name
    Cluster(name).down()
    Cluster(name).forget()


def test_cluster_of_make_cluster_up_stays_and_leaves_no_trace_when_it_ends(
    testbed_programs: None, kept_name: str
) -> None:
    before = traces.host()
    up = subprocess.run(
        [*_COMMAND, "--name", kept_name, "up", "--nodes=1", f"--owner={os.getpid()}"],
        capture_output=True,
        text=True,
        check=True,
    )
    kept = Cluster(kept_name)
    assert f"export KUBECONFIG={kept.kubeconfig}" in up.stdout
    kept.kubectl.create(script_pod("still-running", TINY_IMAGE, "sleep 600"))
    kept.kubectl.wait_phase("Running", "still-running")
    assert subprocess.run([*_COMMAND, "--name", kept_name, "status"], capture_output=True, check=False).returncode == 0
    own = set().union(*(traces.namespaces(machine.pid) for machine in kept.machines)) - traces.namespaces(os.getpid())
    inside = traces.processes_in(own)
    assert len(inside) > len(kept.machines)

    subprocess.run([*_COMMAND, "--name", kept_name, "down"], capture_output=True, check=True)
    assert not any(traces.of_cluster(kept_name, kept.folder).values())
    assert not [process for process in inside if alive(process)]
    with suppress(AssertionError):  # the kernel removes a network a little later
        eventually(lambda: traces.host() == before)
    assert traces.host() == before


def test_cluster_of_a_killed_run_ends_and_the_next_run_removes_what_is_left(testbed_programs: None) -> None:
    program = """
import json, time
from tests.testbed.kubernetes.cluster import cluster
with cluster(nodes=0) as running:
    print(json.dumps([running.name, [machine.pid for machine in running.machines]]), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        name, pids = json.loads(owner.stdout.readline())
        folder = clusters() / name
        assert folder.exists()
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    sweep()
    eventually(lambda: not any(traces.of_cluster(name, folder).values()))  # another run may sweep, too


def _gang(name: str, count: int) -> list[Object]:
    """Pods with all GPUs of a node each, of which all are placed or none."""
    group: Object = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }
    link = {"podGroupName": name}
    limits = {"nvidia.com/gpu": "4"}
    pods = [
        script_pod(f"{name}-{rank}", TINY_IMAGE, "sleep 600", limits=limits, schedulingGroup=link)
        for rank in range(count)
    ]
    return [group, *pods]


def _running(marker: str) -> bool:
    """True if a process of this machine has this command line."""
    wanted = marker.replace(" ", "\0").encode() + b"\0"
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False

"""A test cluster as a whole: up, down, status, and what tests do to it.

A cluster has a folder in the test bed's cache, by its name; whatever process opens the folder has the whole cluster.
The owner of a cluster that is not kept (``cluster``) may die in any way: its machines end with it, and the next ``up``
or ``sweep`` removes the folder and control groups that are left.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlencode

from services.local.layout import listen_lasting
from tests.testbed.built import cache
from tests.testbed.kubernetes import programs, simulated
from tests.testbed.kubernetes.administrator import Administrator
from tests.testbed.kubernetes.control_plane import (
    ADDRESS,
    DNS_RIGHTS,
    NAME,
    PORT,
    ControlPlane,
    connect_network,
    write_keys,
)
from tests.testbed.kubernetes.disk import Disk
from tests.testbed.kubernetes.images import write_images
from tests.testbed.kubernetes.init import LINK
from tests.testbed.kubernetes.kubectl import Kubectl, Object, condition
from tests.testbed.kubernetes.machine import Machine
from tests.testbed.kubernetes.node import Node
from tests.testbed.kubernetes.processes import Process, wait

Say = Callable[[str], None]
_SETTINGS: Final = "cluster.json"
MOST_NODES: Final = 3
GPU: Final = "nvidia.com/gpu"
_NODE_GRACE_S: Final = 8
_LOW_SHARE: Final = 12
"""Percent: an eighth."""
_SIMULATED_GRACE_S: Final = 40
"""Simulated nodes report every ten seconds: hundreds that do so each second would take the processors."""


def clusters() -> Path:
    """Returns the folder of all clusters."""
    return cache() / "clusters"


@dataclass(frozen=True)
class Settings:
    nodes: int
    simulated: int
    gpus: int
    """On each node."""
    kept: bool
    """It outlives the process that started it."""
    owner: Process | None
    """After the end of this process ``sweep`` ends the cluster."""
    scheduler_flags: Sequence[str] = ()
    """Of its kube-scheduler, after those that it always has."""


def say_to_stderr(what: str) -> None:
    sys.stderr.write(f"test cluster: {what}\n")
    sys.stderr.flush()


class Cluster:
    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = clusters() / name
        # Kept: a machine that this object has started ends when its Machine is collected.
        self._machines: dict[str, Machine] = {}
        self._control_plane = self._machine(NAME)
        self.administrator = Administrator(self.folder)
        """For requests by which tests prepare and look at the cluster."""

    # --- life --------------------------------------------------------------------

    def up(
        self,
        *,
        nodes: int,
        simulated_nodes: int = 0,
        gpus: int = 4,
        keep: bool = False,
        owner: int | None = None,
        scheduler_flags: Sequence[str] = (),
        disk: Path | None = None,
        say: Say = say_to_stderr,
    ) -> Self:
        """Returns once all nodes are Ready. RuntimeError if it is up already, or cannot be; nothing is left then.

        ``gpus``: fake ones on each node. ``keep``: it outlives this process. ``owner``: pid of a process after whose
        end ``sweep`` ends it; None: none if it is kept, else this one. ``disk``: has images for its nodes
        (node_images.py).
        """
        if not 0 <= nodes <= MOST_NODES:
            raise ValueError(f"a test cluster has at most {MOST_NODES} nodes, and {nodes} were demanded")
        pid = owner if keep else owner or os.getpid()
        settings = Settings(
            nodes, simulated_nodes, gpus, keep, None if pid is None else Process.of(pid), scheduler_flags
        )
        binaries = programs.build(say, nodes=nodes > 0, simulated=simulated_nodes > 0)
        with self._locked():
            if self._control_plane.alive:
                raise RuntimeError(f"test cluster {self.name!r} is up: `make cluster-down` ends it")
            self._remove()
            try:
                self._start(settings, binaries, disk, say)
            except BaseException:
                self._remove()
                raise
        return self

    def down(self) -> bool:
        """Ends it, whatever state it is in. False if there was nothing to end."""
        with self._locked():
            return self._remove()

    def forget(self) -> None:
        """After ``down``: removes the lock as well. For a name that no other process uses."""
        (clusters() / f"{self.name}.lock").unlink(missing_ok=True)

    @property
    def up_now(self) -> bool:
        return self._control_plane.alive

    def _start(self, settings: Settings, binaries: Sequence[Path], disk: Path | None, say: Say) -> None:
        self.folder.mkdir(mode=0o711, parents=True)
        unfinished = self.folder / f"{_SETTINGS}.new"
        unfinished.write_text(json.dumps(asdict(settings)))
        unfinished.rename(self.folder / _SETTINGS)  # the ``sweep`` of another run may read it
        if disk is not None:
            (self.folder / LINK).symlink_to(disk.resolve())
        (self.folder / "bin").mkdir()
        for binary in binaries:
            (self.folder / "bin" / binary.name).hardlink_to(binary)
        with listen_lasting("127.0.0.1") as listener:
            write_keys(self.folder, port=int(listener.getsockname()[1]), nodes=settings.nodes)
            self._control_plane.start()
            connect_network(self._control_plane)
            self._start_forwarder(listener)
        self.control_plane.start()
        say("the control plane is ready")
        for kind, right in DNS_RIGHTS.items():
            self.administrator.create(f"/apis/{right['apiVersion']}/{kind}", right)
        self.control_plane.start_dns()
        self._start_nodes(settings, say)
        self._start_simulated(settings, say)
        wait(self._default_account, "namespace default has its service account")
        if settings.kept:
            for machine in self.machines:
                machine.keep()

    def _start_nodes(self, settings: Settings, say: Say) -> None:
        if settings.nodes:
            (self.folder / "images").mkdir()
            write_images(self.folder / "images")
        for node in self.nodes:
            node.machine.start()
            node.connect_network()
            node.start()
        for node in self.nodes:
            self.wait_ready(node.name)
            self.set_gpus(node.name, settings.gpus)
            say(f"{node.name} is ready, with {settings.gpus} fake GPUs")

    def _start_simulated(self, settings: Settings, say: Say) -> None:
        if settings.simulated:
            self.control_plane.start_kwok()
            self.kubectl.create(*simulated.nodes(settings.simulated, gpus=settings.gpus, tainted=settings.nodes > 0))
            wait(
                lambda: len(self.ready_nodes()) == settings.nodes + settings.simulated, "all simulated nodes are Ready"
            )
            say(f"{settings.simulated} simulated nodes are ready")

    def _start_forwarder(self, listener: socket.socket) -> None:
        """Outside: the port in ``kubeconfig``; inside: the API server."""
        script = Path(__file__).with_name("forwarder.py")
        self._control_plane.spawn(
            "forwarder",
            [sys.executable, "-S", "-E", str(script), str(listener.fileno()), ADDRESS, str(PORT)],
            network_only=True,
            descriptors=[listener.fileno()],
        )

    def _remove(self) -> bool:
        there = self.folder.exists()
        names = {NAME, *self._machines, *(path.name for path in self.folder.glob("machines/*"))}
        for name in sorted(names):
            self._machine(name).kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        return there

    @contextmanager
    def _locked(self) -> Generator[None]:
        clusters().mkdir(parents=True, exist_ok=True)
        with (clusters() / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- parts -------------------------------------------------------------------

    @property
    def settings(self) -> Settings | None:
        """How it was started; None if there is none."""
        try:
            document = json.loads((self.folder / _SETTINGS).read_text())
        except FileNotFoundError:
            return None
        owner = document.pop("owner")
        # What another checkout left may have settings that this one does not know.
        known = {field.name for field in fields(Settings)}
        given = {name: value for name, value in document.items() if name in known}
        return Settings(**given, owner=owner and Process(**owner))

    @property
    def control_plane(self) -> ControlPlane:
        settings = self.settings
        grace_s = _SIMULATED_GRACE_S if settings and settings.simulated else _NODE_GRACE_S
        flags = settings.scheduler_flags if settings else ()
        return ControlPlane(self._control_plane, self.administrator, node_grace_s=grace_s, scheduler_flags=flags)

    @property
    def control_plane_pid(self) -> int:
        """Of the first process of its machine: what has to enter its network."""
        return self._control_plane.pid

    def lower_share(self, pid: int) -> None:
        """For benchmarks: this process and the control plane get a share of the processors that is an eighth of a
        service's. In production they stand on other machines. RuntimeError where shares cannot be set.
        """
        self._control_plane.adopt(pid)
        self._control_plane.set_share(_LOW_SHARE)

    @property
    def nodes(self) -> list[Node]:
        """The real ones."""
        settings = self.settings
        numbers = range(1, settings.nodes + 1) if settings else ()
        return [Node(self._machine(f"node-{number}"), self._control_plane, number) for number in numbers]

    @property
    def machines(self) -> list[Machine]:
        return [self._control_plane, *(node.machine for node in self.nodes)]

    def _machine(self, name: str) -> Machine:
        return self._machines.setdefault(name, Machine(self.folder, name))

    @property
    def disk(self) -> Disk | None:
        """From which its nodes read images."""
        return Disk.of(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator, for programs of this machine outside."""
        return self.folder / "kubeconfig"

    # --- what tests do to it -----------------------------------------------------

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.folder / "bin" / "kubectl", self.kubeconfig)

    def objects(self, path: str, *, selector: str = "") -> list[Object]:
        """Objects of a collection, such as ``/api/v1/pods``, in all namespaces. Much cheaper than kubectl."""
        listed = json.loads(self.administrator.get(f"{path}?{urlencode({'labelSelector': selector})}"))
        kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        return [{**kind, **item} for item in listed["items"]]

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has printed; empty if that cannot be read. Much cheaper than kubectl."""
        try:
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?{urlencode({'container': container})}"
            return self.administrator.get(path).decode(errors="replace")
        except OSError:
            return ""

    def ready_nodes(self) -> list[str]:
        """Names of the nodes, real and simulated, that the control plane holds for Ready."""
        return [
            node["metadata"]["name"]
            for node in self.objects("/api/v1/nodes")
            if condition(node, "Ready").get("status") == "True"
        ]

    def wait_ready(self, node: str) -> None:
        wait(lambda: node in self.ready_nodes(), f"{node} is Ready")

    def set_gpus(self, node: str, count: int) -> None:
        """Gives a real node fake GPUs; a kubelet that starts anew may forget them."""
        labels = {"metadata": {"labels": {f"{GPU}.product": "Fake-GPU"}}}
        self.administrator.patch(f"/api/v1/nodes/{node}", labels)
        self.set_devices(node, GPU, count)

    def set_devices(self, node: str, resource: str, count: int) -> None:
        """Gives a real node fake devices of this extended resource; 0: none any more."""
        amounts = {"status": {kind: {resource: str(count)} for kind in ("capacity", "allocatable")}}
        self.administrator.patch(f"/api/v1/nodes/{node}/status", amounts)

    @contextmanager
    def closed_port(self, port: int) -> Generator[None]:
        """Within it, nothing that pods send to this port of the control plane's machine arrives."""
        rule = ["INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"]
        self._control_plane.on_network("iptables", "--wait", "-I", *rule)
        try:
            yield
        finally:
            self._control_plane.on_network("iptables", "--wait", "-D", *rule)

    def restart_node(self, node: Node) -> None:
        """After its machine was killed: starts it anew, without the pods that ran on it. Returns once it is Ready."""
        settings = self.settings
        assert settings is not None
        before = self._heartbeat(node.name)
        node.machine.start()
        node.connect_network()
        node.start()
        # Where its loss was not known yet, it is Ready from before; and the new kubelet sets its GPUs to zero first.
        wait(lambda: self._heartbeat(node.name) != before, f"the new kubelet of {node.name} reports")
        self.wait_ready(node.name)
        self.set_gpus(node.name, settings.gpus)
        if settings.kept:
            node.machine.keep()

    def _heartbeat(self, node: str) -> object:
        """When the node's kubelet has last written whether it is Ready."""
        document = json.loads(self.administrator.get(f"/api/v1/nodes/{node}"))
        return condition(document, "Ready").get("lastHeartbeatTime")

    def _default_account(self) -> bool:
        try:
            self.administrator.get("/api/v1/namespaces/default/serviceaccounts/default")
        except OSError:
            return False
        return True


def sweep(say: Say = say_to_stderr) -> None:
    """Removes what clusters have left whose owner is gone: killed runs of tests."""
    names = {path.name for path in clusters().glob("*") if path.is_dir()}
    for name in sorted(names):
        cluster = Cluster(name)
        settings = cluster.settings
        if settings and settings.owner and not settings.owner.alive and cluster.down():
            cluster.forget()
            say(f"removed what a killed run left of cluster {name!r}")


@contextmanager
def cluster(
    *,
    nodes: int = 1,
    simulated_nodes: int = 0,
    gpus: int = 4,
    scheduler_flags: Sequence[str] = (),
    disk: Path | None = None,
    say: Say = say_to_stderr,
) -> Generator[Cluster]:
    """A cluster of this process, which ends with it. Blocks while it starts; needs no event loop and disturbs none.

    The arguments are those of ``Cluster.up``.
    """
    sweep(say)
    own = Cluster(f"run-{os.getpid()}-{os.urandom(2).hex()}")
    try:
        yield own.up(
            nodes=nodes, simulated_nodes=simulated_nodes, gpus=gpus, scheduler_flags=scheduler_flags, disk=disk, say=say
        )
    finally:
        own.down()
        own.forget()

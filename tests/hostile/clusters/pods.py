"""Learners that are pods: real kubelets of the test bed, the platform on this machine, its API server the witness.

The nodes are machines of this one (``tests.testbed.kubernetes``), so their folders, processes and containers are looked
at from outside of them.
"""

from __future__ import annotations

import base64
import http.server
import ipaddress
import json
import re
import threading
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.runtime import pod_layout
from tests.hostile.attack_code import IN_POD
from tests.hostile.attacks.ground import FORGED
from tests.hostile.attacks.pods import LEARNERS_PATH
from tests.hostile.clusters.kind import ATTACKER, VICTIM, RunningProcess
from tests.hostile.clusters.one_machine import command_of
from tests.testbed.kubernetes.accounts import NAMESPACE as NAMESPACE_OF_ACCOUNTS
from tests.testbed.kubernetes.accounts import install
from tests.testbed.kubernetes.cluster import Cluster, Say, cluster
from tests.testbed.kubernetes.control_plane import ADDRESS, PORT
from tests.testbed.kubernetes.doorway import listen_inside
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.testbed.kubernetes.node import Node
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.platform_in_pods import load_helper_image, platform_in_pods
from tests.testbed.kubernetes.watcher import Watcher, watching
from tests.testbed.live_files import files_with
from tests.testbed.platform import Platform
from weft._job import Job

_NAME: Final = "hostile"
GUARDS_COMMAND: Final = "sleep\x00100000"
"""The command line of the victim's running learner."""
_NODES: Final = 2
_SCRATCH: Final = 2**29
"""Bytes of each volume of a pod: more than a trick needs, less than would fill this machine."""
_SERVICES: Final = ("etcd", "metrics", "lcm", "guardian", "api")
_OWN_VOLUMES: Final = frozenset({"job", "runs", "tmp", "shm"})
"""Those that a learner may write."""
_TASKS: Final = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")
_KUBELET_PORT: Final = 10250
OWN_SHELL_IMAGE: Final = "testbed.invalid/own-shell:1"
"""An image of the attacker's own: the helper's, with another /bin/sh."""
_OWN_SHELL: Final = Path(__file__).parents[1] / "attacks" / "own_shell.sh"
METADATA: Final = "169.254.169.254"
"""The address of clouds' metadata services; here a server of the test that records who asks."""


@dataclass
class Pods:
    weft: Platform
    kubernetes: Cluster
    witness: Watcher
    metadata: list[str]
    """Paths that were asked for at ``METADATA``."""
    _folders: dict[str, Path] = field(default_factory=dict)
    """Of jobs' first pods, at their node's kubelet."""

    def command(self, module: str, function: str) -> str:
        return f"{IN_POD} {module} {function}"

    def components(self) -> Mapping[str, RunningProcess | None]:
        servers = {
            f"{server} of {machine.name}": process if process.alive else None
            for machine in self.kubernetes.machines
            for server, process in machine.servers().items()
        }
        return {**{name: self.weft.process(name) for name in _SERVICES}, **servers}

    # --- what an attacker knows -----------------------------------------------------------------------------------

    def intel(self, guard: Job) -> dict[str, Any]:
        metrics = str(json.loads(self._victims("configmap", guard)["data"][pod_layout.ADDRESSES_FILE])["metrics"])
        front = metrics.removeprefix("tls:")
        pids = self._pids(guard)
        pod = self._pod(guard)
        return {
            "addresses": {"metrics": metrics},
            "front": front,
            "ports": [],
            "ports_of": {},
            "open_ports": [],
            "own_network": True,
            "own_processes": True,
            "sockets": [],
            "pids": sorted(pids),
            "commands": {str(pid): command_of(pid) for pid in pids},
            "api_servers": [f"{ADDRESS}:{PORT}", "10.96.0.1:443", "kubernetes.default.svc.cluster.local:443"],
            "kubelets": [f"{node.address}:{_KUBELET_PORT}" for node in self.kubernetes.nodes],
            "metadata": METADATA,
            "machines": {
                # Cluster DNS, with its health; beside it the API server, and the platform's address for helpers.
                ADDRESS: [53, 8080, 8181, PORT, int(front.rpartition(":")[2])],
                # The kubelet demands credentials; kube-proxy tells load balancers its health.
                **{node.address: [_KUBELET_PORT, 10256] for node in self.kubernetes.nodes},
            },
            "victim": {
                "namespace": pod["metadata"]["namespace"],
                "pod": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
                "address": pod["status"]["podIP"],
            },
        }

    def _pids(self, guard: Job) -> set[int]:
        own = {process.pid for process in self.components().values() if process is not None}
        containers = self._containers_of(guard)
        guards = {pid for pid, container in self._contained() if container in containers}
        # An attacker's own container has an entry process with the same command, and its pauses.
        return own | {
            pid for pid in guards if "services.helper" in command_of(pid) or GUARDS_COMMAND in command_of(pid)
        }

    # --- what must not be touched ---------------------------------------------------------------------------------

    def inner_urls(self) -> list[str]:
        kubelets = [f"https://{node.address}:{_KUBELET_PORT}/pods" for node in self.kubernetes.nodes]
        return [*kubelets, f"https://{ADDRESS}:{PORT}/api", f"http://{METADATA}/", f"http://[::ffff:{METADATA}]/"]

    def private(self, guard: Job) -> list[str]:
        """As a node has them, and those of the attacker's own helper, which has another root than the learner."""
        volumes = self._volumes(guard)
        return [
            *(f"/var/lib/kubelet/{part}" for part in ("", "pods", "pki/kubelet-client-current.pem", "kubeconfig")),
            *(str(path) for path in sorted(volumes.glob("*/*"))),
            pod_layout.PLAN,
            f"{pod_layout.PLAN}/{pod_layout.PLAN_FILE}",
            pod_layout.TOKEN,
            f"{pod_layout.TOKEN}/{pod_layout.TOKEN_FILE}",
            pod_layout.PRIVATE,
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
        ]

    def secrets(self, guard: Job) -> dict[str, str]:
        """The guard's tokens, and the beginning that the tokens of all learners share."""
        texts: dict[str, str] = {}
        for name, value in self._victims("secret", guard)["data"].items():
            token = base64.b64decode(value).decode()
            texts |= {f"token of {name}": token, "beginning of a learner's token": token[: _shared(token)]}
        return texts

    def identity(self, guard: Job) -> object:
        """The pod, each start of its containers, its process, and the versions of the attempt's other objects."""
        pod = self._pod(guard)
        status = pod["status"]
        containers = [
            (entry["containerID"], entry["restartCount"])
            for entry in (*status["initContainerStatuses"], *status["containerStatuses"])
        ]
        objects = [self._victims(kind, guard)["metadata"] for kind in ("configmap", "secret", "networkpolicy")]
        versions = [(entry["uid"], entry["resourceVersion"]) for entry in objects]
        own = self._containers_of(guard)
        contained = [pid for pid, container in self._contained() if container in own]
        learners = [pid for pid in contained if GUARDS_COMMAND in command_of(pid)]
        assert (len(own), len(learners)) == (3, 1), f"the guard has containers {own} and learners {learners}"
        return pod["metadata"]["uid"], containers, versions, own, learners

    def unchanged(self, guard: Job) -> list[Path]:
        return [self._volumes(guard) / "job", self._volumes(guard) / "control"]

    def job_folder(self, job: Job) -> Path | None:
        if job.id not in self._folders:
            pods = self._listed(job)
            node = pods[0]["spec"].get("nodeName") if pods else None
            if not node:
                return None
            self._folders[job.id] = self._kubelet(node) / "pods" / pods[0]["metadata"]["uid"]
        return self._volumes(job) / "job" / "job"

    def damage(self, job: Job) -> Iterator[str]:
        folder = self._folders[job.id] / "volumes"
        for path in files_with(folder, [FORGED.encode()]):
            volume = path.relative_to(folder).parts[1:2]
            if not _OWN_VOLUMES & {*volume}:
                yield f"the learner has written {path}"
        for name in ("control/go", "private"):
            if not (self._volumes(job) / name).exists():
                yield f"the learner has removed {name}"

    def violations(self) -> list[str]:
        self.witness.catch_up()
        by_the_platform = [path for path in self.metadata if path != LEARNERS_PATH]
        return [*self.witness.overlaps, *(f"the metadata service was asked for {path}" for path in by_the_platform)]

    def policies(self, job: Job) -> list[dict[str, Any]]:
        """The specs of the network policies under which the pods of this job of the attacker's run; empty: none yet."""
        kubectl = replace(self.kubernetes.kubectl, namespace=names.namespace_of(ATTACKER, f"{_NAME}-"))
        try:
            policies = kubectl.list("networkpolicy")
        except KubectlError:
            return []
        owners = [(policy["metadata"].get("labels") or {}).get(names.JOB) for policy in policies]
        own = [policy["spec"] for policy, owner in zip(policies, owners, strict=True) if owner in {None, job.id}]
        return own if job.id in owners else []

    # --- what is left ---------------------------------------------------------------------------------------------

    def leftovers(self, guard: Job, jobs: Collection[str]) -> Iterator[str]:
        yield from (entry for entry in self.witness.left() if guard.id not in entry)
        kept = self._folders[guard.id].name
        for node in self.kubernetes.nodes:
            for folder in (self._kubelet(node.name) / "pods").iterdir():
                if folder.name != kept:
                    yield f"folder of a pod at the kubelet of {node.name}: {folder.name}"
            for container, uid in _tasks(node).items():
                if uid != kept:
                    yield f"container {container} of pod {uid} on {node.name}"
        containers = self._containers_of(guard)
        for pid, container in self._contained():
            if container not in containers:
                yield f"process {pid} {command_of(pid).replace(chr(0), ' ')[:100]}"

    def _contained(self) -> Iterator[tuple[int, str]]:
        """Processes in containers of the nodes, with the id of the container."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    groups = (entry / "cgroup").read_text()
                    container = _CONTAINER_ID.search(groups)
                    if container is not None and f"{self.kubernetes.name}-node-" in groups:
                        yield int(entry.name), container.group()

    def _containers_of(self, job: Job) -> set[str]:
        uid = self._folders[job.id].name
        return {task for node in self.kubernetes.nodes for task, pod in _tasks(node).items() if pod == uid}

    # --- the job's objects ----------------------------------------------------------------------------------------

    def _listed(self, job: Job) -> list[dict[str, Any]]:
        selector = f"--selector={names.JOB}={job.id}"
        listed = self.kubernetes.kubectl("get", "pods", "--all-namespaces", selector, "--output=json")
        pods: list[dict[str, Any]] = json.loads(listed)["items"]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["labels"][names.LEARNER]))

    def _pod(self, job: Job) -> dict[str, Any]:
        pods = self._listed(job)
        assert pods, f"{job.id} has no pod"
        return pods[0]

    def _victims(self, kind: str, guard: Job) -> dict[str, Any]:
        """The object of this kind of the guard's attempt."""
        kubectl = replace(self.kubernetes.kubectl, namespace=names.namespace_of(VICTIM, f"{_NAME}-"))
        return kubectl.get(kind, names.attempt_name(guard.id, 1))

    def _kubelet(self, node: str) -> Path:
        return self.kubernetes.folder / "machines" / node / "kubelet"

    def _volumes(self, job: Job) -> Path:
        """The folder of the emptyDirs of the job's first pod."""
        if job.id not in self._folders:
            assert self.job_folder(job) is not None, f"the pod of {job.id} is not bound"
        return self._folders[job.id] / "volumes" / "kubernetes.io~empty-dir"


def _tasks(node: Node) -> dict[str, str]:
    """Container -> uid of its pod, of all that containerd of the node runs, pause containers included."""
    tasks = {}
    for folder in Path("/proc", str(node.machine.pid), "root", _TASKS).glob("*"):
        with suppress(OSError, ValueError, KeyError):  # it is made or removed now
            annotations = json.loads((folder / "config.json").read_text())["annotations"]
            tasks[folder.name] = str(annotations["io.kubernetes.cri.sandbox-uid"])
    return tasks


def lets_pass(policy: Mapping[str, Any], address: str) -> bool:
    """True if this network policy lets its pods connect to the address, which is of no pod."""
    if "Egress" not in policy.get("policyTypes", ()):
        return True
    wanted = ipaddress.ip_address(address)
    for rule in policy.get("egress") or ():
        blocks = [peer["ipBlock"] for peer in rule.get("to") or () if "ipBlock" in peer]
        if not rule.get("to") or any(
            wanted in ipaddress.ip_network(block["cidr"])
            and not any(wanted in ipaddress.ip_network(left_out) for left_out in block.get("except") or ())
            for block in blocks
        ):
            return True
    return False


def _shared(token: str) -> int:
    """Characters of a token that it shares with those of other learners."""
    return token.index(".") + 1


@contextmanager
def running_pods(settings: Mapping[str, str], say: Say) -> Generator[tuple[Platform, Pods]]:
    """A platform whose learners are pods of a cluster of its own. It has no more rights there than its one account."""
    with ExitStack() as stack:
        kubernetes = stack.enter_context(cluster(nodes=_NODES, say=say))
        image = load_helper_image(kubernetes, say)
        load_helper_image(kubernetes, say, name=OWN_SHELL_IMAGE, shell=_OWN_SHELL)
        options = replace(
            OPTIONS, helper_image=image, scratch=_SCRATCH, installation=_NAME, namespace_prefix=f"{_NAME}-"
        )
        account = install(kubernetes, options, one_account=True).lcm
        accounts = {
            f"WEFT_KUBERNETES_{name}_ACCOUNT": f"{NAMESPACE_OF_ACCOUNTS}/{_NAME}-up" for name in ("LCM", "GUARDIAN")
        }
        own = {
            "WEFT_KUBERNETES_FRAMEWORK_IMAGES": json.dumps({"python-3.11": image}),
            "WEFT_KUBERNETES_SCRATCH": str(_SCRATCH),
        }
        witness = stack.enter_context(watching(kubernetes.kubeconfig))
        weft = stack.enter_context(
            platform_in_pods(
                kubernetes, image, name=_NAME, kubeconfig=account, settings={**accounts, **own, **settings}
            )
        )
        metadata = stack.enter_context(_metadata_service(kubernetes))
        yield weft, Pods(weft, kubernetes, witness, metadata)


@contextmanager
def _metadata_service(kubernetes: Cluster) -> Generator[list[str]]:
    """A server at ``METADATA`` in the cluster's network, within the reach of pods. Yields the paths it is asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Logs nothing."""

    (control_plane,) = (machine for machine in kubernetes.machines if machine.pid == kubernetes.control_plane_pid)
    control_plane.on_network("ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    with http.server.ThreadingHTTPServer((METADATA, 80), Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listen_inside(control_plane.pid, METADATA, 80)
        thread = threading.Thread(target=server.serve_forever, name="metadata service")
        thread.start()
        try:
            yield paths
        finally:
            server.shutdown()
            thread.join()

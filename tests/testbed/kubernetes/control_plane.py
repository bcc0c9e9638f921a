"""The control plane of the test cluster: etcd, API server, scheduler, controller manager, cluster DNS, kwok.

All run on one machine, which is also the switch between the nodes: its bridge has ``ADDRESS``.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.testbed.kubernetes.administrator import Administrator
from tests.testbed.kubernetes.certificates import write_certificates
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.machine import Machine, wait_alive
from tests.testbed.kubernetes.processes import Process

NAME: Final = "control-plane"
CONTEXT: Final = "weft-testbed"
"""Its name in kubeconfigs."""
ADDRESS: Final = "10.99.0.1"
PORT: Final = 6443
PODS: Final = "10.244.0.0/16"
_SERVICES: Final = "10.96.0.0/16"
_FIRST_SERVICE: Final = "10.96.0.1"
_KEYS: Final = f"{FOLDER_INSIDE}/keys"
_SCHEDULER_METRICS: Final = "https://127.0.0.1:10259/metrics"
# The scheduler has made its certificate itself.
_READ_UNVERIFIED: Final = """\
import ssl, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context()).read().decode())
"""
_ETCD: Final = "http://127.0.0.1:2379"
_NETWORK: Final = f"""\
link set lo up
link add weft0 type bridge
address add {ADDRESS}/24 dev weft0
link set weft0 up
"""
_USERS: Final[Mapping[str, tuple[str, ...]]] = {
    "admin": ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "system:kube-proxy": (),
    "system:coredns": (),
}
"""User -> groups. Kubelets come on top: system:node:NAME, group system:nodes."""
_DNS_SETTINGS: Final = f"""\
cluster.local in-addr.arpa {{
    bind {ADDRESS}
    errors
    health {ADDRESS}:8080
    ready {ADDRESS}:8181
    cache 2
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {_KEYS}/system:coredns.kubeconfig
        ttl 1
    }}
}}
"""
DNS_RIGHTS: Final[Mapping[str, Mapping[str, object]]] = {
    "clusterroles": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    },
    "clusterrolebindings": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
    },
}
"""Kind, in the plural -> the object of this kind by which cluster DNS may read what it serves."""


def write_keys(folder: Path, *, port: int, nodes: int) -> None:
    """Writes certificates, tokens and a kubeconfig for each user into the cluster's folder.

    ``port``: on this machine's loopback, leads to the API server; the file ``kubeconfig`` uses it.
    """
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    write_certificates(keys, addresses=["127.0.0.1", ADDRESS, _FIRST_SERVICE], names=names)
    users = dict(_USERS) | {f"system:node:node-{number}": ("system:nodes",) for number in range(1, nodes + 1)}
    lines: list[str] = []
    for user, groups in users.items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{",".join(groups)}"\n')
        kubeconfig = _kubeconfig(f"https://{ADDRESS}:{PORT}", keys / "ca.crt", user, token)
        (keys / f"{user}.kubeconfig").write_text(kubeconfig)
        if user == "admin":
            (folder / "kubeconfig").write_text(_kubeconfig(f"https://127.0.0.1:{port}", keys / "ca.crt", user, token))
            (folder / "kubeconfig").chmod(0o600)
    (keys / "tokens.csv").write_text("".join(lines))


def connect_network(machine: Machine) -> None:
    machine.on_network("ip", "-batch", "-", text=_NETWORK)
    machine.call("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


class ControlPlane:
    """Starts and restarts its servers, each on the data that is there."""

    def __init__(
        self, machine: Machine, administrator: Administrator, *, node_grace_s: int, scheduler_flags: Sequence[str] = ()
    ) -> None:
        """``node_grace_s``: a node without a sign of life for so long is NotReady."""
        self._machine = machine
        self._administrator = administrator
        self._node_grace_s = node_grace_s
        self._scheduler_flags = scheduler_flags

    def start(self) -> None:
        """Starts all but kwok; returns once the API server is ready."""
        self.start_etcd()
        apiserver = self.start_apiserver()
        wait_alive(apiserver, self._machine.log("kube-apiserver"), self._ready, "the API server is ready")
        self.start_scheduler()
        self.start_controller_manager()

    def start_etcd(self) -> Process:
        data = f"{self._machine.inside}/etcd"
        return self._machine.spawn(
            "etcd",
            # Its data ends with the cluster, so it need not reach the disk.
            [
                "etcd",
                f"--data-dir={data}",
                "--unsafe-no-fsync",
                f"--listen-client-urls={_ETCD}",
                f"--advertise-client-urls={_ETCD}",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--log-level=warn",
                "--heartbeat-interval=50",
                "--election-timeout=500",
            ],
        )

    def start_apiserver(self) -> Process:
        return self._machine.spawn(
            "kube-apiserver",
            [
                "kube-apiserver",
                f"--etcd-servers={_ETCD}",
                "--bind-address=0.0.0.0",
                f"--advertise-address={ADDRESS}",
                f"--secure-port={PORT}",
                f"--tls-cert-file={_KEYS}/apiserver.crt",
                f"--tls-private-key-file={_KEYS}/apiserver.key",
                f"--client-ca-file={_KEYS}/ca.crt",
                f"--token-auth-file={_KEYS}/tokens.csv",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={_KEYS}/service-accounts.key",
                f"--service-account-signing-key-file={_KEYS}/service-accounts.key",
                f"--service-cluster-ip-range={_SERVICES}",
                f"--kubelet-client-certificate={_KEYS}/kubelet-client.crt",
                f"--kubelet-client-key={_KEYS}/kubelet-client.key",
                "--kubelet-preferred-address-types=InternalIP",
                # Native gangs.
                "--feature-gates=GenericWorkload=true",
                "--runtime-config=scheduling.k8s.io/v1alpha2=true",
            ],
        )

    def start_scheduler(self) -> Process:
        return self._machine.spawn(
            "kube-scheduler",
            [
                "kube-scheduler",
                f"--kubeconfig={_KEYS}/system:kube-scheduler.kubeconfig",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--feature-gates=GenericWorkload=true,GangScheduling=true",
                "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
                *self._scheduler_flags,
            ],
        )

    def start_controller_manager(self) -> Process:
        return self._machine.spawn(
            "kube-controller-manager",
            [
                "kube-controller-manager",
                f"--kubeconfig={_KEYS}/system:kube-controller-manager.kubeconfig",
                "--feature-gates=GenericWorkload=true",  # removes the finalizer of PodGroups without pods
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={_KEYS}/service-accounts.key",
                f"--root-ca-file={_KEYS}/ca.crt",
                "--node-monitor-period=1s",
                f"--node-monitor-grace-period={self._node_grace_s}s",
                # It makes this folder, by default below /usr of this machine.
                f"--flex-volume-plugin-dir={FOLDER_INSIDE}/volume-plugins",
            ],
        )

    def start_dns(self) -> Process:
        settings = self._machine.cluster_folder / "Corefile"
        settings.write_text(_DNS_SETTINGS)
        return self._machine.spawn("coredns", ["coredns", f"-conf={FOLDER_INSIDE}/{settings.name}"])

    def start_kwok(self) -> Process:
        stages = Path(__file__).with_name("kwok-stages.yaml")
        (self._machine.cluster_folder / stages.name).write_text(stages.read_text())
        return self._machine.spawn(
            "kwok",
            [
                "kwok",
                f"--kubeconfig={_KEYS}/admin.kubeconfig",
                "--manage-all-nodes=false",
                f"--config={FOLDER_INSIDE}/{stages.name}",
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
                "--node-lease-duration-seconds=40",
                "--cidr=10.250.0.0/16",
                f"--node-ip={ADDRESS}",
                "--server-address=127.0.0.1:10247",
            ],
        )

    def _ready(self) -> bool:
        """True if the API server says so, through the port outside."""
        try:
            self._administrator.get("/readyz")
        except OSError:  # not yet: also every error status
            return False
        return True

    def scheduler_metrics(self) -> str:
        """Returns them in Prometheus' text format. RuntimeError if the scheduler does not answer."""
        return self._machine.on_network(sys.executable, "-c", _READ_UNVERIFIED, _SCHEDULER_METRICS)


def _kubeconfig(server: str, authority: Path, user: str, token: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": CONTEXT,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
                    },
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
            "current-context": CONTEXT,
        },
        indent=1,
    )

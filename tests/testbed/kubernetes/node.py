"""A real node of the test cluster: containerd, kubelet and kube-proxy on a machine of its own.

Its eth0 is linked to the control plane's bridge; pods have addresses of the node's own /24, without translation.
"""

from __future__ import annotations

import json
from typing import Final

from tests.testbed.kubernetes.control_plane import ADDRESS, PODS
from tests.testbed.kubernetes.disk import Disk
from tests.testbed.kubernetes.images import PAUSE_IMAGE
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.machine import Machine, wait_alive
from tests.testbed.kubernetes.processes import Process

_KEYS: Final = f"{FOLDER_INSIDE}/keys"
# Without the second, answers of a Service's pod to a pod of the same node would not pass the address translation.
_SYSCTLS: Final = """\
echo 1 > /proc/sys/net/ipv4/ip_forward
bridged=/proc/sys/net/bridge/bridge-nf-call-iptables
[ ! -e $bridged ] || echo 1 > $bridged
"""
_CONTAINERD: Final = "/run/containerd/containerd.sock"


class Node:
    def __init__(self, machine: Machine, control_plane: Machine, number: int) -> None:
        """``number``: from 1."""
        self.machine = machine
        self.name = machine.name
        self.address = f"10.99.0.{10 + number}"
        self._control_plane = control_plane
        self._number = number

    def connect_network(self) -> None:
        """Links it to the control plane's bridge; pods of the nodes reach each other through it."""
        pods = _pods(self._number)
        pid, link = self.machine.pid, f"node{self._number}"
        self._control_plane.on_network(
            "ip",
            "-batch",
            "-",
            text=f"link add {link} type veth peer name eth0 netns {pid}\n"
            f"link set {link} master weft0 up\nroute replace {pods} via {self.address}\n",
        )
        self.machine.on_network(
            "ip",
            "-batch",
            "-",
            text=f"link set lo up\naddress add {self.address}/24 dev eth0\nlink set eth0 up\n"
            f"route add default via {ADDRESS}\n",
        )
        self.machine.call("sh", "-c", _SYSCTLS)

    def cut_network(self) -> None:
        """The node runs on, and nothing reaches it."""
        self._control_plane.on_network("ip", "link", "set", f"node{self._number}", "down")

    def mend_network(self) -> None:
        self._control_plane.on_network("ip", "link", "set", f"node{self._number}", "up")

    def start(self) -> None:
        """Returns once containerd serves; the kubelet registers the node a second later."""
        self._write_settings()
        root = self.machine.folder / "containerd"
        first, disk = not root.exists(), Disk.of(self.machine.cluster_folder)
        if first and disk is not None:
            disk.give(root)
        self.start_containerd()
        for archive in sorted((self.machine.cluster_folder / "images").iterdir()) if first else ():
            if disk is None or not disk.has(archive):
                self.import_image(f"{FOLDER_INSIDE}/images/{archive.name}")
        self.start_kubelet()
        self.start_kube_proxy()

    def start_containerd(self) -> Process:
        process = self.machine.spawn("containerd", ["containerd", f"--config={self.machine.inside}/containerd.toml"])

        def serves() -> bool:
            try:
                self.machine.call("ctr", "version")
            except RuntimeError:
                return False
            return True

        wait_alive(process, self.machine.log("containerd"), serves, f"containerd of {self.name} serves")
        return process

    def import_image(self, archive: str) -> None:
        """``archive``: an OCI archive, as this node's machine sees its path."""
        self.machine.call("ctr", "--namespace=k8s.io", "images", "import", archive)

    def name_image(self, present: str, name: str) -> None:
        """Gives an image that the node has another name as well."""
        self.machine.call("ctr", "--namespace=k8s.io", "images", "tag", "--force", present, name)

    def remove_image(self, name: str) -> None:
        """No error if the node does not have it."""
        self.machine.call("ctr", "--namespace=k8s.io", "images", "rm", name)

    def start_kubelet(self) -> Process:
        return self.machine.spawn(
            "kubelet",
            [
                "kubelet",
                f"--config={self.machine.inside}/kubelet.json",
                f"--hostname-override={self.name}",
                f"--kubeconfig={_KEYS}/system:node:{self.name}.kubeconfig",
                f"--node-ip={self.address}",
                # On the disk: volumes of pods are counted there.
                f"--root-dir={self.machine.inside}/kubelet",
            ],
        )

    def start_kube_proxy(self) -> Process:
        return self.machine.spawn(
            "kube-proxy",
            [
                "kube-proxy",
                f"--kubeconfig={_KEYS}/system:kube-proxy.kubeconfig",
                f"--hostname-override={self.name}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={PODS}",
                # These are settings of the whole machine outside.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ],
        )

    def _write_settings(self) -> None:
        folder, inside = self.machine.folder, self.machine.inside
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "cni" / "10-weft.conflist").write_text(json.dumps(_cni(self._number)))
        (folder / "containerd.toml").write_text(_containerd(inside))
        (folder / "kubelet.json").write_text(json.dumps(_kubelet(self.address, inside)))
        (folder / "resolv.conf").write_text("")


def _pods(number: int) -> str:
    return f"10.244.{number}.0/24"


def _cni(number: int) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "weft",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": _pods(number)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _containerd(inside: str) -> str:
    # A machine in a container may lack CAP_SYS_RESOURCE, without which oom_score_adj can only be raised.
    return f"""\
version = 3
root = "{inside}/containerd"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{FOLDER_INSIDE}/bin/runc"
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{FOLDER_INSIDE}/bin"]
conf_dir = "{inside}/cni"
"""


def _kubelet(address: str, inside: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "10s"},
            "x509": {"clientCAFile": f"{_KEYS}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
        "enforceNodeAllocatable": [],
        # Not by the disk: it is that of the machine outside. One that is nearly full would evict the
        # pods of each test and delete its images; a write that finds no room says so itself.
        "evictionHard": {"memory.available": "50Mi"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzBindAddress": "127.0.0.1",
        "imageGCHighThresholdPercent": 100,
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": f"{inside}/pods",
        "registerNode": True,
        "resolvConf": f"{inside}/resolv.conf",
        "serializeImagePulls": False,
        "volumePluginDir": f"{inside}/volume-plugins",
        "volumeStatsAggPeriod": "10s",  # so often it looks for volumes beyond their bounds
    }

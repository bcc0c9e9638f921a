"""What a cluster could leave on this machine: compared before and after it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.core.runtime.processes import ProcessIdentity, identify
from tests.testbed.kubernetes import cgroups

_FOLDERS: Final = (
    "/etc/cni",
    "/opt/cni",
    "/run/containerd",
    "/run/netns",
    "/run/runc",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
"""Into which its programs write by default."""
_SETTINGS: Final = ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/bridge/bridge-nf-call-iptables")
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "uts")


def host() -> Mapping[str, object]:
    """Returns what is the same before and after: links, addresses, routes, firewall, settings, folders."""
    return {
        "links": _output("ip", "-o", "link"),
        "addresses": _output("ip", "-o", "address"),
        "routes": _output("ip", "route", "show", "table", "all"),
        "firewall": [line for line in _output("iptables-save").splitlines() if not line.startswith(("#", ":"))],
        "settings": {path: Path(path).read_text() for path in _SETTINGS if Path(path).exists()},
        "folders": [path for path in _FOLDERS if Path(path).exists()],
        "control groups": sorted({path for h in cgroups.hierarchies() for path in Path(h.path).glob("k8s.io*")}),
    }


def of_cluster(name: str, folder: Path) -> Mapping[str, list[str]]:
    """Returns what there is of one cluster: all empty before and after it."""
    groups = [group for group in cgroups.left_groups() if group.startswith(f"{name}-")]
    return {
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line],
        "control groups": groups,
        "processes": [process for group in groups for process in _processes(group)],
        "files": sorted(str(path) for path in folder.parent.glob(f"{name}/*")),
    }


def namespaces(pid: int) -> set[str]:
    """Returns those in which a process runs."""
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in _NAMESPACES}


def processes_in(spaces: set[str]) -> set[ProcessIdentity]:
    """Returns the processes that run in any of these namespaces.

    A namespace that is gone may give its number to a new one, so processes are compared, and not namespaces.
    """
    inside: set[ProcessIdentity] = set()
    for pid in [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]:
        with suppress(OSError):  # it has just ended
            process = identify(pid) if namespaces(pid) & spaces else None
            inside |= {process} if process is not None else set()
    return inside


def _processes(group: str) -> list[str]:
    return [
        pid
        for hierarchy in cgroups.hierarchies()
        for file in Path(hierarchy.path, cgroups.PREFIX + group).rglob("cgroup.procs")
        for pid in file.read_text().split()
    ]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

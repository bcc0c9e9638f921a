"""The programs of the test cluster: built once per machine from the pinned modules beside this file, when needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.testbed.built import need_debian
from tests.testbed.go import SERVERS, go_build, go_programs

MODULES: Final = Path(__file__).with_name("modules")


@dataclass(frozen=True)
class Part:
    """Programs that are built together."""

    folder: Path
    takes: str
    """Processor time of a cold build (measured)."""


_CONTROL_PLANE: Final = (
    Part(MODULES / "kubernetes", "6 minutes of processor time"),
    Part(SERVERS / "etcd", "a minute"),
    Part(MODULES / "coredns", "a minute"),
)
_NODES: Final = (
    Part(MODULES / "containerd", "75 s"),
    Part(MODULES / "runc", "10 s"),
    Part(MODULES / "cni", "10 s"),
)
_SIMULATED: Final = (Part(MODULES / "kwok", "90 s"),)


def build(say: Callable[[str], None], *, nodes: bool = True, simulated: bool = True) -> list[Path]:
    """Returns the binaries of a control plane, and of what else is needed; builds those that are missing.

    Raises RuntimeError if this user cannot run a cluster, or a build fails.
    """
    if os.geteuid() != 0:
        raise RuntimeError("the test cluster needs root (namespaces, mounts, cgroups): run it with sudo")
    need_debian(("ip", "nsenter", "unshare"), ("iproute2", "util-linux"), say)
    if nodes:
        need_debian(("iptables", "busybox"), ("iptables", "busybox-static"), say)
    parts = [*_CONTROL_PLANE, *(_NODES if nodes else ()), *(_SIMULATED if simulated else ())]
    return [program for part in parts for program in _built(part, say)]


def _built(part: Part, say: Callable[[str], None]) -> list[Path]:
    def say_more(what: str) -> None:
        say(what.replace("up to some minutes", part.takes))

    if part.folder.name == "runc" and not Path("/usr/include/seccomp.h").exists():
        need_debian(("seccomp.h",), ("libseccomp-dev", "pkg-config", "gcc", "libc6-dev"), say)
    if any(part.folder.glob("*.go")):
        return [go_build(part.folder.name, part.folder, say_more)]
    return sorted(go_programs(part.folder.name, part.folder, say_more).iterdir())

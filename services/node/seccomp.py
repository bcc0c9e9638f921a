"""The filter of system calls that learners run under: the default of container runtimes, as a BPF program.

Refused are the calls that Docker's default profile (moby 27) allows only with a capability, or not at all: namespaces,
mounts, keys, modules, kernel tracing, the clock. The profile lists what it allows; this is its complement among the
calls of Linux 6.1, which is a sixth as long. Newer calls and those of other architectures answer ENOSYS, so programs
fall back to older ones. io_uring is refused as in the newer profiles.

A library would have to be libseccomp's, whose bindings are not on the package index (``pyseccomp`` is unmaintained and
needs the system's library).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_X86_64: Final = "x86_64"
_AARCH64: Final = "aarch64"
_AUDIT_ARCH: Final = {_X86_64: 0xC000003E, _AARCH64: 0xC00000B7}
_LAST: Final = 450
"""set_mempolicy_home_node, the newest call of Linux 6.1 on both architectures."""
_REFUSED: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "get_mempolicy": (239, 236),
    "getpmsg": (181, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "security": (185, None),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
}
"""Name -> its numbers on x86_64 and aarch64, out of the kernel's ABI, where they never change."""
_CLONE: Final = {_X86_64: 56, _AARCH64: 220}
_CLONE3: Final = 435
"""Answers ENOSYS: its flags are in memory, where a filter cannot read them. The C library then calls clone."""
_PERSONALITY: Final = {_X86_64: 135, _AARCH64: 92}
_SOCKET: Final = {_X86_64: 41, _AARCH64: 198}
_NAMESPACES: Final = 0x7E020000
"""All flags of clone that make a namespace."""
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32 bit, with the version names of Linux 2.6; the last only reads it."""
_AF_VSOCK: Final = 40
"""Sockets to the host of a virtual machine."""

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_GREATER: Final = 0x25
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; the lower half of the first argument."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction; jumps name a label, or "" for the next instruction."""

    code: int
    value: int
    if_true: str = ""
    if_false: str = ""
    label: str = ""


def learner_filter(machine: str = "") -> bytes:
    """The program as an array of ``struct sock_filter``; empty for an architecture that is neither x86_64 nor aarch64.

    ``machine``: as ``uname -m`` prints it; empty: this machine's.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        return b""
    numbers = [number[0 if machine == _X86_64 else 1] for number in _REFUSED.values()]
    steps = [
        _Step(_LOAD, _ARCH_AT),
        _Step(_IF_EQUAL, _AUDIT_ARCH[machine], if_false="unknown"),
        _Step(_LOAD, _NUMBER_AT),
        _Step(_IF_GREATER, _LAST, if_true="unknown"),
        _Step(_IF_EQUAL, _CLONE3, if_true="unknown"),
        _Step(_IF_EQUAL, _CLONE[machine], if_true="clone"),
        _Step(_IF_EQUAL, _SOCKET[machine], if_true="socket"),
        _Step(_IF_EQUAL, _PERSONALITY[machine], if_true="personality"),
        *(_Step(_IF_EQUAL, number, if_true="refuse") for number in sorted(filter(None, numbers))),
        _Step(_RETURN, _ALLOW),
        _Step(_LOAD, _ARGUMENT_AT, label="clone"),
        _Step(_IF_ANY_BIT, _NAMESPACES, if_true="refuse", if_false="allow"),
        _Step(_LOAD, _ARGUMENT_AT, label="socket"),
        _Step(_IF_EQUAL, _AF_VSOCK, if_true="refuse", if_false="allow"),
        _Step(_LOAD, _ARGUMENT_AT, label="personality"),
        *(_Step(_IF_EQUAL, value, if_true="allow") for value in _PERSONALITIES),
        _Step(_RETURN, _ERRNO | _EPERM, label="refuse"),
        _Step(_RETURN, _ERRNO | _ENOSYS, label="unknown"),
        _Step(_RETURN, _ALLOW, label="allow"),
    ]
    return _assemble(steps)


def refused_calls() -> Sequence[str]:
    """The names of the calls that always answer EPERM."""
    return tuple(_REFUSED)


def _assemble(steps: Sequence[_Step]) -> bytes:
    """Labels become distances, which the kernel counts from the next instruction."""
    places = {step.label: place for place, step in enumerate(steps) if step.label}

    def distance(label: str, place: int) -> int:
        return places[label] - place - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", step.code, distance(step.if_true, place), distance(step.if_false, place), step.value)
        for place, step in enumerate(steps)
    )


def is_supported() -> bool:
    """True if this kernel has filters of system calls."""
    return Path("/proc/sys/kernel/seccomp/actions_avail").exists()

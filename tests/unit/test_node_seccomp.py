"""The filter of learners' system calls, run by a small interpreter of its instructions, for both architectures."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from services.node.seccomp import learner_filter, refused_calls

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
JUMPS: dict[int, Callable[[int, int], bool]] = {
    0x15: lambda left, right: left == right,
    0x25: lambda left, right: left > right,
    0x45: lambda left, right: bool(left & right),
}


def run(machine: str, number: int, argument: int = 0, *, arch: int = 0) -> int:
    """What the filter answers to the call."""
    call = struct.pack("=IIQ6Q", number, arch or ARCH[machine], 0, argument, *[0] * 5)
    steps = list(struct.iter_unpack("=HBBI", learner_filter(machine)))
    place = value = 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", call, operand)
        elif code == 0x06:
            return int(operand)
        else:
            place += if_true if JUMPS[code](value, operand) else if_false


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {"read": 0, "execve": 59, "openat": 257, "futex": 202, "ptrace": 101, "landlock": 446}),
        ("aarch64", {"read": 63, "execve": 221, "openat": 56, "futex": 98, "ptrace": 117, "landlock": 446}),
    ],
)
def test_calls_of_ordinary_programs_are_allowed(machine: str, numbers: dict[str, int]) -> None:
    assert {name: run(machine, number) for name, number in numbers.items()} == dict.fromkeys(numbers, ALLOW)


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {"mount": 165, "bpf": 321, "keyctl": 250, "unshare": 272, "set_mempolicy_home_node": 450}),
        ("aarch64", {"mount": 40, "bpf": 280, "keyctl": 219, "unshare": 97, "set_mempolicy_home_node": 450}),
    ],
)
def test_privileged_calls_are_refused(machine: str, numbers: dict[str, int]) -> None:
    assert numbers.keys() <= {*refused_calls()}
    assert {name: run(machine, number) for name, number in numbers.items()} == dict.fromkeys(numbers, EPERM)


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_threads_and_processes_may_be_made_and_namespaces_may_not(machine: str, clone: int) -> None:
    assert run(machine, clone, 0x3D0F00) == ALLOW  # a thread
    assert run(machine, clone, 17) == ALLOW  # fork
    for namespace in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(machine, clone, namespace | 17) == EPERM
    assert run(machine, 435) == ENOSYS  # clone3, whose flags cannot be seen


@pytest.mark.parametrize(("machine", "socket", "personality"), [("x86_64", 41, 135), ("aarch64", 198, 92)])
def test_arguments_decide_for_sockets_and_personalities(machine: str, socket: int, personality: int) -> None:
    assert [run(machine, socket, family) for family in (1, 2, 10, 16, 40)] == [ALLOW] * 4 + [EPERM]
    assert [run(machine, personality, value) for value in (0, 8, 0x20008, 0xFFFFFFFF)] == [ALLOW] * 4
    assert run(machine, personality, 0x40000) == EPERM  # no randomization of addresses


def test_calls_of_other_architectures_and_of_newer_kernels_do_not_exist() -> None:
    assert run("x86_64", 0, arch=0x40000003) == ENOSYS  # i386
    assert run("x86_64", 0x40000000) == ENOSYS  # x32
    assert run("aarch64", 451) == ENOSYS


def test_other_machines_have_no_filter() -> None:
    assert learner_filter("riscv64") == b""

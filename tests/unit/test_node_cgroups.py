"""Where control groups are made, by the kernel's files; and version 2, in a folder of plain files.

Version 1 is tested with the kernel's own groups in tests/integration/test_isolation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.core.domain.codec import dump
from services.core.runtime.home import Home
from services.core.runtime.learner_folder import LearnerDocument
from services.node import cgroups
from services.node.cgroups import Groups, Mounted, mounted
from services.node.reservation import Allotment, documents
from tests.testbed.node import plan

V1 = """\
30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_OWN = "9:name=systemd:/\n5:memory:/user/me\n4:cpu,cpuacct:/\n0::/\n"
V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_each_controller_of_version_1_has_a_tree_with_a_place_for_this_process() -> None:
    top = Path("/sys/fs/cgroup")
    assert mounted(V1, V1_OWN) == [
        Mounted(frozenset({"memory"}), top / "memory/user/me", top / "memory"),
        Mounted(frozenset({"cpu", "cpuacct"}), top / "cpu,cpuacct", top / "cpu,cpuacct"),
        Mounted(frozenset(), top / "unified", top / "unified"),
    ]


def test_version_2_has_one_tree() -> None:
    trees = mounted(V2, "0::/user.slice/user-0.slice/session-1.scope\n")
    top = Path("/sys/fs/cgroup")
    assert trees == [Mounted(frozenset(), top / "user.slice/user-0.slice/session-1.scope", top)]


def test_in_a_container_the_tree_begins_at_the_container(tmp_path: Path) -> None:
    line = f"31 30 0:27 /docker/abc {tmp_path} rw - cgroup cgroup rw,memory\n"
    assert mounted(line, "5:memory:/docker/abc/x\n") == [Mounted(frozenset({"memory"}), tmp_path / "x", tmp_path)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Version 2 made of plain files: they can be written, and limit nothing."""
    slice_ = tmp_path / "cgroup/user.slice"
    (slice_ / "session.scope").mkdir(parents=True)
    (slice_ / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return slice_


def document(home: Path, groups: Groups) -> LearnerDocument:
    gang = plan(["true"], memory=2**28)
    allotment = Allotment(uid=70_000, gid=70_000, gpus={"worker-0": ()}, ports={})
    reserved = documents(gang, allotment, home=Home(home), isolation="process")[0]
    return replace(reserved, groups=groups.paths(reserved))


def test_groups_of_version_2_are_made_beside_the_agents_and_limited(tree: Path, tmp_path: Path) -> None:
    base, why = cgroups.base_v2(Mounted(frozenset(), tree / "session.scope", tmp_path / "cgroup"), "weft-x")
    assert (base, why) == (tree / "weft-x", "")
    assert (tree / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (tree / "weft-x/cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    groups = Groups({"": tree / "weft-x"}, version=2, places_file=tmp_path / "groups.json", pids=100)
    learner = document(tmp_path, groups)
    (path,) = map(Path, learner.groups)
    limits = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.weight"]
    path.mkdir()
    for name in limits:
        (path / name).touch()  # as the kernel does
    groups.make(learner)
    assert [(path / name).read_text() for name in limits] == [str(2**28), "0", "1", "100", "100"]
    assert groups.enforced == ["memory", "pids", "cpu"]


def test_no_groups_are_made_in_version_2_without_the_memory_controller(tree: Path, tmp_path: Path) -> None:
    (tree / "cgroup.controllers").write_text("cpuset pids\n")
    base, why = cgroups.base_v2(Mounted(frozenset(), tree / "session.scope", tmp_path / "cgroup"), "weft-x")
    assert (base, why) == (None, "cgroup v2 has no memory controller here")


def test_a_tree_that_cannot_be_changed_gives_the_reason(tmp_path: Path) -> None:
    base, why = cgroups.base_v2(Mounted(frozenset(), tmp_path / "none/x", tmp_path), "weft-x")
    assert base is None
    assert "No such file or directory" in why


def test_learners_together_leave_processes_to_the_platform(tmp_path: Path) -> None:
    groups, _ = Groups.find(tmp_path, pids=4096)
    learner = document(tmp_path, groups)
    try:
        together = [Path(group).parent / "pids.max" for group in learner.groups]
        limits = [int(path.read_text()) for path in together if path.exists()]
        assert len(limits) == ("pids" in groups.enforced)
        assert all(100 < limit < int(Path("/proc/sys/kernel/pid_max").read_text()) for limit in limits)
    finally:
        Groups.remove_all(tmp_path)


def test_without_groups_no_limit_is_enforced(tmp_path: Path) -> None:
    groups, why = Groups.find(tmp_path, pids=100, wanted=False)
    learner = document(tmp_path, groups)
    groups.make(learner)
    groups.sweep([])
    assert (learner.groups, groups.enforced) == ((), [])
    assert "WEFT_NODE_CGROUPS" in why
    assert dump(learner)["groups"] == []

"""Caches keep to their bound: what was used least recently goes, and nothing that is in use."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from services.node.caches import Caches
from services.node.learner import Learner
from tests.unit.test_node_files import learner as learner  # noqa: PLC0414 - the fixture

MIB = 2**20


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three environments of 1 MiB, used one after another, a package cache, and one data set."""
    folder = tmp_path / "cache"
    for used, name in enumerate(("oldest", "older", "newest"), 100):
        place = folder / "envs" / name
        place.mkdir(parents=True)
        (place / "library").write_bytes(b"x" * MIB)
        (place / ".ok").touch()
        os.utime(place / ".ok", (used, used))
    (folder / "uv").mkdir()
    (folder / "uv/wheel").write_bytes(b"x" * MIB)
    (folder / "uv.lock").touch()
    data = folder / "data/t/abc"
    data.mkdir(parents=True)
    (data / "body").write_bytes(b"x" * MIB)
    (data / "lock").touch()
    for lock in (folder / "uv.lock", data / "lock"):
        os.utime(lock, (200, 200))
    return folder


def left(cache: Path) -> set[str]:
    """The environments, "uv" and "data" that are still there."""
    names = {path.name for path in (cache / "envs").iterdir() if path.is_dir()}
    return names | {name for name in ("uv", "data/t/abc/body") if (cache / name).exists()}


ALL = {"oldest", "older", "newest", "uv", "data/t/abc/body"}


def test_nothing_is_removed_within_the_bound(cache: Path) -> None:
    sizes, removed = Caches(cache, 100 * MIB, list).bound()
    assert (left(cache), removed) == (ALL, 0)
    assert {kind: size // MIB for kind, size in sizes.items()} == {"environments": 3, "packages": 1, "data": 1}


@pytest.mark.parametrize(("changed", "lock"), [("uv/wheel", "uv.lock"), ("data/t/abc/body", "data/t/abc/lock")])
def test_files_are_counted_again_only_once_somebody_has_used_them(cache: Path, changed: str, lock: str) -> None:
    caches = Caches(cache, 100 * MIB, list)
    before, _ = caches.bound()
    (cache / changed).write_bytes(b"x" * 3 * MIB)
    assert caches.bound()[0] == before
    os.utime(cache / lock, (300, 300))
    after, _ = caches.bound()
    assert (sum(after.values()) - sum(before.values())) // MIB == 2


def test_files_that_are_just_being_written_are_counted_each_time(cache: Path) -> None:
    caches = Caches(cache, 100 * MIB, list)
    with (cache / "uv.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        before, _ = caches.bound()
        (cache / "uv/wheel").write_bytes(b"x" * 3 * MIB)
        after, _ = caches.bound()
    assert (after["packages"] - before["packages"]) // MIB == 2


def test_the_least_recently_used_is_removed_first(cache: Path) -> None:
    sizes, removed = Caches(cache, 4 * MIB + MIB // 2, list).bound()
    assert (left(cache), removed) == (ALL - {"oldest"}, 1)
    assert sizes["environments"] // MIB == 2
    os.utime(cache / "envs/older/.ok", (300, 300))
    assert Caches(cache, 3 * MIB + MIB // 2, list).bound()[1] == 1
    assert left(cache) == ALL - {"oldest", "newest"}


def test_everything_that_is_not_in_use_may_go(cache: Path) -> None:
    assert Caches(cache, 0, list).bound()[1] == 5
    assert left(cache) == set()


def test_an_environment_that_a_learner_uses_is_kept(cache: Path, learner: Learner) -> None:
    venv = cache / "envs/oldest/venv/bin"
    (learner.folder / "prepared.json").write_text(json.dumps({"schema": 1, "path": [str(venv)]}))
    Caches(cache, 0, lambda: [learner]).bound()
    assert left(cache) == {"oldest"}


def test_an_environment_that_was_used_since_an_unprepared_learner_came_is_kept(cache: Path, learner: Learner) -> None:
    os.utime(cache / "envs/newest/.ok")
    Caches(cache, 0, lambda: [learner]).bound()
    assert left(cache) == {"newest"}


def test_an_unreadable_learner_keeps_all_environments(cache: Path, learner: Learner) -> None:
    (learner.folder / "prepared.json").write_text("[")
    Caches(cache, 0, lambda: [learner]).bound()
    assert left(cache) == {"oldest", "older", "newest"}


def test_what_a_helper_has_locked_is_kept(cache: Path) -> None:
    locks = [cache / "envs/oldest.lock", cache / "uv.lock", cache / "data/t/abc/lock"]
    held = [os.open(path, os.O_RDWR | os.O_CREAT) for path in locks]
    for descriptor in held:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    Caches(cache, 0, list).bound()
    for descriptor in held:
        os.close(descriptor)
    assert left(cache) == {"oldest", "uv", "data/t/abc/body"}


def test_what_a_killed_agent_has_half_removed_is_removed(cache: Path) -> None:
    (cache / "envs/oldest").rename(cache / "envs/.gone-1")
    Caches(cache, 100 * MIB, list).bound()
    assert left(cache) == ALL - {"oldest"}


def test_an_environment_whose_build_was_stopped_is_removed_once_nobody_builds_it(cache: Path) -> None:
    half = cache / "envs/half"
    half.mkdir()
    (half / "library").write_bytes(b"x" * MIB)
    held = os.open(cache / "envs/half.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)  # the helper, or its uv, which may outlive it
    caches = Caches(cache, 100 * MIB, list)
    (sizes, removed) = caches.bound()
    assert (sizes["environments"] // MIB, removed) == (4, 0)
    (half / "more").write_bytes(b"x" * MIB)
    assert caches.bound()[0]["environments"] // MIB == 5
    os.close(held)
    (sizes, removed) = caches.bound()
    assert (left(cache), sizes["environments"] // MIB, removed) == (ALL, 3, 1)


def test_many_small_objects_do_not_use_up_the_files_of_the_disk(cache: Path) -> None:
    for number in range(10):
        place = cache / "data/t" / str(number)
        place.mkdir()
        (place / "body").write_bytes(b"x")
        (place / "lock").touch()
        os.utime(place / "lock", (number, number))
    assert Caches(cache, 100 * MIB, list, most_data=4).bound()[1] == 7
    assert {path.name for path in (cache / "data/t").iterdir()} == {"7", "8", "9", "abc"}, "the places are gone, too"
    assert left(cache) == ALL


def test_a_place_of_data_that_a_killed_agent_has_half_removed_is_removed(cache: Path) -> None:
    (cache / "data/t/abc").rename(cache / "data/t/.gone-1")
    Caches(cache, 100 * MIB, list).bound()
    assert list((cache / "data/t").iterdir()) == []


def test_a_machine_without_caches_has_nothing_to_remove(tmp_path: Path) -> None:
    assert Caches(tmp_path / "missing", 0, list).bound()[1] == 0

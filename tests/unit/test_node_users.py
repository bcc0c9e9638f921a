"""Which user a job gets: never one of which another tenant has left something."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from services.core.domain.errors import ResourceExhausted
from services.core.runtime.processes import identify
from services.node.allocation import Pool, Taken
from services.node.traces import Places, files_of, sweep, trace_of, traced
from services.node.users import Users
from tests.waiting import eventually

TWO = Pool(70_000, 2)


def test_a_user_of_another_tenant_is_given_only_when_nothing_of_it_is_left(tmp_path: Path) -> None:
    left = {70_000: "a file", 70_001: "a process"}
    users = Users(tmp_path / "users", TWO, lambda uid: left.get(uid, ""), lambda _: ())
    first = users.pick("j1", "blue", Taken())
    second = users.pick("j2", "blue", Taken(uids={first: "j1"}))
    assert {first, second} == {70_000, 70_001}
    assert users.pick("j3", "blue", Taken()) in {first, second}  # its own tenant's
    with pytest.raises(ResourceExhausted, match="files and processes of another tenant left"):
        users.pick("j4", "red", Taken())
    del left[70_001]
    assert users.pick("j4", "red", Taken()) == 70_001
    assert users.pick("j5", "red", Taken()) == 70_001
    restarted = Users(tmp_path / "users", TWO, lambda uid: left.get(uid, ""), lambda _: ())
    assert restarted.pick("j6", "red", Taken()) == 70_001


def test_a_user_whose_records_a_purge_removed_is_given_only_when_nothing_of_it_is_left(tmp_path: Path) -> None:
    left, passes = {70_000: "a file in /tmp"}, list[range]()

    def traced_once(uids: range) -> set[int]:
        passes.append(uids)
        return set(left)

    users = Users(tmp_path / "users", TWO, lambda uid: left.get(uid, ""), traced_once)
    assert [users.pick(f"j{number}", "blue", Taken()) for number in range(9)] == [70_001] * 9
    with pytest.raises(ResourceExhausted):
        users.pick("j9", "blue", Taken(uids={70_001: "j1"}))
    del left[70_000]
    assert users.pick("j9", "blue", Taken(uids={70_001: "j1"})) == 70_000
    assert passes == [range(70_000, 70_002)]


def test_traces_of_all_users_are_found_in_one_pass(tmp_path: Path) -> None:
    own, proc = os.geteuid(), tmp_path / "proc"
    (proc / "sysvipc").mkdir(parents=True)
    (tmp_path / "shared/deep").mkdir(parents=True)
    places = Places(folders=(str(tmp_path / "shared"),), proc=proc)
    assert traced(range(own, own + 1), places) == {own}
    assert traced(range(64_123, 64_130), places) == set()
    assert own in traced(range(own, own + 1), Places(folders=()))
    (proc / "sysvipc/shm").write_text("key shmid perms uid gid cuid cgid\n 0 1 600 5 5 64123 5\n")
    assert traced(range(64_123, 64_130), places) == {64_123}
    full = Places(folders=places.folders, proc=proc, max_entries=0)
    assert traced(range(64_124, 64_130), full) == set()  # else no job could start beside a full /tmp


def test_a_damaged_record_of_a_user_counts_as_another_tenant(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users/70000.json").write_text("{")
    users = Users(tmp_path / "users", Pool(70_000, 1), lambda _: "a file", lambda _: ())
    with pytest.raises(ResourceExhausted):
        users.pick("j1", "blue", Taken())


def test_processes_files_and_shared_memory_of_a_user_are_traces(tmp_path: Path) -> None:
    own, nobody = os.geteuid(), 64_123
    shared, empty = tmp_path / "shared", tmp_path / "proc"
    (shared / "deep").mkdir(parents=True)
    (empty / "sysvipc").mkdir(parents=True)
    assert trace_of(own, Places(folders=(str(shared),))).startswith("process ")
    assert trace_of(nobody, Places(folders=(str(shared),))) == ""
    without_processes = Places(folders=(str(shared),), proc=empty)
    assert trace_of(own, without_processes) == str(shared / "deep")
    (empty / "sysvipc/shm").write_text("key shmid perms uid gid cuid cgid\n 0 1 600 5 5 64123 5\n")
    assert trace_of(nobody, without_processes) == "System V shm"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can be started by root only")
def test_process_that_has_ended_and_is_not_waited_for_is_no_trace(tmp_path: Path) -> None:
    """In a container whose first process waits for none, its user id was never given to another tenant."""
    places, user = Places(folders=(str(tmp_path),)), 64_125
    with subprocess.Popen(["sleep", "1000"], user=user) as process:
        assert trace_of(user, places) == f"process {process.pid}"
        process.kill()
        eventually(lambda: identify(process.pid) is None)
        assert trace_of(user, places) == ""
        assert traced(range(user, user + 1), places) == set()


def test_a_sweep_removes_the_users_files_and_no_others(tmp_path: Path) -> None:
    places = Places(folders=(str(tmp_path / "shared"), str(tmp_path / "missing")))
    (tmp_path / "shared/mine/deep").mkdir(parents=True)
    (tmp_path / "shared/link").symlink_to(tmp_path)
    assert list(files_of(64_123, places)) == []
    sweep(64_123, places)
    assert (tmp_path / "shared/mine/deep").exists()
    sweep(os.geteuid(), places)
    assert list((tmp_path / "shared").iterdir()) == []
    assert tmp_path.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
def test_a_link_that_a_stranger_puts_in_the_place_of_a_folder_leads_a_sweep_nowhere(tmp_path: Path) -> None:
    learner, stranger = 64_123, 64_124
    shared, kept = tmp_path / "shared", tmp_path / "platform"
    for folder in (shared, kept / "left"):
        folder.mkdir(parents=True)
    files = [shared / f"file-{number}" for number in range(2000)]
    for file in files:
        file.touch()
        os.chown(file, learner, learner)
    folders = [shared / f"stranger-{number}" for number in range(50)]
    for folder in folders:
        (folder / "left").mkdir(parents=True)
        os.chown(folder, stranger, stranger)
        os.chown(folder / "left", learner, learner)

    def replace() -> None:
        while all(file.exists() for file in files):
            pass
        for folder in folders:
            folder.rename(tmp_path / folder.name)
            folder.symlink_to(kept)

    stranger_acts = threading.Thread(target=replace)
    stranger_acts.start()
    sweep(learner, Places(folders=(str(shared),)))
    stranger_acts.join()
    assert (kept / "left").exists()
    assert not any(file.exists() for file in files)


def test_a_folder_full_of_others_files_does_not_hide_what_a_learner_left_in_another_folder(tmp_path: Path) -> None:
    full, other = tmp_path / "full", tmp_path / "other"
    for folder in (full / "files", other):
        folder.mkdir(parents=True)
    for number in range(20):
        (full / f"files/{number}").touch()
    places = Places(folders=(str(full), str(other)), max_entries=10)
    learner = 64_123 if os.geteuid() == 0 else os.geteuid()
    (other / "left").touch()
    os.chown(other / "left", learner, -1)
    assert str(other / "left") in list(files_of(learner, places))
    sweep(learner, places)
    assert not (other / "left").exists()
    if os.geteuid() == 0:
        assert list(files_of(learner, places)) == [f"{full}/..."]
        (full / "files").chmod(0o700)
        assert list(files_of(learner, places)) == []

"""Fences, folders and stop marks of the node agent, on a real disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.domain.codec import dump, load
from services.core.domain.errors import StaleFence
from services.core.runtime import sdk
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.home import Home
from services.core.runtime.learner_folder import LearnerDocument, read_gang
from services.core.runtime.tree_removal import NotRemoved, remove_tree
from services.core.strategies.registry import with_variables
from services.node.capacity import detect
from services.node.fences import Fences
from services.node.learner import JobFolder, Learner, read_learner, strange_entries
from services.node.reservation import Allotment, documents, make
from services.node.settings import NodeSettings
from tests.documents import a_learner, a_plan
from tests.testbed.deep_folders import make_deep


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    """The first of two."""
    learners = [a_learner(f"worker-{rank}", token=f"token-{rank}", env={"SECRET": f"s-{rank}"}) for rank in (0, 1)]
    plan = a_plan(*learners, job="j1")
    allotment = Allotment(os.getuid(), os.getgid(), {"worker-0": (), "worker-1": ()}, {})
    (tmp_path / "node").mkdir()
    reserved = documents(with_variables(plan), allotment, home=Home(tmp_path), isolation="process")
    return make(JobFolder(tmp_path / "node" / "j1"), 1, reserved, plan)[0]


def test_a_lower_attempt_or_term_is_refused(tmp_path: Path) -> None:
    Fences(tmp_path).advance("j", 2, 5)
    for attempt, term in ((2, 4), (1, 9)):
        with pytest.raises(StaleFence, match="attempt 2, term 5"):
            Fences(tmp_path).advance("j", attempt, term)
    Fences(tmp_path).advance("j", 2, 5)
    Fences(tmp_path).advance("j", 3, 1)
    Fences(tmp_path).advance("other", 1, 1)


def test_after_a_teardown_the_same_attempt_and_term_make_nothing(tmp_path: Path) -> None:
    fences = Fences(tmp_path)
    fences.advance("j", 1, 1, makes=True)
    fences.seal("j", 1, 1)
    fences.write("j")
    fences = Fences(tmp_path)
    fences.advance("j", 1, 1)
    with pytest.raises(StaleFence):
        fences.advance("j", 1, 1, makes=True)
    fences.advance("j", 1, 2, makes=True)


def test_fences_of_jobs_removed_long_ago_are_deleted(tmp_path: Path) -> None:
    fences = Fences(tmp_path)
    for job in ("old", "present", "new"):
        fences.advance(job, 1, 1)
    for job in ("old", "present"):
        os.utime(tmp_path / f"{job}.json", (1, 1))
    fences.prune({"present"})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["new", "present"]


def test_a_learner_is_read_back_as_it_was_written(learner: Learner) -> None:
    assert read_learner(learner.folder) == learner
    assert load(LearnerDocument, dump(learner.document)) == learner.document


def test_learner_json_has_no_token_and_no_environment_of_other_learners(learner: Learner) -> None:
    text = (learner.folder / "learner.json").read_text()
    assert "token-0" in text
    assert "s-0" in text
    assert "token-1" not in text
    assert "s-1" not in text
    assert "worker-1" not in text


def test_names_of_a_gang_are_in_one_file_that_all_its_learners_read(learner: Learner) -> None:
    assert read_gang(learner.folder, learner.document.plan) == ["worker-0", "worker-1"]


def test_gang_of_a_learner_that_an_older_agent_made_is_in_its_own_file(learner: Learner) -> None:
    (learner.folder.parent / ".gang.json").unlink()
    (own,) = learner.document.plan.learners
    plan = replace(learner.document.plan, learners=(replace(own, name="worker-1", rank=1), own))
    assert read_gang(learner.folder, plan) == ["worker-0", "worker-1"]


@pytest.mark.slow
def test_files_of_a_gang_grow_with_its_learners_and_not_with_their_square(tmp_path: Path) -> None:
    """10,000 learners once had 10,000 plans of 10,000 learners."""

    def size(count: int) -> int:
        names = [f"worker-{index}" for index in range(count)]
        plan = a_plan(*map(a_learner, names), job=f"j{count}")
        allotment = Allotment(os.getuid(), os.getgid(), dict.fromkeys(names, ()), {})
        reserved = documents(with_variables(plan), allotment, home=Home(tmp_path), isolation="process")
        (tmp_path / "node").mkdir(exist_ok=True)
        make(JobFolder(tmp_path / "node" / f"j{count}"), 1, reserved, plan)
        return sum(path.stat().st_size for path in (tmp_path / "node" / f"j{count}").rglob("*.json"))

    assert size(200) < 11 * size(20)


def test_a_learner_of_a_newer_version_is_not_read(learner: Learner) -> None:
    document = read_json(learner.folder / "learner.json")
    write_json(learner.folder / "learner.json", {**(document or {}), "schema": 2, "plan": "unheard of"})
    assert read_learner(learner.folder) is None


def test_the_platforms_files_are_closed_and_the_learners_folder_is_passable(learner: Learner) -> None:
    modes = {
        name: (learner.folder / name).stat().st_mode & 0o777 for name in ("", "learner.json", "runs", "spool", "job")
    }
    assert modes == {"": 0o711, "learner.json": 0o600, "runs": 0o700, "spool": 0o700, "job": 0o700}


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (("halt", 5000), ("kill", 0), ("kill", 0)),
        (("kill", 0), ("halt", 5000), ("kill", 0)),
        (("halt", 0), ("kill", 0), ("kill", 0)),
        (("halt", 5000), ("deadline", 5000), ("halt", 5000)),
        (("peer", 5000), ("halt", 100), ("halt", 100)),
        (("kill", 0), ("kill", 0), ("kill", 0)),
    ],
)
def test_a_stronger_stop_replaces_a_weaker_one_and_not_the_reverse(
    learner: Learner, first: tuple[str, int], second: tuple[str, int], stays: tuple[str, int]
) -> None:
    for cause, grace_ms in (first, second):
        learner.mark_stop(generation=1, cause=cause, grace_ms=grace_ms, now_ms=1)
    assert learner.stop_mark == stays


def test_a_tree_with_closed_folders_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    (outside / "kept").touch()
    deep = tree / "a" / "b" / ("x" * 200)
    deep.mkdir(parents=True)
    (deep / "f").touch()
    (deep / "f").chmod(0)
    (tree / "link").symlink_to(outside)
    (tree / "a" / "b").chmod(0)
    (tree / "a").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


@pytest.mark.slow
def test_three_thousand_folders_inside_one_another_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.close(make_deep(tree, "deeper-and-deeper-and-deeper", 3000, file="file"))
    remove_tree(tree)
    assert not tree.exists()


def test_names_that_are_no_text_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (b"\xff\xfe", b"a\nb", b"\xed\xa0\x80", b"-rf", b"*", b" ", b"x" * 255):
        inner = tree / os.fsdecode(name)
        inner.mkdir()
        (inner / os.fsdecode(b"\xfflink")).symlink_to("/")
        os.mkfifo(inner / "pipe")
    remove_tree(tree)
    assert not tree.exists()


def test_a_link_in_place_of_the_folder_is_removed_and_its_target_is_not(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/kept").touch()
    (tmp_path / "tree").symlink_to(tmp_path / "target")
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").is_symlink()
    assert (tmp_path / "target/kept").exists()
    remove_tree(tmp_path / "tree")  # nothing is there


def test_a_removal_that_takes_too_long_ends_and_a_later_one_continues(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    with pytest.raises(NotRemoved, match="too much to remove at once"):
        remove_tree(tree, within_s=-1)
    assert tree.exists()
    remove_tree(tree)
    assert not tree.exists()


def test_names_that_a_removal_itself_uses_do_not_confuse_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (".moved-0", ".moved-0/.moved-1", ".moved-1/x/.moved-0"):
        (tree / name / "full").mkdir(parents=True)
    remove_tree(tree)
    assert not tree.exists()


def test_the_sdk_is_copied_for_all_users_and_not_replaced_by_the_same(tmp_path: Path) -> None:
    sdk.install(tmp_path / "sdk")
    written = (tmp_path / "sdk/weft/_learner.py").stat()
    sdk.install(tmp_path / "sdk")
    assert (tmp_path / "sdk/weft/_learner.py").stat().st_ino == written.st_ino
    assert written.st_mode & 0o777 == 0o644
    assert sorted(path.name for path in (tmp_path / "sdk/weft").iterdir()) == ["__init__.py", "_learner.py"]


def test_declared_capacity_wins_over_detected_capacity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    monkeypatch.setenv("WEFT_NODE_CPUS", "500")
    monkeypatch.setenv("WEFT_NODE_MEMORY", "2TB")
    monkeypatch.setenv("WEFT_NODE_GPUS", "8")
    declared = detect(NodeSettings())
    assert (declared.cpus, declared.memory, declared.gpus) == (500, 2 * 10**12, 8)
    for name in ("CPUS", "MEMORY", "GPUS"):
        monkeypatch.delenv(f"WEFT_NODE_{name}")
    detected = detect(NodeSettings())
    assert detected.cpus == len(os.sched_getaffinity(0))
    assert 0 < detected.memory < declared.memory


def test_folder_of_a_job_that_is_torn_down_at_this_moment_is_no_error_and_no_strange_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the job could not be observed then, or was in quarantine: "it is no folder of a job"."""
    root, job, listing = tmp_path / "node", tmp_path / "node" / "j1", Path.iterdir

    def removed_meanwhile(folder: Path) -> Iterator[Path]:
        entries = [*listing(root)]
        job.rmdir()
        return iter(entries) if folder == root else listing(folder)

    monkeypatch.setattr(Path, "iterdir", removed_meanwhile)
    job.mkdir(parents=True)
    assert JobFolder(job).attempts() == []
    job.mkdir()
    assert strange_entries(root) == []

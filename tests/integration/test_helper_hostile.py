"""Learners whose files stores refuse, or that plant links: the end comes, and nothing else is touched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.learner import LearnerStatus
from services.core.domain.plan import Input
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.checkpoints import restore
from services.helper.fetch.progress import FetchProgress
from services.helper.objects import UrlSigner
from tests.documents import a_learner, a_plan, an_assignment
from tests.testbed.intake import Intake
from tests.testbed.learner import TENANT, Learner
from tests.testbed.server import free_address

JOB = "j0"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's learners have users of their own")


class HostileLearner(Learner):
    """With a test server, and a folder that the operator allows as data."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(job=JOB, metrics=intake.address)
        self.intake = intake
        self.shared = self.home / "allowed"
        self.shared.mkdir()
        (self.shared / "canary").write_text("the operator's")
        self._environment = {"WEFT_DATA_PATHS": str(self.shared)}

    def data(self, mount: str) -> Input:
        return Input(mount=mount, type="local", location=str(self.shared), path="")

    async def run_to_end(self) -> LearnerStatus:
        self.start()
        await self.until_stored()
        assert self.intake.last is not None
        return self.intake.last

    def check_canary(self) -> None:
        assert [path.name for path in self.shared.iterdir()] == ["canary"]
        assert (self.shared / "canary").read_text() == "the operator's"

    def remove(self) -> None:
        self.end()
        # Trees that are too deep for Python's own removal.
        subprocess.run(["rm", "-r", str(self.home.root)], check=True)


@pytest.fixture
async def learner() -> AsyncGenerator[HostileLearner]:
    intake = Intake(free_address())
    await intake.start()
    made = HostileLearner(intake)
    yield made
    made.remove()
    await intake.stop()


# --- the end always comes ---------------------------------------------------------------------------------------------


async def test_file_name_that_is_no_utf8_does_not_keep_a_job_in_storing(learner: HostileLearner) -> None:
    learner.reserve(
        "for folder in $RESULT_DIR $CHECKPOINT_DIR $LOG_DIR; do printf x > $folder/$(printf 'caf\\351'); done;"
        " ln -s nowhere $RESULT_DIR/$(printf 'l\\377nk')"
    )
    last = await learner.run_to_end()
    assert learner.objects("results") == {"worker-0/caf\\xe9": b"x"}
    assert learner.objects("logs")["learner-1/caf\\xe9"] == b"x"
    assert learner.checkpoint() == {"caf\\xe9": b"x"}
    assert last.message == "one file was left out, the first is l\\xffnk: it is a link"
    assert json.loads((learner.folder / "stored").read_text())["message"] == last.message


async def test_three_thousand_nested_folders_do_not_keep_a_job_in_storing(learner: HostileLearner) -> None:
    program = 'import os\\nfor _ in range(3000): os.mkdir("d"); os.chdir("d")'
    learner.reserve(f"""cd $RESULT_DIR; echo fine > fine; printf '{program}' | /usr/bin/env python3""")
    last = await learner.run_to_end()
    assert last.exit is not None
    assert last.exit.code == 0, learner.intake.text("stderr")
    assert learner.objects("results") == {"worker-0/fine": b"fine\n"}
    assert "more than 64 folders inside one another" in last.message


async def test_metric_named_with_nul_does_not_keep_a_job_in_storing(learner: HostileLearner) -> None:
    report = json.dumps({"step": 1, "values": {"lo\0ss": 1}, "context": {"a\0": "b\0", "c": "\ud800"}})
    learner.reserve(f"echo '{report}' > $JOB_STATE_DIR/metrics.jsonl; printf 'a\\0b\\n'")
    last = await learner.run_to_end()
    ((_, point),) = learner.intake.points
    assert (point.name, dict(point.context)) == ("lo\\x00ss", {"a\\x00": "b\\x00", "c": "\\ud800"})
    assert learner.intake.text() == ["a\\x00b"]
    assert (last.phase, last.message) == ("STORED", "")


@as_root
async def test_file_of_another_user_does_not_keep_a_job_in_storing(learner: HostileLearner) -> None:
    learner.reserve("echo fine > $RESULT_DIR/fine")
    other = learner.folder / "job" / "results" / "other"
    other.write_text("not the learner's")
    other.chmod(0o600)
    last = await learner.run_to_end()
    assert learner.objects("results") == {"worker-0/fine": b"fine\n"}
    assert last.message == "one file was left out, the first is other: it belongs to another user"


async def test_name_too_long_for_the_store_is_reported_and_the_rest_is_stored(learner: HostileLearner) -> None:
    folders = "/".join(["d" * 200] * 6)
    learner.reserve(f"cd $RESULT_DIR; echo fine > fine; mkdir -p {folders}; echo x > {folders}/x")
    last = await learner.run_to_end()
    assert learner.objects("results") == {"worker-0/fine": b"fine\n"}
    assert "one file could not be stored" in last.message
    assert "1 to 1024 bytes" in last.message


async def test_checkpoint_with_a_file_left_out_is_not_restored(learner: HostileLearner) -> None:
    learner.reserve("echo one > $CHECKPOINT_DIR/a; truncate -s 50G $CHECKPOINT_DIR/weights; ln -s a $CHECKPOINT_DIR/b")
    last = await learner.run_to_end()
    assert learner.checkpoint() == {"a": b"one\n"}, "people can fetch what there is"
    assert [(record.final, record.complete) for record in learner.snapshots()] == [(True, False)]
    assert "weights: it is mostly holes" in last.message
    assert "the checkpoint is incomplete and will not be restored" in last.message


async def test_link_in_a_checkpoint_does_not_make_it_incomplete(learner: HostileLearner) -> None:
    learner.reserve("echo one > $CHECKPOINT_DIR/a; ln -s a $CHECKPOINT_DIR/newest")
    await learner.run_to_end()
    assert learner.checkpoint() == {"a": b"one\n"}
    assert learner.snapshots()[-1].complete


# --- fetched files are made where the learner cannot write ------------------------------------------------------------


async def test_links_planted_in_a_learners_folder_are_not_followed_when_it_is_fetched_for(
    learner: HostileLearner,
) -> None:
    digest = learner.code(train_sh="cat $DATA_DIR/deep/d/canary")
    learner.reserve("sh train.sh", code_digest=digest, inputs=(learner.data("deep/d"),))
    target = learner.home / "outside"
    target.mkdir()
    (target / "kept").write_text("kept")
    job = learner.folder / "job"
    for name in ("data", "model-code", "checkpoints"):
        shutil.rmtree(job / name)
        (job / name).symlink_to(target)
    await learner.run_to_end()
    assert learner.intake.text() == ["the operator's"], learner.intake.text("stderr")
    assert [path.name for path in target.iterdir()] == ["kept"]
    learner.check_canary()


async def test_files_left_by_a_killed_helper_are_replaced_and_shared_data_is_not_deleted(
    learner: HostileLearner,
) -> None:
    learner.reserve("cat $DATA_DIR/d/canary; echo; ls $DATA_DIR", inputs=(learner.data("d"),))
    for place in (learner.folder / "job" / "data", learner.folder / "fetched" / "data"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "d").symlink_to(learner.shared)
        (place / "half").write_text("")
    await learner.run_to_end()
    assert learner.intake.text() == ["the operator's", "d"]
    learner.check_canary()


@pytest.mark.parametrize("mounts", [("a", "a/imagenet"), ("a/imagenet", "a"), ("a", "a")])
async def test_mounts_inside_one_another_do_not_delete_the_operators_data(
    learner: HostileLearner, mounts: tuple[str, str]
) -> None:
    learner.reserve("true", inputs=tuple(learner.data(mount) for mount in mounts))
    last = await learner.run_to_end()
    assert last.reason == "DataStoreDenied"
    assert "is inside another input's" in last.message
    learner.check_canary()


@as_root
async def test_learner_cannot_enter_the_folder_where_its_files_are_fetched(learner: HostileLearner) -> None:
    digest = learner.code(train_sh="touch own; touch $DATA_DIR/x; ls $JOB_STATE_DIR/../fetched")
    learner.reserve("sh train.sh", code_digest=digest, inputs=(learner.data("d"),))
    await learner.run_to_end()
    assert (learner.folder / "fetched").stat().st_mode & 0o777 == 0o700
    assert (learner.folder / "job" / "model-code" / "own").exists()
    errors = learner.intake.text("stderr")
    assert len(errors) == 2, errors
    assert all("Permission denied" in error for error in errors)


# --- what was stored is what was written ------------------------------------------------------------------------------


def assignment_of(rank: int, objects: Path, ranks: int = 3) -> Assignment:
    learners = [a_learner(f"worker-{number}") for number in range(ranks)]
    plan = a_plan(*learners, job=JOB, tenant=TENANT, attempt=2, checkpoint_attempts=(1,))
    return an_assignment(plan, learner=learners[rank], objects=str(objects), cache=str(objects))


GANG = ["worker-0", "worker-1", "worker-2"]


def save_checkpoint(objects: Path, rank: int, files: dict[str, str]) -> None:
    base = objects / "tenants" / TENANT / "jobs" / JOB / "attempts" / "1" / "checkpoints"
    entries = []
    for path, content in files.items():
        file = base / f"worker-{rank}" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        digest = hashlib.sha256(content.encode()).hexdigest()
        entries.append({"path": path, "size": len(content), "sha256": digest})
    (base / f"worker-{rank}.manifest.json").write_text(json.dumps({"schema": 1, "files": entries, "time": 1}))


async def test_each_rank_restores_its_own_file_where_names_are_equal(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    FolderObjectStore.make(objects)
    for rank in (0, 1):
        save_checkpoint(objects, rank, {"optimizer.pt": f"rank {rank}", f"only-{rank}": "x"})
    restored = {}
    for rank in (0, 1, 2):
        target = tmp_path / f"checkpoints-{rank}"
        await asyncio.to_thread(restore, assignment_of(rank, objects), GANG, target, UrlSigner(), FetchProgress())
        assert sorted(path.name for path in target.iterdir()) == ["only-0", "only-1", "optimizer.pt"]
        restored[rank] = (target / "optimizer.pt").read_text()
    assert restored == {0: "rank 0", 1: "rank 1", 2: "rank 0"}


async def test_file_of_one_rank_and_folder_of_another_with_equal_names_are_restored(tmp_path: Path) -> None:
    FolderObjectStore.make(tmp_path / "objects")
    save_checkpoint(tmp_path / "objects", 0, {"state/model": "0", "weights": "0"})
    save_checkpoint(tmp_path / "objects", 1, {"state": "1", "weights/part": "1"})
    for rank, expected in ((0, {"state/model": "0", "weights": "0"}), (1, {"state": "1", "weights/part": "1"})):
        target = tmp_path / f"checkpoints-{rank}"
        assignment = assignment_of(rank, tmp_path / "objects")
        await asyncio.to_thread(restore, assignment, GANG, target, UrlSigner(), FetchProgress())
        files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
        assert files == expected

"""A learner that is started again: its results and logs replace those of its earlier run (docs/adr/0023)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.runtime.learner_folder import LearnerFolder
from services.helper.objects import UrlSigner
from services.helper.spool import Spool
from services.helper.store import store_outputs
from tests.documents import a_learner, a_plan, an_assignment

_ROOM = 10**9


class Runs:
    """Runs of one learner, each of which writes files of the same names and sizes, and the objects they leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stored = root / "objects" / "tenants/t/jobs/j/attempts/1"
        FolderObjectStore.make(root / "objects")

    def write(self, run: int) -> LearnerFolder:
        """The run has ended. Its content is its number."""
        folder = LearnerFolder(self.root / f"learner-{run}")
        for name in ("results", "logs"):
            (folder.root / "job" / name).mkdir(parents=True)
            (folder.root / "job" / name / "small").write_text(str(run))
            (folder.root / "job" / name / "zzz-large").write_text(str(run) * 1000)
        (folder.root / "runs" / "1").mkdir(parents=True)
        return folder

    async def store(self, run: int, *, report_waiting: Callable[[str], None] = lambda _: None) -> str:
        """A helper stores the files of the run. Returns what it could not store."""
        folder = LearnerFolder(self.root / f"learner-{run}")
        plan = a_plan(a_learner(run=run), store_timeout=60_000)
        return await store_outputs(
            folder,
            an_assignment(plan, objects=str(self.root / "objects"), objects_keep_free=1),
            Spool(folder.root / "spool"),
            signer=UrlSigner(),
            digests={},
            report_waiting=report_waiting,
            report_checkpoint=lambda _: None,
        )

    def files(self) -> dict[str, str]:
        """The first character of each object."""
        files = sorted(path for path in self.stored.rglob("*") if path.is_file())
        return {str(path.relative_to(self.stored)): path.read_text()[:1] for path in files}

    @staticmethod
    def of(run: int) -> dict[str, str]:
        places = ("logs/learner-1", "results/worker-0")
        return {f"{place}/{name}": str(run) for place in places for name in ("small", "zzz-large")}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


async def test_run_whose_helper_was_killed_while_it_stored_replaces_the_files_of_the_earlier_run(runs: Runs) -> None:
    for run in (1, 2):
        folder = runs.write(run)
        (folder.root / "spool").mkdir()
        (folder.root / "spool" / "storing").touch()
        assert await runs.store(run) == ""
        assert runs.files() == runs.of(run)


async def test_run_that_found_the_store_full_replaces_the_files_of_the_earlier_run_and_sends_them_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = _ROOM
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    monkeypatch.setattr("services.helper.store._FULL_PAUSE_FIRST_S", 0.01)
    runs.write(1)
    assert await runs.store(1) == ""
    runs.write(2)
    free = 100
    reasons: list[str] = []
    sent: list[os.stat_result] = []

    def make_room(reason: str) -> None:
        nonlocal free
        reasons.append(reason)
        if free != _ROOM:
            sent.append((runs.stored / "results/worker-0/small").stat())
            free = _ROOM

    assert await runs.store(2, report_waiting=make_room) == ""
    assert "NoSpace: 2 files" in reasons[0]
    assert runs.files() == runs.of(2)
    assert (runs.stored / "results/worker-0/small").stat().st_ino == sent[0].st_ino

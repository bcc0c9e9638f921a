"""A folder of objects on a server that does not answer for a while: helpers wait for it, and lose nothing."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.checkpoint import StoredCheckpoint
from services.core.runtime.learner_folder import Assignment, LearnerFolder
from services.helper.checkpoints import thread
from services.helper.learner_files import list_files
from services.helper.objects import FolderObjects, UrlSigner
from services.helper.spool import Spool
from services.helper.store import store_outputs
from tests.documents import a_learner, a_plan, an_assignment
from tests.waiting import until


class Store:
    """A store in a folder that comes back after three waits."""

    def __init__(self, root: Path) -> None:
        self.root = root / "objects"
        self.reasons: list[str] = []
        FolderObjectStore.make(self.root)
        self.objects = FolderObjects(self.root, 0, self.wait, deletable="t/")

    def leave(self) -> None:
        self.reasons.clear()
        self.root.rename(self.root.with_name("away"))

    def come_back(self) -> None:
        self.root.with_name("away").rename(self.root)

    async def wait(self, _: float, reason: str) -> None:
        self.reasons.append(reason)
        if len(self.reasons) == 3:
            self.come_back()


async def content() -> AsyncGenerator[bytes]:
    yield b"x" * 3_000_000


async def test_each_operation_waits_for_a_store_that_is_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.leave()
    await store.objects.put("t/k", content)
    assert len(store.reasons) == 3
    store.leave()
    assert await store.objects.size("t/k") == 3_000_000
    store.leave()
    assert b"".join([chunk async for chunk in store.objects.get("t/k")]) == b"x" * 3_000_000
    store.leave()
    await store.objects.delete("t/k")
    assert len(store.reasons) == 3
    assert await store.objects.size("t/k") is None


def learner(root: Path) -> tuple[LearnerFolder, Assignment, Spool]:
    """One that has ended, with a result and a checkpoint."""
    assignment = an_assignment(a_plan(a_learner(), store_timeout=60_000), objects=str(root / "objects"))
    folder = LearnerFolder(root / "learner")
    for name in ("results", "checkpoints", "logs"):
        (folder.root / "job" / name).mkdir(parents=True)
        (folder.root / "job" / name / "file").write_text(name)
    (folder.root / "runs" / "1").mkdir(parents=True)
    (folder.root / "runs" / "1" / "start.json").write_text('{"schema": 1, "time": 1}')
    return folder, assignment, Spool(root / "learner" / "spool")


async def test_store_that_is_away_at_the_end_of_a_learner_costs_no_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder, assignment, spool = learner(tmp_path)
    waits: list[str] = []

    def report(reason: str) -> None:
        waits.append(reason)
        if reason:
            store.come_back()

    store.leave()
    problems = await store_outputs(
        folder,
        assignment,
        spool,
        signer=UrlSigner(),
        digests={},
        report_waiting=report,
        report_checkpoint=lambda _: None,
    )
    assert problems == ""
    assert len(waits) == 2
    base = store.root / "tenants/t/jobs/j/attempts/1"
    assert (base / "results/worker-0/file").read_text() == "results"
    assert len(list((base / "checkpoints").rglob("*.json"))) == 2


async def test_disk_that_fails_for_a_moment_does_not_end_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path)
    folder, assignment, spool = learner(tmp_path)
    failures = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]

    def failing(*args: object) -> object:
        if failures:
            raise failures.pop()
        return list_files(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(thread, "list_files", failing)
    monkeypatch.setattr(thread, "_RETRY_FIRST_S", 0.01)
    monkeypatch.setenv("WEFT_CHECKPOINT_QUIET_S", "0.01")
    stored: list[StoredCheckpoint] = []
    checkpoints = thread.CheckpointThread(folder, assignment, spool, UrlSigner(), report=stored.append)
    try:
        await until(lambda: stored)
    finally:
        await checkpoints.stop()
    assert not failures

"""Checkpoints are stored while the learner trains: the real helper, its learner, and a folder as the object store."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.checkpoint import StoredCheckpoint
from services.core.runtime.learner_folder import Assignment
from services.helper.checkpoints.snapshots import SnapshotStore
from services.helper.fetch.checkpoints import restore
from services.helper.fetch.code import link_checkpoints
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.learner_files import LearnerFile, list_files
from services.helper.objects import FolderObjects, UrlSigner, own_checkpoints
from services.helper.spool import Spool
from services.helper.threads import call_in_thread
from tests.documents import a_learner, a_plan, an_assignment
from tests.promises import Promise
from tests.testbed.failpoints import FailpointFolder
from tests.testbed.intake import Intake
from tests.testbed.learner import Learner
from tests.testbed.server import free_address
from tests.testbed.signals import pause
from tests.waiting import until

JOB = "j0"
QUICK = {"WEFT_CHECKPOINT_QUIET_S": "0.1", "WEFT_CHECKPOINT_EVERY_S": "0.1"}
SAVE = "echo $n > $CHECKPOINT_DIR/new.tmp; mv $CHECKPOINT_DIR/new.tmp $CHECKPOINT_DIR/step-$n"
"""Saves the checkpoint ``step-$n`` whole or not at all."""
ROTATE = SAVE.replace(";", "; rm -f $CHECKPOINT_DIR/step-$((n-1));")
"""The same, without the one before. That is removed first: the helper may see the folder in between, and must find
nothing to store there that the test does not expect.
"""
AWAIT = "until test -e $JOB_STATE_DIR/next; do read -t 0.05 _ <> $HOME/never; done; rm $JOB_STATE_DIR/next"
"""Waits until the test lets the training go on."""
PREPARE = "mkfifo $HOME/never"


class Training(Learner):
    """A learner that the test leads from checkpoint to checkpoint."""

    def __init__(self, intake: Intake, environment: dict[str, str]) -> None:
        super().__init__(job=JOB, metrics=intake.address, environment=QUICK | environment)
        self.intake = intake

    def store_after(self, quiet_s: float) -> None:
        """An entry counts as saved once nothing of it has changed for so long."""
        self._environment = {**self._environment, "WEFT_CHECKPOINT_QUIET_S": str(quiet_s)}

    def train(self, *steps: str, attempt: int = 1, keep: int = 3) -> None:
        """Starts ``n=1; step; wait; n=2; step; wait; ...``."""
        script = "; ".join(f"n={number}; {step}; {AWAIT}" for number, step in enumerate(steps, 1))
        attempts = tuple(range(attempt - 1, 0, -1))
        self.reserve(
            f"bash -c '{PREPARE}; {script}'", attempt=attempt, checkpoint_keep=keep, checkpoint_attempts=attempts
        )
        self.start()

    def go_on(self) -> None:
        (self.folder / "job" / "next").touch()

    async def until_restorable(self, *names: str, attempt: int = 1) -> None:
        """Waits until the newest snapshot of the attempt has these files."""
        await until(lambda: self._restorable(attempt) == sorted(names))

    def _restorable(self, attempt: int) -> list[str] | None:
        try:
            return sorted(self.checkpoint(attempt=attempt))
        except (FileNotFoundError, KeyError):  # a snapshot was replaced while it was read
            return None

    @contextmanager
    def stopped_helper(self) -> Generator[None]:
        """Within it the helper does nothing."""
        assert self.helper is not None
        pause(self.helper.pid)
        try:
            yield
        finally:
            self.helper.send_signal(signal.SIGCONT)

    async def lose_machine(self) -> None:
        """Ends helper and learner at once: nothing is stored any more."""
        self.kill_helper()
        self.stop("kill", 0)
        await until((self.folder / "runs" / "1" / "exit.json").exists)
        self.end()

    async def end_all(self) -> None:
        if self.shim is not None and self.shim.poll() is None:
            await self.lose_machine()
        self.remove()

    def contents(self) -> list[Path]:
        """The stored files' contents: a snapshot that the helper takes between two writes adds only a manifest."""
        return [path for path in self.store.rglob("checkpoints/worker-0/*") if path.suffix != ".json"]

    def is_killed(self) -> bool:
        assert self.helper is not None
        return self.helper.poll() == -signal.SIGKILL

    @property
    def reported(self) -> StoredCheckpoint | None:
        return self.intake.last.checkpoint if self.intake.last is not None else None


@pytest.fixture
async def intake() -> AsyncGenerator[Intake]:
    intake = Intake(free_address())
    await intake.start()
    yield intake
    await intake.stop()


@pytest.fixture
async def learner(intake: Intake) -> AsyncGenerator[Training]:
    made = Training(intake, {})
    yield made
    await made.end_all()


async def test_training_that_writes_to_a_fixed_path_has_its_checkpoints_stored_and_restored(learner: Training) -> None:
    for attempt in (1, 2):
        learner.reserve(
            f"bash -c '{PREPARE}; ls runs/best; echo 1 > runs/best/step-{attempt}; {AWAIT}'",
            attempt=attempt,
            checkpoint_path="runs/best",
            checkpoint_attempts=tuple(range(1, attempt)),
        )
        learner.start()
        await learner.until_restorable(*(f"step-{number}" for number in range(1, attempt + 1)), attempt=attempt)
        await learner.lose_machine()


async def test_a_checkpoint_path_that_the_code_contains_is_refused(tmp_path: Path) -> None:
    assignment = assignment_of(tmp_path, attempt=1)
    assignment = replace(assignment, plan=replace(assignment.plan, checkpoint_path="a/ckpt"))
    for contained in ("a/ckpt/old", "a"):
        model_dir = tmp_path / contained.replace("/", "-")
        file = model_dir / contained
        file.parent.mkdir(parents=True)
        file.touch()
        with pytest.raises(FetchFailed, match="the code has that itself") as refused:
            link_checkpoints(assignment, model_dir)
        assert refused.value.reason == "CodeInvalid"


async def test_checkpoint_is_stored_while_the_learner_trains_and_restored_after_its_machine_is_lost(
    learner: Training,
) -> None:
    learner.train(SAVE, SAVE)
    await learner.until_restorable("step-1")
    await until(lambda: learner.reported)
    assert learner.reported is not None
    assert (learner.reported.files, learner.reported.size) == (1, 2)
    learner.go_on()
    await learner.until_restorable("step-1", "step-2")
    assert [(record.final, record.complete) for record in learner.snapshots()] == [(False, True)] * 2
    await learner.lose_machine()
    learner.reserve("cat $CHECKPOINT_DIR/*", attempt=2, checkpoint_attempts=(1,))
    learner.start()
    await learner.until_stored()
    assert learner.intake.text() == ["1", "2"]


async def test_unchanged_files_are_sent_once(learner: Training) -> None:
    learner.train(f"echo same > $CHECKPOINT_DIR/base; {SAVE}", SAVE)
    await learner.until_restorable("base", "step-1")
    stored = {path: path.stat().st_ino for path in learner.contents()}
    assert len(stored) == 2
    learner.go_on()
    await learner.until_restorable("base", "step-1", "step-2")
    learner.go_on()
    await learner.until_stored()
    assert learner.snapshots()[-1].final
    assert {path: path.stat().st_ino for path in stored} == stored


async def test_only_the_newest_snapshots_are_kept(learner: Training) -> None:
    learner.train(ROTATE, ROTATE, ROTATE, ROTATE, keep=2)
    for number in range(1, 5):
        await learner.until_restorable(f"step-{number}")
        learner.go_on()
    await learner.until_stored()
    assert [record.seq for record in learner.snapshots()] == [4, 5]
    kept = learner.objects("checkpoints")
    assert sorted(content for key, content in kept.items() if not key.endswith(".json")) == [b"4\n"]
    assert sorted(key for key in kept if key.endswith(".json")) == [
        "worker-0.manifest.json",
        "worker-0/4.json",
        "worker-0/5.json",
    ]


async def test_half_written_checkpoint_is_never_restored(learner: Training) -> None:
    learner.store_after(5)  # so long the writing of a busy machine may pause, and is not over
    half = "(while test ! -e $JOB_STATE_DIR/next; do echo x >> $CHECKPOINT_DIR/step-2; done)"
    learner.train(SAVE, f"{half}; rm $JOB_STATE_DIR/next; echo noise > $CHECKPOINT_DIR/other; {AWAIT}")
    await learner.until_restorable("step-1")
    learner.go_on()
    await until(lambda: (learner.folder / "job" / "checkpoints" / "step-2").exists() or None)
    await learner.lose_machine()
    learner.reserve("ls $CHECKPOINT_DIR", attempt=2, checkpoint_attempts=(1,))
    learner.start()
    await learner.until_stored()
    assert learner.intake.text() == ["step-1"]


async def test_full_or_missing_store_neither_stops_training_nor_fails_it(learner: Training) -> None:
    learner.train(SAVE, SAVE)
    blocked = learner.store / "tenants"
    await learner.until_restorable("step-1")
    away = learner.home / "away"
    with learner.stopped_helper():  # it would make the folder anew while there is none
        blocked.rename(away)
        blocked.write_text("no folder")
    learner.go_on()
    await until(lambda: "checkpoint.failed" in learner.log or None)
    with learner.stopped_helper():
        blocked.unlink()
        away.rename(blocked)
    learner.go_on()
    await learner.until_stored()
    assert sorted(learner.checkpoint()) == ["step-1", "step-2"]
    assert learner.intake.last is not None
    assert (learner.intake.last.phase, learner.intake.last.message) == ("STORED", "")


# --- killed within a snapshot -----------------------------------------------------------------------------------------


class KilledError(BaseException):
    """The helper dies here."""


async def _never_waits(_: float, reason: str) -> None:
    raise AssertionError(reason)


class DyingObjects(FolderObjects):
    """Dies before or after its n-th call."""

    def __init__(self, root: Path, own: str, death: tuple[int, str] | None) -> None:
        super().__init__(root, 0, _never_waits, deletable=own)
        self._death = death
        self.calls = 0

    async def size(self, key: str) -> int | None:
        with self._call():
            return await super().size(key)

    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None:
        with self._call():
            await super().put(key, read, size)

    async def delete(self, key: str) -> None:
        with self._call():
            await super().delete(key)

    @contextmanager
    def _call(self) -> Generator[None]:
        self.calls += 1
        if self._death == (self.calls, "before"):
            raise KilledError
        yield
        if self._death == (self.calls, "after"):
            raise KilledError


class SavedTwice:
    """CHECKPOINT_DIR of a learner, which is stored twice and at its end; only the newest snapshot is kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "learner" / "job" / "checkpoints"
        self.folder.mkdir(parents=True)
        FolderObjectStore.make(root / "objects")
        self.assignment = assignment_of(root / "objects", attempt=1)
        self._spool = Spool(root / "spool")
        self._restored = 0

    async def snapshot(self, death: tuple[int, str] | None, *, final: bool) -> int:
        """One helper's snapshot. Returns how many calls it made."""
        objects = DyingObjects(self.root / "objects", f"{own_checkpoints(self.assignment)}/", death)
        store = SnapshotStore(
            objects, self.assignment, self.root / "learner", self._spool, learners=1, step=call_in_thread
        )
        await store.open()
        listing = list_files(self.root / "learner", ("job", "checkpoints"), os.geteuid())
        plain = [file for file in listing if isinstance(file, LearnerFile)]
        digests = [await store.digest(file) for file in plain]
        await store.expect(digests)
        saved = [await store.put(file, digest) for file, digest in zip(plain, digests, strict=True)]
        await store.commit(saved, time=1, final=final)
        await store.remove_unneeded()
        return objects.calls

    async def restored(self) -> dict[str, str]:
        """What the next attempt starts with."""
        self._restored += 1
        target = self.root / f"restored-{self._restored}"
        assignment = assignment_of(self.root / "objects", attempt=2)
        await asyncio.to_thread(restore, assignment, ["worker-0"], target, UrlSigner(), FetchProgress())
        return {path.name: path.read_text() for path in target.iterdir()} if target.exists() else {}

    def stored(self) -> list[str]:
        """The content of all objects that are no documents."""
        objects = [path for path in (self.root / "objects" / "tenants").rglob("*") if path.is_file()]
        return sorted(path.read_text() for path in objects if path.suffix != ".json")


def assignment_of(objects: Path, attempt: int) -> Assignment:
    earlier = tuple(range(attempt - 1, 0, -1))
    plan = a_plan(a_learner(), job=JOB, tenant="acme", attempt=attempt, checkpoint_attempts=earlier)
    return an_assignment(plan, objects=str(objects))


FIRST, SECOND, THIRD = ({"base": "same", f"step-{number}": str(number)} for number in (1, 2, 3))


def write(folder: Path, files: dict[str, str]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_text(content)


@pytest.mark.promise("R4")
async def test_helper_killed_at_any_step_of_a_snapshot_leaves_none_in_part(tmp_path: Path, promise: Promise) -> None:
    deaths = 0
    for number in count():
        ended = True
        for when in ("before", "after"):
            saved = SavedTwice(tmp_path / f"{number}-{when}")
            state: dict[str, str] = {}
            for files, final in ((FIRST, False), (SECOND, False), (SECOND, True)):
                write(saved.folder, files)
                try:
                    await saved.snapshot((number + 1, when), final=final)
                except KilledError:
                    ended = False
                    deaths += 1
                    assert await saved.restored() in (state, files), (number, when)
                    await saved.snapshot(None, final=final)
                state = files
                assert await saved.restored() == files
            assert saved.stored() == ["2", "same"], (number, when)
        if ended:
            break
    assert deaths > 20
    promise.kept(deaths, "helpers killed within a snapshot")


@pytest.mark.promise("R4")
async def test_two_helpers_killed_one_after_the_other_leave_nothing_that_no_snapshot_needs(
    tmp_path: Path, promise: Promise
) -> None:
    """What the first was about to remove stayed in the store if the second ended as it had written the index."""
    deaths = 0
    calls = 10
    for first, second in product(range(1, calls), repeat=2):
        saved = SavedTwice(tmp_path / f"{first}-{second}")
        write(saved.folder, FIRST)
        await saved.snapshot(None, final=False)
        for files, death in ((SECOND, first), (THIRD, second)):
            write(saved.folder, files)
            try:
                assert await saved.snapshot((death, "after"), final=False) < calls
            except KilledError:
                deaths += 1
        await saved.snapshot(None, final=True)
        assert await saved.restored() == THIRD
        assert saved.stored() == ["3", "same"], (first, second)
    assert deaths > 80
    promise.kept(deaths, "helpers killed within a snapshot")


async def test_spool_that_was_lost_costs_no_checkpoint(tmp_path: Path) -> None:
    saved = SavedTwice(tmp_path)
    write(saved.folder, FIRST)
    await saved.snapshot(None, final=False)
    (tmp_path / "spool" / "checkpoints.json").write_text("{")
    write(saved.folder, SECOND)
    await saved.snapshot(None, final=False)
    assert await saved.restored() == SECOND
    assert saved.stored() == ["2", "same"]


@pytest.mark.promise("R4")
async def test_killed_helper_is_followed_by_one_that_stores_the_next_checkpoints(
    tmp_path: Path, intake: Intake, promise: Promise
) -> None:
    failpoints = FailpointFolder(tmp_path / "failpoints")
    base = f"tenants/acme/jobs/{JOB}/attempts/1/checkpoints/worker-0"
    for when, call in (("done", f"put({base}/2.json)"), ("before", f"delete({base}/1.json)")):
        failpoints.arm(when, "kill", f"helper.objects.{call}")
        learner = Training(intake, failpoints.environment)
        try:
            learner.train(ROTATE, ROTATE, ROTATE, keep=1)
            await learner.until_restorable("step-1")
            learner.go_on()
            await until(learner.is_killed)
            learner.start_helper()
            await learner.until_restorable("step-2")
            learner.go_on()
            await learner.until_restorable("step-3")
            learner.go_on()
            await learner.until_stored()
            assert failpoints.fired
            kept = learner.objects("checkpoints")
            assert [content for key, content in kept.items() if not key.endswith(".json")] == [b"3\n"]
        finally:
            await learner.end_all()
        promise.kept(1, "helpers killed while they stored a checkpoint of a training")

"""The end of a learner in a pod as its helper sees it: the learner's code can write the record, too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from services.core.runtime import pod_layout
from services.core.runtime.learner_folder import RUN, STOP_FILE
from services.helper.pod import ENDED_S, KUBELET_S, PodLearner
from services.helper.pod_folder import PodFolder
from tests.waiting import HANG_S

EXIT = "runs/1/exit.json"


@pytest.fixture
def folder(tmp_path: Path) -> PodFolder:
    for name in ("runs/1", "control", "private"):
        (tmp_path / name).mkdir(parents=True)
    return PodFolder(tmp_path, "worker-0")


@pytest.fixture
async def learner(folder: PodFolder) -> AsyncGenerator[PodLearner]:
    yield PodLearner(folder, None)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


def record(folder: PodFolder, *, age_s: float = 0, **fields: Any) -> None:
    ended = round((time.time() - age_s) * 1000)
    document = {"schema": 1, "time": ended, "code": None, "signal": None, "stop_cause": "", "lost": False, "run": 1}
    (folder.root / EXIT).write_text(json.dumps({**document, **fields}))


@pytest.mark.parametrize(
    "content",
    ['{"schema": 1, "time": 1, "code": 0, "signal": 0, "stop_cause": "halt", "lost": true, "run": 1}', "{", "", "[]"],
    ids=["loss", "cut off", "empty", "list"],
)
def test_learner_that_forges_its_own_loss_is_not_tried_again_for_ever(folder: PodFolder, content: str) -> None:
    (folder.root / EXIT).write_text(content)
    assert folder.exit() is None


def test_learner_cannot_replace_its_record_by_a_link_or_a_folder(folder: PodFolder) -> None:
    (folder.root / EXIT).symlink_to("/etc/passwd")
    assert folder.exit() is None
    (folder.root / EXIT).unlink()
    (folder.root / EXIT).mkdir()
    assert folder.exit() is None


def test_only_a_stop_that_the_helper_has_passed_on_is_the_cause_of_an_end(folder: PodFolder) -> None:
    record(folder, code=7, stop_cause="halt")
    forged = folder.exit()
    assert forged is not None
    assert (forged.code, forged.stop_cause) == (7, "")
    folder.path(STOP_FILE).write_text(json.dumps({"schema": 1, "cause": "halt", "grace_ms": 0}))
    stopped = folder.exit()
    assert stopped is not None
    assert stopped.stop_cause == "halt"


async def test_command_that_the_kubelet_has_ended_is_not_reported_before_the_kubelet_can_say_why(
    folder: PodFolder, learner: PodLearner
) -> None:
    """Otherwise an evicted learner would count as one that ended by a signal."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        record(folder, signal=number, age_s=1 - KUBELET_S)  # it is held back for some seconds from now on
        assert learner.exit(RUN) is None
        record(folder, signal=number, age_s=KUBELET_S + 1)
        assert learner.exit(RUN) is not None
    os.kill(os.getpid(), signal.SIGTERM)  # the kubelet ends the helper after the learner's container
    await learner.wait_ended()
    assert learner.exit(RUN) is None
    record(folder, signal=signal.SIGKILL, age_s=ENDED_S + 1)
    assert learner.exit(RUN) is not None


async def test_code_by_which_a_command_answers_the_kubelet_is_not_reported_before_the_kubelet_can_say_why(
    folder: PodFolder, learner: PodLearner
) -> None:
    """Otherwise a learner whose pod is deleted could fail or complete its job by it."""
    (folder.root / "runs/1" / pod_layout.ENDING_FILE).touch()
    for code in (0, 1, 143):
        record(folder, code=code, age_s=1 - KUBELET_S)
        assert learner.exit(RUN) is None
        record(folder, code=code, age_s=KUBELET_S + 1)
        assert learner.exit(RUN) is not None


async def test_every_other_end_is_reported_at_once(folder: PodFolder, learner: PodLearner) -> None:
    for fields in ({"code": 0}, {"code": 143}, {"signal": 11}, {"signal": 9, "oom": True}):
        record(folder, **fields)
        assert learner.exit(RUN) is not None, fields
    folder.path(STOP_FILE).write_text(json.dumps({"schema": 1, "cause": "kill", "grace_ms": 0}))
    record(folder, signal=9, stop_cause="kill")
    assert learner.exit(RUN) is not None


async def test_learner_whose_container_has_ended_without_a_record_is_lost(learner: PodLearner) -> None:
    assert learner.exit(RUN) is None
    os.kill(os.getpid(), signal.SIGTERM)
    await learner.wait_ended()
    end = learner.exit(RUN)
    assert end is not None
    assert end.lost


async def test_last_lines_of_a_learner_that_the_kubelet_has_ended_are_sent_while_its_record_is_held_back(
    folder: PodFolder, learner: PodLearner
) -> None:
    """The helper looked at the record again and again, without a pause in which it could do anything else."""
    record(folder, signal=signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    await learner.wait_ended()
    others = asyncio.create_task(asyncio.sleep(0))
    looks = 0
    with learner:
        while not others.done() and looks < 1000:
            looks += 1
            assert learner.exit(RUN) is None
            await learner.pause(quick=False)
    assert others.done()


async def test_helper_sees_the_end_of_its_learner_at_once_and_looks_seldom_before(
    folder: PodFolder, learner: PodLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.helper.pod.WATCHED_S", HANG_S)
    with learner:
        await learner.pause(quick=False)  # from now on the kernel wakes it
        looking = asyncio.create_task(learner.pause(quick=False))
        assert not (await asyncio.wait({looking}, timeout=0.3))[0]
        (folder.root / "runs/1/exit.reserved").write_text("{}")
        await looking
        looking = asyncio.create_task(learner.pause(quick=False))
        (folder.root / "runs/1/exit.reserved").rename(folder.root / EXIT)
        await looking


async def test_record_that_is_held_back_is_looked_at_again_soon(
    folder: PodFolder, learner: PodLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.helper.pod.WATCHED_S", 10 * HANG_S)
    with learner:
        await learner.pause(quick=False)
        record(folder, signal=signal.SIGKILL)
        async with asyncio.timeout(HANG_S):
            await learner.pause(quick=False)
            assert learner.exit(RUN) is None
            await learner.pause(quick=False)


async def test_helper_goes_on_after_its_learner_has_removed_the_folder_of_the_run(
    folder: PodFolder, learner: PodLearner
) -> None:
    with learner:
        await learner.pause(quick=False)
        (folder.root / "runs/1").rmdir()
        await learner.pause(quick=False)


async def test_helper_wakes_the_entry_process_and_never_waits_for_it(folder: PodFolder, learner: PodLearner) -> None:
    """The learner can open the pipe, too, and read from it or not."""
    pipe = folder.path(pod_layout.WAKE_FILE)
    learner.notify()  # there is no pipe
    os.mkfifo(pipe)
    learner.notify()  # nobody reads
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        learner.notify()
        assert os.read(reader, 100) == b"\n"
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(writer, bytes(4096)):
                pass
        os.close(writer)
        learner.notify()  # it is full
    finally:
        os.close(reader)

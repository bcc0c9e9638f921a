"""A helper that is killed at its own side effects while it fetches and stores: the next one continues.

It fetches data of every kind, code and an earlier attempt's checkpoint; lines, results, checkpoints and their manifest
are stored whole, each once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest

from services.core.domain.plan import Input
from tests.promises import Promise
from tests.testbed.failpoints import FailpointFolder, ways
from tests.testbed.intake import Intake
from tests.testbed.learner import TENANT, Learner
from tests.testbed.scripted_http import Answer, Request, scripted
from tests.testbed.server import free_address
from tests.waiting import until

JOB = "j0"
CHUNK = 2**20
REMOTE = bytes(range(256)) * (3 * CHUNK // 256)
COMMAND = (
    'sh say.sh; cat "$DATA_DIR/here/part" "$DATA_DIR/there/part" > "$RESULT_DIR/sum"; mkdir "$CHECKPOINT_DIR/new";'
    ' cp "$CHECKPOINT_DIR/step" "$CHECKPOINT_DIR/new/step"; echo more > "$LOG_DIR/own.log"'
)
_SEED = os.environ.get("WEFT_SEED", "4")
_TRIES = 20
_END_S = 120.0


class Fed(Learner):
    """A learner of attempt 2 with every kind of input."""

    def __init__(self, intake: Intake, failpoints: FailpointFolder, url: str) -> None:
        super().__init__(job=JOB, metrics=intake.address)
        allowed = self.home / "allowed"
        self._environment = {
            **failpoints.environment,
            "WEFT_HOME": str(self.home.root),
            "WEFT_DATA_PATHS": str(allowed),
            "WEFT_HTTP_ALLOW": "127.0.0.1",
        }
        self.intake = intake
        self.left_to_agent = False
        """A helper was killed after it wrote ``stored`` and before it reported it: the agent reports it."""
        allowed.mkdir()
        (allowed / "part").write_bytes(b"local")
        saved = self.store / "tenants" / TENANT / "jobs" / JOB / "attempts" / "1" / "checkpoints"
        (saved / "worker-0").mkdir(parents=True)
        (saved / "worker-0" / "step").write_bytes(b"1")
        (saved / "worker-0.manifest.json").write_text(json.dumps({"schema": 1, "files": [entry("step")], "time": 1}))
        inputs = (
            Input(mount="here", type="local", location=str(allowed), path=""),
            Input(mount="there", type="http", location=url, path=""),
        )
        code = self.code(say_sh="echo out; echo err >&2")
        self.reserve(COMMAND, attempt=2, code_digest=code, inputs=inputs, checkpoint_attempts=(1,))

    async def run_to_end(self) -> int:
        """Starts killed helpers again until the learner is stored. Returns how many were killed."""
        self.start()
        kills = 0
        while (code := await until(self._code, _END_S)) == -signal.SIGKILL:
            kills += 1
            self.left_to_agent = (self.folder / "stored").exists()
            self.start_helper()
        assert code == "well", self.log
        return kills

    def _code(self) -> int | str | None:
        """The helper's exit code, ``well`` for 0; None while it runs."""
        assert self.helper is not None
        return self.helper.poll() or ("well" if self.helper.returncode == 0 else None)

    def check_stored(self) -> None:
        """Everything is stored, whole and once."""
        assert self.intake.text() == ["out"]
        assert self.intake.text("stderr") == ["err"]
        stored = json.loads((self.folder / "stored").read_text())
        assert (stored["phase"], stored["reason"], stored["message"]) == ("STORED", "", "")
        assert self.intake.phases[-1] == "STORED" or self.left_to_agent
        assert self.intake.last is not None
        assert (self.intake.last.reason, self.intake.last.message) == ("", "")
        assert self.objects("results", attempt=2) == {"worker-0/sum": b"local" + REMOTE}
        assert self.checkpoint(attempt=2) == {"new/step": b"1", "step": b"1"}
        assert self.snapshots(attempt=2)[-1].final
        kept = self.objects("checkpoints", attempt=2)
        assert [key for key in kept if not key.endswith(".json")] == [f"worker-0/{entry('')['sha256']}"], "once"
        logs = self.objects("logs", attempt=2)
        assert sorted(logs) == [f"learner-1/{name}" for name in ("own.log", "stderr.1", "stdout.1", "training-log.txt")]
        assert sorted(logs["learner-1/training-log.txt"].split()) == [b"err", b"out"]


def entry(path: str) -> dict[str, object]:
    """A manifest's entry."""
    return {"path": path, "size": 1, "sha256": hashlib.sha256(b"1").hexdigest()}


@asynccontextmanager
async def fed(failpoints: FailpointFolder, answer: Callable[[Request, int], Answer]) -> AsyncGenerator[Fed]:
    intake = Intake(free_address())
    await intake.start()
    with scripted(answer) as site:
        learner = Fed(intake, failpoints, f"{site.url}/part")
        try:
            yield learner
        finally:
            learner.remove()
            await intake.stop()


def whole_file(request: Request, before: int) -> Answer:
    return Answer(200, REMOTE, {"ETag": '"1"'})


@pytest.mark.promise("R4", "R11")
async def test_helper_killed_at_any_side_effect_is_continued_by_the_next(tmp_path: Path, promise: Promise) -> None:
    failpoints = FailpointFolder(tmp_path / "failpoints")
    recorded: list[list[str]] = []
    for _ in range(2):
        async with fed(failpoints, whole_file) as learner:
            assert await learner.run_to_end() == 0
            learner.check_stored()
            recorded.append(failpoints.passed())
    points = [point for point in recorded[0] if point in recorded[1]]
    faults = chosen(points, promise.n(short=5, long=10**9))
    for when, point in faults:
        await kill_at(failpoints, when, point)
    promise.saw(f"helper with data, code and a checkpoint: {len(points)} points, killed {len(faults)} times")
    promise.kept(len(faults), "helpers killed at a side effect")


def chosen(points: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
    """(when, point): all, or at most ``most`` of them, chosen by the seed."""
    every = [(when, point) for point in points for when in ways(point)]
    return sorted(every, key=lambda fault: hashlib.sha256(" ".join([_SEED, *fault]).encode()).digest())[:most]


async def kill_at(failpoints: FailpointFolder, when: str, point: str) -> None:
    """Runs learners until a helper was killed at the point."""
    failpoints.arm(when, "kill", point)
    try:
        for _ in range(_TRIES):
            async with fed(failpoints, whole_file) as learner:
                kills = await learner.run_to_end()
                learner.check_stored()
            assert kills == failpoints.fired
            if kills:
                return
    except AssertionError as error:
        raise AssertionError(f"killed {when} {point}: {error}") from error
    raise AssertionError(f"{point} was recorded, and never passed again in {_TRIES} lives")


async def test_download_of_a_killed_helper_is_resumed_by_the_next(
    tmp_path: Path,
) -> None:
    stuck, killed = Event(), Event()

    def answer(request: Request, before: int) -> Answer:
        if before == 0:
            return Answer(200, REMOTE, {"ETag": '"1"'}, cut_after=2 * CHUNK)
        if before == 1:  # the helper's own second try, which gets no answer
            stuck.set()
            killed.wait(_END_S)
        start = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
        assert start == 2 * CHUNK
        return Answer(206, REMOTE[start:], {"ETag": '"1"', "Content-Range": f"bytes {start}-{len(REMOTE) - 1}/*"})

    async with fed(FailpointFolder(tmp_path / "failpoints"), answer) as learner:
        learner.start()
        await until(stuck.is_set, _END_S)
        learner.kill_helper()
        killed.set()
        learner.start_helper()
        await learner.until_stored()
        learner.check_stored()

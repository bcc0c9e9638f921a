"""A helper in a pod is killed at each of its side effects: the kubelet starts it again, and nothing is missing.

The real helper and the real entry process, whose volumes are folders. The helper fetches code, data and an earlier
attempt's checkpoint, waits for its gang, ships lines and points while the command runs, and stores results, logs and
the checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.plan import Input
from services.core.runtime import pod_layout as layout
from services.core.runtime.learner_folder import STORED_FILE
from tests.promises import Promise
from tests.testbed.failpoints import FailpointFolder, ways
from tests.testbed.intake import Intake
from tests.testbed.pod import LEARNER, TENANT, Pod
from tests.testbed.scripted_http import Answer, Request, scripted
from tests.testbed.server import free_address
from tests.waiting import until

_COMMAND: Final = (
    'sh say.sh; cat "$DATA_DIR/there/part" > "$RESULT_DIR/sum"; mkdir "$CHECKPOINT_DIR/new";'
    ' cp "$CHECKPOINT_DIR/step" "$CHECKPOINT_DIR/new/step"; echo more > "$LOG_DIR/own.log"; exit 3'
)
_SAY: Final = """\
echo out
echo err >&2
echo '{"time_ms":1790000000000,"step":1,"values":{"loss":0.5},"context":{}}' >> "$JOB_STATE_DIR/metrics.jsonl"
"""
_REMOTE: Final = bytes(range(256)) * 4096
_SEED: Final = os.environ.get("WEFT_SEED", "4")
_TRIES: Final = 20
_JOB: Final = "pod"
_ATTEMPTS: Final = f"tenants/{TENANT}/jobs/{_JOB}/attempts"


class Fed:
    """A learner of attempt 2 in a pod, with every kind of input that pods have."""

    def __init__(self, intake: Intake, failpoints: FailpointFolder, url: str) -> None:
        self.intake = intake
        self.pod = Pod(job=_JOB, metrics=intake.address)
        self.pod.environment |= failpoints.environment
        self.pod.environment |= {"WEFT_HOME": str(self.pod.root), "WEFT_HTTP_ALLOW": "127.0.0.1"}
        self._url = url
        assert intake.objects is not None
        self._store = intake.objects

    async def run_to_end(self) -> int:
        """Starts killed helpers again while the learner's container runs, as a kubelet does. Returns their number."""
        await self._put_objects()
        inputs = (Input(mount="there", type="http", location=self._url, path=""),)
        code = f"sha256:{hashlib.sha256(_archive()).hexdigest()}"
        self.pod.plan(_COMMAND, attempt=2, code_digest=code, inputs=inputs, checkpoint_attempts=(1,))
        self.pod.start()
        kills = 0
        while await until(self._ended) == "helper":
            kills += 1
            self.pod.start_helper()
        assert self.pod.entry is not None
        assert self.pod.entry.returncode == 3, self.pod.log
        # From here on a kubelet does not start it again. One that has just been started again has no handler yet.
        code_of_helper = await self.pod.end_helper()
        assert code_of_helper in {0, -signal.SIGKILL, -signal.SIGTERM}, self.pod.log
        return kills + (code_of_helper == -signal.SIGKILL)

    def _ended(self) -> str:
        """``entry``, ``helper`` if it was killed before, or nothing."""
        assert self.pod.entry is not None
        assert self.pod.helper is not None
        if self.pod.entry.poll() is not None:
            return "entry"
        code = self.pod.helper.poll()
        assert code in {None, -signal.SIGKILL}, self.pod.log
        return "" if code is None else "helper"

    async def _put_objects(self) -> None:
        digest = hashlib.sha256(b"1").hexdigest()
        entry = {"path": "step", "size": 1, "sha256": digest}
        manifest = json.dumps({"schema": 1, "files": [entry], "time": 1}).encode()
        await self._put(f"tenants/{TENANT}/code/{hashlib.sha256(_archive()).hexdigest()}", _archive())
        await self._put(f"{_ATTEMPTS}/1/checkpoints/{LEARNER}/step", b"1")
        await self._put(f"{_ATTEMPTS}/1/checkpoints/{LEARNER}.manifest.json", manifest)

    async def _put(self, key: str, content: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        await self._store.put(key, chunks())

    async def check_stored(self) -> None:
        """Everything is stored, whole and once."""
        assert self.intake.text() == ["out"]
        assert self.intake.text("stderr") == ["err"]
        assert self.intake.values("loss") == [(1, 0.5)]
        stored = json.loads((self.pod.root / Path(layout.CONTROL).name / STORED_FILE).read_text())
        assert (stored["phase"], stored["reason"], stored["message"]) == ("STORED", "", "")
        assert await self._objects("results") == {f"{LEARNER}/sum": _REMOTE}
        logs = await self._objects("logs")
        assert sorted(logs) == [f"learner-1/{name}" for name in ("own.log", "stderr.1", "stdout.1", "training-log.txt")]
        assert sorted(logs["learner-1/training-log.txt"].split()) == [b"err", b"out"]
        kept = [key for key in await self._objects("checkpoints") if not key.endswith(".json")]
        assert kept == [f"{LEARNER}/{hashlib.sha256(b'1').hexdigest()}"], "once"

    async def _objects(self, kind: str) -> dict[str, bytes]:
        """Of attempt 2: key below its prefix -> content."""
        prefix = f"{_ATTEMPTS}/2/{kind}/"
        keys = [meta.key for meta in await self._store.list(prefix)]
        return {key.removeprefix(prefix): b"".join([chunk async for chunk in self._store.get(key)]) for key in keys}


def _archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(zipfile.ZipInfo("say.sh"), _SAY)
    return out.getvalue()


def _whole_file(request: Request, before: int) -> Answer:
    return Answer(200, _REMOTE, {"ETag": '"1"'})


@asynccontextmanager
async def _fed(failpoints: FailpointFolder, objects: Path) -> AsyncGenerator[Fed]:
    shutil.rmtree(objects, ignore_errors=True)
    intake = Intake(free_address())
    intake.objects = FolderObjectStore.make(objects)
    await intake.start()
    with scripted(_whole_file) as site:
        learner = Fed(intake, failpoints, f"{site.url}/part")
        try:
            yield learner
        finally:
            learner.pod.end()
            shutil.rmtree(learner.pod.root)
            await intake.stop()


@pytest.mark.promise("R4", "R11")
async def test_results_are_complete_although_the_helper_is_killed_at_any_of_its_side_effects(
    tmp_path: Path, promise: Promise
) -> None:
    failpoints = FailpointFolder(tmp_path / "failpoints")
    recorded: list[list[str]] = []
    for _ in range(2):
        async with _fed(failpoints, tmp_path / "objects") as learner:
            assert await learner.run_to_end() == 0
            await learner.check_stored()
            recorded.append(failpoints.passed())
    points = [point for point in recorded[0] if point in recorded[1]]
    faults = _chosen(points, promise.n(short=4, long=10**9))
    for when, point in faults:
        await _kill_at(failpoints, tmp_path / "objects", when, point)
    promise.saw(f"helper in a pod: {len(points)} points, killed {len(faults)} times")
    promise.kept(len(faults), "helpers in pods killed at a side effect")


def _chosen(points: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
    """(when, point): all, or at most ``most`` of them, chosen by the seed."""
    every = [(when, point) for point in points for when in ways(point)]
    return sorted(every, key=lambda fault: hashlib.sha256(" ".join([_SEED, *fault]).encode()).digest())[:most]


async def _kill_at(failpoints: FailpointFolder, objects: Path, when: str, point: str) -> None:
    """Runs learners until a helper was killed at the point."""
    failpoints.arm(when, "kill", point)
    try:
        for _ in range(_TRIES):
            async with _fed(failpoints, objects) as learner:
                kills = await learner.run_to_end()
                await learner.check_stored()
            assert kills == failpoints.fired
            if kills:
                return
    except AssertionError as error:
        raise AssertionError(f"killed {when} {point}: {error}") from error
    raise AssertionError(f"{point} was recorded, and never passed again in {_TRIES} lives")

"""Whole lives of jobs with data stores on the running platform, watched from outside: SDK, etcd, processes, folders.

Each stage waits until it was seen (or until ``hurry`` says that something has happened): so every life passes the same
points, on a slow machine too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain import errors
from tests.testbed.platform import Platform, platform
from tests.testbed.scripted_http import Params, Say, scripted
from tests.waiting import HANG_S
from weft import Client, ConnectionFailed, Unavailable
from weft._job import Job

T = TypeVar("T")
LEARNERS = 2
STAGES = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
_COMMAND = (
    'cat "$DATA_DIR/here/part" "$DATA_DIR/there/part" > "$RESULT_DIR/sum"; echo $WEFT_RANK > "$CHECKPOINT_DIR/rank"; '
    'echo one; echo two >&2; until [ -e "$JOB_STATE_DIR/go-on" ]; do sleep 0.02; done; echo three'
)
_WHOLE = "local\nremote\n"
_GROUPS = Path("/sys/fs/cgroup")
_REST_S = 180.0
_LOOK_S = 0.02


class Lives:
    """``live`` as often as wanted, one job after the other."""

    def __init__(self, weft: Platform, client: Client, url: str, data: Path, gate: threading.Event) -> None:
        self.weft, self._client, self._url, self._data, self._gate = weft, client, url, data, gate
        self.gone_s = 0.0
        """Seconds for which anything of a job is left after its end, at most. Promised: 30, on an idle machine (R5)."""
        self._number = 0

    def live(self, folder: Path, *, hurry: Callable[[], bool] = lambda: False, may_be_lost: bool = False) -> None:
        """A job from submission to rest. AssertionError where it is not as its owner wants, or anything is left.

        ``may_be_lost``: a learner may be; then it ends so in a second attempt.
        """
        self._number += 1
        self._gate.clear()
        name = f"life-{self._number}"
        key = uuid.uuid4().hex
        job = answered(lambda: self._client.jobs.submit(self._spec(name), idempotency_key=key))
        self._lead(job, hurry)
        assert [one.id for one in answered(lambda: list(self._client.jobs.list(name=name)))] == [job.id]
        answered(lambda: self._judge(job, folder, may_be_lost=may_be_lost))
        began = time.monotonic()
        while left := self.left_of(job.id):
            assert time.monotonic() - began < HANG_S, f"left behind by {job.id}: {left}"
            time.sleep(_LOOK_S)
        self.gone_s = max(self.gone_s, time.monotonic() - began)

    def _spec(self, name: str) -> dict[str, object]:
        return {
            "name": name,
            "command": _COMMAND,
            "learners": LEARNERS,
            "resources": {"cpus": 0.5, "memory": "64MiB"},
            "data_stores": [
                {"id": "here", "type": "local", "path": str(self._data)},
                {"id": "there", "type": "http", "url": f"{self._url}/{name}/part"},
            ],
            "inputs": [{"store": "here"}, {"store": "there"}],
        }

    def _lead(self, job: Job, hurry: Callable[[], bool]) -> None:
        """To its rest; the data comes once it was seen DOWNLOADING, the end once it was seen PROCESSING."""
        deadline = time.monotonic() + _REST_S
        while not answered(job.refresh).at_rest:
            assert time.monotonic() < deadline, f"{job.id} is still {job.status} after {_REST_S} s: {job.message}"
            if job.status == "DOWNLOADING" or hurry():
                self._gate.set()
            if job.status == "PROCESSING" or hurry():
                with suppress(FileNotFoundError):  # torn down meanwhile; looked for again, if anything is left
                    for folder in (self.weft.home.root / "node" / job.id).glob("[0-9]*/*/job"):
                        (folder / "go-on").touch()
            time.sleep(_LOOK_S)

    def _judge(self, job: Job, folder: Path, *, may_be_lost: bool) -> None:
        assert job.status == "COMPLETED", (job.status, job.reason, job.message)
        assert job.attempt in ({1, 2} if may_be_lost else {1}), job.explain()
        lost = [] if job.attempt == 1 else STAGES[:5]
        assert [event.to for event in job.history()] == [*lost, *STAGES]
        job.download(folder / job.id)
        found = {path.name: path.read_text() for path in (folder / job.id).rglob("*") if path.is_file()}
        results = [path.read_text() for path in (folder / job.id).rglob("sum")]
        assert results == [_WHOLE] * LEARNERS, found
        if job.attempt == 1:
            lines = sorted((line.rank, line.stream, line.text) for line in job.logs())
            each = [("stderr", "two"), ("stdout", "one"), ("stdout", "three")]
            assert lines == [(rank, *line) for rank in range(LEARNERS) for line in each]

    def left_of(self, job_id: str) -> list[str]:
        """What there still is of a job that is over: processes, control groups, folders, keys in etcd."""
        return [
            *(f"process {pid}" for pid in self.weft.processes_of(job_id)),
            # A walk and not a glob, which fails where a group goes while it is looked at.
            *(f"group {at}/{name}" for at, names, _ in os.walk(_GROUPS) for name in names if name.startswith(job_id)),
            *(str(path) for path in (self.weft.home.root / "node").glob(f"{job_id}*")),
            *asyncio.run(_keys(self.weft.home.address("etcd"), f"/jobs/{job_id}/")),
        ]


def answered(ask: Callable[[], T]) -> T:
    """Asked again while the api is away for longer than the SDK waits: on a machine as busy as that."""
    deadline = time.monotonic() + _REST_S
    while True:
        try:
            return ask()
        except (ConnectionFailed, Unavailable):
            if time.monotonic() > deadline:
                raise


async def _keys(etcd: str, prefix: str) -> list[str]:
    store = EtcdStatusStore(etcd)
    try:
        return [entry.key for entry in await store.list(prefix)]
    except errors.Unavailable as error:  # then nobody knows yet
        return [str(error)]
    finally:
        await store.close()


@contextmanager
def lives(environment: Mapping[str, str]) -> Generator[Lives]:
    """On a platform of its own."""
    data, gate = Path(tempfile.mkdtemp(prefix="weft-test-data-")), threading.Event()
    data.chmod(0o755)  # for learners' own users
    (data / "part").write_text("local\n")

    def answer(asked: Params, before: int) -> Say:
        assert gate.wait(_REST_S)
        return Say(200, b"remote\n", {"ETag": '"1"'})

    allowed = {"WEFT_DATA_PATHS": str(data), "WEFT_HTTP_ALLOW": "127.0.0.1", "WEFT_NODE_CPUS": "4"}
    try:
        with (
            scripted(answer) as server,
            platform({**environment, **allowed}) as weft,
            Client(weft.url, weft.key) as client,
        ):
            yield Lives(weft, client, server.url, data, gate)
    finally:
        shutil.rmtree(data)

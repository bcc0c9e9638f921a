"""Lives of jobs with data stores on the running platform, observed through SDK, etcd, processes and folders.

Each stage waits until it was observed, or until ``hurry`` is true, so that every life passes the same points on a slow
machine, too.
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
from services.core.runtime.address import Address
from tests.testbed.platform import Platform, platform
from tests.testbed.scripted_http import Answer, Request, scripted
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
_GONE_S = 30.0
"""Promise R5: nothing of a job is left so many seconds after its end."""


class Lives:
    """Call ``live`` for one job after the other."""

    def __init__(self, weft: Platform, client: Client, url: str, data: Path, data_served: threading.Event) -> None:
        self.weft, self._client, self._url, self._data, self._data_served = weft, client, url, data, data_served
        self.gone_s = 0.0
        """Seconds for which anything of a job is left after its end, at most. Promised: 30 (R5)."""
        self._number = 0

    def live(self, folder: Path, *, hurry: Callable[[], bool] = lambda: False, may_be_lost: bool = False) -> None:
        """Runs a job from submission to release. AssertionError if its result is wrong, or anything is left of it.

        ``may_be_lost``: a learner may be lost; then the job completes in a second attempt.
        """
        self._number += 1
        self._data_served.clear()
        name = f"life-{self._number}"
        key = uuid.uuid4().hex
        job = answered(lambda: self._client.jobs.submit(self._spec(name), idempotency_key=key))
        self._lead(job, hurry)
        assert [listed.id for listed in answered(lambda: list(self._client.jobs.list(name=name)))] == [job.id]
        answered(lambda: self._judge(job, folder, may_be_lost=may_be_lost))
        began = time.monotonic()
        while left := self.left_of(job.id):
            assert time.monotonic() - began < _GONE_S, f"left behind by {job.id}: {left}"
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
        """Waits for the release. Serves the data once it is DOWNLOADING, and ends the learners once PROCESSING."""
        deadline = time.monotonic() + _REST_S
        while not answered(job.refresh).at_rest:
            assert time.monotonic() < deadline, f"{job.id} is still {job.status} after {_REST_S} s: {job.message}"
            if job.status == "DOWNLOADING" or hurry():
                self._data_served.set()
            if job.status == "PROCESSING" or hurry():
                with suppress(FileNotFoundError):  # torn down in the meantime; leftovers are searched for later
                    for folder in (self.weft.home.root / "node" / job.id).glob("[0-9]*/*/job"):
                        (folder / "go-on").touch()
            time.sleep(_LOOK_S)

    def _judge(self, job: Job, folder: Path, *, may_be_lost: bool) -> None:
        assert job.status == "COMPLETED", (job.status, job.reason, job.message)
        assert job.attempt in ({1, 2} if may_be_lost else {1}), job.explain()
        lost = [] if job.attempt == 1 else STAGES[:5]
        assert [event.to for event in job.history()] == [*lost, *STAGES]
        job.download(folder / job.id)
        files = {path.name: path.read_text() for path in (folder / job.id).rglob("*") if path.is_file()}
        results = [path.read_text() for path in (folder / job.id).rglob("sum")]
        assert results == [_WHOLE] * LEARNERS, files
        if job.attempt == 1:
            lines = sorted((line.rank, line.stream, line.text) for line in job.logs())
            of_learner = [("stderr", "two"), ("stdout", "one"), ("stdout", "three")]
            assert lines == [(rank, *line) for rank in range(LEARNERS) for line in of_learner]

    def left_of(self, job_id: str) -> list[str]:
        """What is left of a released job: processes, control groups, folders, keys in etcd."""
        return [
            *(f"process {pid}" for pid in self.weft.processes_of(job_id)),
            # A walk and not a glob, which fails where a group goes while it is looked at.
            *(f"group {at}/{name}" for at, names, _ in os.walk(_GROUPS) for name in names if name.startswith(job_id)),
            *(str(path) for path in (self.weft.home.root / "node").glob(f"{job_id}*")),
            *asyncio.run(_keys(self.weft.home.address("etcd"), f"/jobs/{job_id}/")),
        ]


def answered(call: Callable[[], T]) -> T:
    """Calls again while the api is away for longer than the SDK waits, as on a busy machine."""
    deadline = time.monotonic() + _REST_S
    while True:
        try:
            return call()
        except (ConnectionFailed, Unavailable):
            if time.monotonic() > deadline:
                raise


async def _keys(etcd: Address, prefix: str) -> list[str]:
    store = EtcdStatusStore(etcd)
    try:
        return [entry.key for entry in await store.list(prefix)]
    except errors.Unavailable as error:  # unknown until it answers
        return [str(error)]
    finally:
        await store.close()


@contextmanager
def lives(environment: Mapping[str, str]) -> Generator[Lives]:
    """Lives on a platform of their own."""
    data, data_served = Path(tempfile.mkdtemp(prefix="weft-test-data-")), threading.Event()
    data.chmod(0o755)  # readable by the learners' users
    (data / "part").write_text("local\n")

    def answer(request: Request, before: int) -> Answer:
        assert data_served.wait(_REST_S)
        return Answer(200, b"remote\n", {"ETag": '"1"'})

    allowed = {"WEFT_DATA_PATHS": str(data), "WEFT_HTTP_ALLOW": "127.0.0.1", "WEFT_NODE_CPUS": "4"}
    try:
        with (
            scripted(answer) as server,
            platform({**environment, **allowed}) as weft,
            Client(weft.url, weft.key) as client,
        ):
            yield Lives(weft, client, server.url, data, data_served)
    finally:
        shutil.rmtree(data)

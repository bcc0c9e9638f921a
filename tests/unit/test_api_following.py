"""Live streams of the api: a follower that leaves, leaves no task behind."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from services.api.clients import ServiceClient, TelemetryClient
from services.api.following import Following
from services.api.job_watcher import Watcher
from services.core.ports.metric_store import LineQuery
from services.core.runtime.home import Home
from tests.documents import a_job
from tests.testbed.identities import credential
from tests.testbed.memory import MemoryJobStore
from tests.waiting import until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "run").mkdir()
    return Home(tmp_path)


async def test_a_follower_that_leaves_while_metrics_hangs_leaves_no_task_behind(home: Home) -> None:
    """The api reported a destroyed task when it stopped: the wait for changes of the job was not cancelled."""
    before = asyncio.all_tasks()

    def waiting() -> list[str]:
        return [str(task) for task in asyncio.all_tasks() - before if "Event.wait" in str(task.get_coro())]

    store = MemoryJobStore()
    job = await store.insert(a_job())
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        home.addresses_file.write_text(json.dumps({"metrics": f"127.0.0.1:{hanging.getsockname()[1]}"}))
        client = ServiceClient(home, "metrics", credential("api", "metrics"))
        stream = Following(store, TelemetryClient(client), Watcher(store, every_s=60)).lines(job, LineQuery())
        reading = asyncio.ensure_future(anext(stream))
        await until(waiting)
        reading.cancel()
        await asyncio.wait({reading})
        await stream.aclose()
        await client.close()
    assert waiting() == []

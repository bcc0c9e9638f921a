"""Hints in a folder, which is the broker of an installation on one machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.core.adapters.celery.app import QUEUE, Sender, make_app
from services.core.adapters.celery.broker import Broker
from tests.waiting import HANG_S

HINTS = 100


def test_every_hint_arrives_whole_while_a_worker_reads_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was read while it was being written was lost, and the log warned of a message that is no hint."""
    (tmp_path / "taken").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "taken"))  # through which kombu moves each, as in the worker
    broker = Broker("filesystem://", tmp_path / "broker")
    jobs = [f"j{number:03}" for number in range(HINTS)]
    app, sender, taken = make_app(broker), Sender(broker), list[str]()
    with app.connection_for_read() as connection, connection.channel() as channel, ThreadPoolExecutor(1) as thread:

        def take_all() -> None:
            while len(taken) < len(jobs):
                message = channel.basic_get(QUEUE, no_ack=True)
                if message is not None:
                    (_, job, _), *_ = message.payload
                    taken.append(job)

        taking = thread.submit(take_all)
        for job in jobs:
            sender.send("submitted", job, "")
        taking.result(HANG_S)
    sender.close()
    app.close()
    assert sorted(taken) == jobs
    assert [path.name for path in (tmp_path / "broker" / "queue").iterdir()] == []

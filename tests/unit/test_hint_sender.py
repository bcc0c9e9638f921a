"""The connection over which hints are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from services.core.adapters.celery.app import Sender
from services.core.adapters.celery.broker import Broker
from services.core.domain.errors import ResourceExhausted
from services.core.runtime.settings import Settings


def test_hints_that_find_the_queue_full_open_no_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a worker each hint opened a connection to the broker and closed it again."""
    opened: list[Any] = []
    connect = Celery.connection_for_write

    def counted(app: Celery) -> Any:
        opened.append(connect(app))
        return opened[-1]

    monkeypatch.setattr(Celery, "connection_for_write", counted)
    monkeypatch.setattr("services.core.adapters.celery.app.QUEUE_AT_MOST", 1)
    sender = Sender(Broker.of(Settings(home=tmp_path)))
    sender.send("admitted", "j1", "")
    opened.clear()
    for _ in range(3):
        with pytest.raises(ResourceExhausted):
            sender.send("admitted", "j1", "")
    sender.close()
    assert opened == []

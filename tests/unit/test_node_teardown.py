"""A teardown that fails half-way: its repeat gives the hardware back."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.core.domain.errors import NoSpace, ResourceExhausted
from services.core.runtime.durable_files import write_json
from services.node.agent import Agent
from services.node.instrumentation import Instrumentation
from services.node.settings import NodeSettings
from tests.testbed.node import plan


@pytest.fixture
async def agent() -> AsyncGenerator[Agent]:
    """The agent of a machine with one GPU."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # users of learners must pass through
        settings = NodeSettings(
            home=Path(folder) / "home",
            node_isolation="process",
            node_cgroups=False,
            node_gpus=1,
            node_uid_first=64_000,
            node_uid_count=2,
        )
        running = await Agent.start(settings, Instrumentation(CollectorRegistry()))
        try:
            yield running
        finally:
            await running.close()


class FullDisk:
    """The disk of the fences: while it is full, nothing can be written there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        monkeypatch.setattr("services.node.fences.write_json", self._write_json)

    def _write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        if self.is_full:
            raise NoSpace("no space left on the disk")
        write_json(path, document)


async def test_a_teardown_that_is_repeated_after_a_full_disk_gives_the_gpu_back(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, first, second = FullDisk(monkeypatch), plan(["true"], gpus=1), plan(["true"], gpus=1)
    await agent.do("reserve", first)
    with pytest.raises(ResourceExhausted):
        await agent.do("reserve", second)
    disk.is_full = True
    with pytest.raises(NoSpace):
        await agent.teardown(first.job, attempt=1, term=1)
    disk.is_full = False
    await agent.teardown(first.job, attempt=1, term=1)
    assert not (await agent.observe(first.job)).learners
    await agent.do("reserve", second)

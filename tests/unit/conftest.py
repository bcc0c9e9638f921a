"""Fixtures that several files of unit tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.testbed.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncGenerator[ControlPlane]:
    """A control plane without any process yet, in virtual time (``pytest.mark.looptime``)."""
    plane = ControlPlane(tmp_path)
    yield plane
    await plane.close()


@pytest.fixture
def without_root() -> Generator[Path]:
    """A folder of a user without root, as whom the test runs."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, 64_123, -1)
        os.seteuid(64_123)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)

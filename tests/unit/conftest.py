"""Fixtures that several files of unit tests share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.testbed.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncGenerator[ControlPlane]:
    """A control plane without any process yet, in virtual time (``pytest.mark.looptime``)."""
    plane = ControlPlane(tmp_path)
    yield plane
    await plane.close()

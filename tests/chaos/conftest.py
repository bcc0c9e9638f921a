"""The running platform that the promise tests of one file share. (`make chaos` starts its own for each seed.)"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.faults import small_volume
from tests.testbed.platform import Platform
from weft import Client


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    """A platform that offers 64 CPUs, because its learners mostly sleep. As root, its stores are on a small volume."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-chaos-")))
        root.chmod(0o755)
        if os.geteuid() == 0:
            stack.enter_context(small_volume(root / "home"))
        platform = Platform(root / "home", {"WEFT_NODE_CPUS": "64"})
        stack.callback(platform.down)
        platform.up()
        yield platform


@pytest.fixture
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as connected:
        yield connected

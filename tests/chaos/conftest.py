"""The running platform that the tests of promises share. (`make chaos` starts one of its own for each seed.)"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.platform import Platform, platform
from weft import Client


@pytest.fixture(scope="package")
def weft_up() -> Iterator[Platform]:
    """Its learners mostly sleep: there is room for more of them than the machine has cores."""
    with platform({"WEFT_NODE_CPUS": "64"}) as running:
        yield running


@pytest.fixture
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as found:
        yield found

"""The installation of these tests: docker-compose.yml on a Docker engine of the test bed's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.compose.stack import Stack, stack
from tests.testbed.kubernetes import traces


@pytest.fixture(scope="package")
def machine_before() -> Mapping[str, object]:
    """Links, addresses, routes and firewall of this machine before the engine starts."""
    return traces.host()


@pytest.fixture(scope="package")
def new_stack(
    machine_before: Mapping[str, object],
    announce: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> Iterator[Stack]:
    """All images are built; nothing has been started."""
    with ExitStack() as ending:
        with untimed():
            built = ending.enter_context(stack(announce))
        yield built


@pytest.fixture(scope="package")
def installed(new_stack: Stack) -> Stack:
    """Started from nothing by `docker compose up --wait`."""
    new_stack.up()
    return new_stack

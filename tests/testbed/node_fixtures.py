"""Fixtures of tests on a node agent: its cluster, a connection to it, and a PATH without bubblewrap.

A test file has the fixture ``node``, a NodeProcess, for its own isolation and settings.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import grpc.aio
import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.adapters.rpc.client import connect
from services.core.bootstrap.wiring import identity
from services.core.runtime.settings import Settings
from tests.testbed.node import NodeProcess


@pytest.fixture
async def cluster(node: NodeProcess) -> AsyncGenerator[LocalCluster]:
    """The cluster of ``node``, as a Guardian uses it."""
    client = await node.cluster()
    yield client
    await client.close()


@pytest.fixture
async def channel(node: NodeProcess) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to ``node`` with the identity of the api."""
    caller = await identity(Settings(home=node.home.root), "api")
    connection = connect(node.addresses["node"], caller.credential("node"))
    yield connection
    await connection.close()


@pytest.fixture
def no_bubblewrap() -> Generator[Path]:
    """A folder for PATH with all programs but bubblewrap, readable for all users."""
    folder = Path(tempfile.mkdtemp(prefix="weft-path-"))
    folder.chmod(0o755)
    for path in Path("/usr/bin").iterdir():
        if path.name != "bwrap":
            (folder / path.name).symlink_to(path)
    yield folder
    shutil.rmtree(folder)

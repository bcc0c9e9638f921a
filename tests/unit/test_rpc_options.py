"""Idle streams between services were cut every 15 s ("too_many_pings"): a server option was misspelled.

gRPC accepts any option name silently; the names that it reads are in its compiled library as text.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from services.api.grpc import server as api
from services.core.adapters.etcd import connection
from services.core.adapters.rpc import client, server


@pytest.mark.parametrize(
    "options",
    [client.OPTIONS, server.OPTIONS, api.OPTIONS, connection.options(connection.MAX_MESSAGE)],
    ids=["client", "server", "api", "etcd"],
)
def test_grpc_knows_the_name_of_every_connection_option(options: tuple[tuple[str, int], ...]) -> None:
    library = next(Path(grpc.__file__).parent.glob("_cython/cygrpc*.so")).read_bytes()
    assert [name for name, _ in options if name.encode() not in library] == []

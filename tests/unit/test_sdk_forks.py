"""A client that was made before a fork works in both processes, as in the workers of `multiprocessing`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.testbed.scripted_http import json_answer, scripted

PROGRAM = """
import os, sys
from weft._profile import Profile
from weft._transport import Transport

transport = Transport(Profile("", sys.argv[1], "weft_k_s"))

def read(name):
    if sys.argv[2] == "request":
        body = transport.request("GET", "/" + name, params={}, body=None, headers={}).body
    else:
        stream = transport.open("/" + name, params={}, headers={}, silence_s=60)
        body = stream.read().body
        stream.close()
    assert body == b'"/' + name.encode() + b'"', body

read("before")
if os.fork() == 0:
    read("child")
    read("child")
    os._exit(0)
assert os.wait()[1] == 0
read("parent")
transport.close()
"""


@pytest.mark.parametrize("way", ["request", "stream"])
def test_processes_that_share_a_client_share_no_connection(way: str) -> None:
    """On one connection each may get the answer to the other's request: another job, as its own."""
    with scripted(lambda request, _: json_answer(request.path)) as server:
        subprocess.run([sys.executable, "-c", PROGRAM, server.url, way], check=True, timeout=120)
    connections = [(request.path, request.connection) for request in server.requests]
    (parent,) = {connection for path, connection in connections if path != "/child"}
    (child,) = {connection for path, connection in connections if path == "/child"}
    assert parent != child

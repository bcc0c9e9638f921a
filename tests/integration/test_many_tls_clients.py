"""Learners' pods that start together, or come back after a restart of a service, connect to it at the same moment."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

from services.core.adapters.certificates import issue
from tests.testbed.server import free_port

_SERVER = """
import asyncio, sys
from pathlib import Path
from services.core.adapters.rpc.server import serve
from services.core.runtime.address import Address, TlsFiles
from tests.testbed.hints import add_nudged
from tests.testbed.identities import guard

async def main(folder, port):
    server = await serve(Address(f"tls:127.0.0.1:{port}", TlsFiles.of(Path(folder), "lcm")), guard("lcm"), add_nudged)
    print("ready", flush=True)
    await asyncio.Event().wait()
    await server.stop(None)

asyncio.run(main(*sys.argv[1:]))
"""
_CLIENTS = """
import asyncio, sys
from pathlib import Path
from services.core.runtime.address import TlsFiles
from services.core.runtime.operations_client import client_context

async def connect(port, context):
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.transport.abort()

async def main(folder, port):
    context = client_context(TlsFiles.of(Path(folder), "api"))
    context.set_alpn_protocols(["h2"])
    for _ in range(5):
        await asyncio.gather(*(connect(int(port), context) for _ in range(200)))

asyncio.run(main(*sys.argv[1:]))
"""


def test_service_lives_on_when_hundreds_of_clients_connect_at_once(tmp_path: Path) -> None:
    issue(tmp_path / "tls", ("lcm", "api"), dt.datetime.now(dt.UTC))
    arguments = [str(tmp_path / "tls"), str(free_port())]
    # With all its threads, gRPC crashed each time.
    environment = {**os.environ, "GRPC_EXPERIMENTS": ""}
    command = [sys.executable, "-c", _SERVER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            clients = [subprocess.Popen([sys.executable, "-c", _CLIENTS, *arguments]) for _ in range(6)]
            assert [client.wait() for client in clients] == [0] * 6
            assert server.poll() is None
        finally:
            server.kill()

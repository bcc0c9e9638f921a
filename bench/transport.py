"""Measures what protection costs: calls between two processes over sockets, mutual TLS and plain TCP, as ratios.

    python -m bench.transport [--rounds 5] [--calls 1000] [--quick]

A server in a process of its own answers an empty call. One client calls it, one call after the other, and opens new
connections. The transports take turns within each round, so that other load on the machine meets all alike; a ratio is
that of one round. ``relayed`` is the api's gRPC behind the port that the supervisor holds (docs/adr/0014-transport.md).
The platform itself uses plain TCP nowhere; it is the measure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from bench.report import Row, show
from services.api.grpc.relay import Relay
from services.core.adapters.certificates import issue
from services.core.adapters.rpc.client import OPTIONS
from services.core.adapters.rpc.server import OPTIONS as SERVER_OPTIONS
from services.core.adapters.rpc.transport import Listening, dial
from services.core.runtime.address import Address, TlsFiles
from services.core.runtime.connections import Connections
from services.core.runtime.sockets import make_private_folder

NAMES = ("plain TCP", "socket", "mutual TLS", "relayed")


async def serve(folder: Path) -> None:
    """Serves in each way until SIGTERM; prints the ports of plain TCP, TLS and the relay."""
    servicer, stopping = health.HealthServicer(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)

    def server() -> grpc.aio.Server:
        made = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, made)
        return made

    plain = server()
    port = plain.add_insecure_port("127.0.0.1:0")
    await plain.start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        tls_port = free.getsockname()[1]
    listening = [
        Listening(server(), Address(f"tls:127.0.0.1:{tls_port}", TlsFiles.of(folder / "tls", "server"))),
        Listening(server(), Address(f"unix:{folder}/s/server")),
        Listening(server(), Address(f"unix:{folder}/s/behind")),
    ]
    for listener in listening:
        await listener.start()
    held = socket.create_server(("127.0.0.1", 0))
    unbounded = Connections(most=4096, most_of_client=4096, count_refused=print)
    relay_port, relay = held.getsockname()[1], Relay(held, folder / "s" / "behind", unbounded)
    await relay.start()
    print(port, tls_port, relay_port, flush=True)
    await stopping.wait()
    await relay.close()
    for listener in listening:
        await listener.stop(None)
    await plain.stop(None)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncGenerator[list[int]]:
    """The server's process. Yields its ports."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.transport", "--serve", str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield [int(word) for word in (await process.stdout.readline()).split()]
    finally:
        process.terminate()
        await process.wait()


async def calls_per_s(channel: grpc.aio.Channel, calls: int) -> float:
    """Calls a second, one after the other, on one connection."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest()
    await stub.Check(request, timeout=30)
    began = time.perf_counter()
    for _ in range(calls):
        await stub.Check(request, timeout=30)
    return calls / (time.perf_counter() - began)


async def measure(rounds: int, calls: int) -> None:
    """Runs all rounds and prints the table."""
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    first: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_private_folder(folder / "s")
        issue(folder / "tls", ("server", "client"), datetime.now(UTC))
        files = TlsFiles.of(folder / "tls", "client")
        async with served(folder) as (plain, tls, relayed):

            def channel(name: str) -> grpc.aio.Channel:
                ports = {"plain TCP": plain, "relayed": relayed}
                if name in ports:
                    return grpc.aio.insecure_channel(f"127.0.0.1:{ports[name]}", options=own)
                text = f"unix:{folder}/s/server" if name == "socket" else f"tls:127.0.0.1:{tls}"
                return dial(Address(text, files), options=own)

            own = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))  # each channel makes its own connection
            for _ in range(rounds):
                for name in NAMES:
                    began = time.perf_counter()
                    async with channel(name) as connected:
                        await calls_per_s(connected, 0)
                        first[name].append((time.perf_counter() - began) * 1000)
                        rates[name].append(await calls_per_s(connected, calls))
    rows = [Row(f"{name}: calls", rates[name], "1/s") for name in NAMES]
    rows += [
        Row(f"{name}: calls beside plain TCP", [a / b for a, b in zip(rates[name], rates[NAMES[0]], strict=True)], "x")
        for name in NAMES[1:]
    ]
    rows += [Row(f"{name}: connect and first call", first[name]) for name in NAMES]
    faster = statistics.median(rates["socket"]) / statistics.median(rates["mutual TLS"])
    show("transport: calls between two processes", rows, notes=[f"sockets carry {faster:.2f} times the calls of TLS"])


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000, help="in each round and way")
    parser.add_argument("--quick", action="store_true", help="short")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(Path(args.serve)))
        return 0
    asyncio.run(measure(3 if args.quick else args.rounds, 300 if args.quick else args.calls))
    return 0


if __name__ == "__main__":
    sys.exit(main())

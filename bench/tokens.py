"""Measures what the tokens of services cost: each step alone, and a whole call with them against one without.

    python -m bench.tokens [--calls 4000] [--quick]

The calls go over sockets between two ends in one process, in turn: one without authentication, one with a token. A
token is verified once and then kept; the row "verified anew" shows a call's first token. The last line is the ratio of
the medians of a call with and without.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio

from bench.report import Row, show
from services.core.adapters.identity import KeyPair, PublicKeys, ServiceCredential, ServiceTokenVerifier
from services.core.adapters.rpc import client
from services.core.adapters.rpc.server import OPTIONS, Guard, serve
from services.core.adapters.rpc.transport import Listening, dial
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.runtime.address import Address


class _Control(control_pb2_grpc.ControlServicer):
    async def Nudge(self, request: control_pb2.NudgeRequest, context: Any) -> control_pb2.NudgeReply:  # noqa: N802, ARG002 - proto
        return control_pb2.NudgeReply()


def micros(step: Callable[[], object], times: int) -> list[float]:
    """The duration of each repetition, in microseconds."""
    durations = []
    for _ in range(times):
        began = time.perf_counter_ns()
        step()
        durations.append((time.perf_counter_ns() - began) / 1_000)
    return durations


async def calls(folder: Path, pair: KeyPair, keys: PublicKeys, count: int) -> tuple[list[float], list[float]]:
    """Durations of calls without and with a token, in microseconds; one of each in turn."""
    open_at, guarded_at = Address(f"unix:{folder}/open"), Address(f"unix:{folder}/guarded")

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(_Control(), server)

    unguarded = grpc.aio.server(options=OPTIONS)
    register(unguarded)
    servers = [
        Listening(unguarded, open_at),
        await serve(guarded_at, Guard("lcm", ServiceTokenVerifier(keys, "lcm")), register),
    ]
    await servers[0].start()
    channels = [dial(open_at, options=client.OPTIONS), client.connect(guarded_at, ServiceCredential(pair, "lcm"))]
    stubs = [control_pb2_grpc.ControlStub(channel) for channel in channels]
    durations: tuple[list[float], list[float]] = ([], [])
    for number in range(count + 200):  # the first ones warm up
        for stub, taken in zip(stubs, durations, strict=True):
            began = time.perf_counter_ns()
            await stub.Nudge(control_pb2.NudgeRequest(topic="submitted", job_id="j"), timeout=30)
            if number >= 200:
                taken.append((time.perf_counter_ns() - began) / 1_000)
    for channel in channels:
        await channel.close()
    for server in servers:
        await server.stop(None)
    return durations


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4_000, help="of each kind (default: 4000)")
    parser.add_argument("--quick", action="store_true", help="five hundred")
    args = parser.parse_args()
    count = 500 if args.quick else args.calls
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        keys, pair = PublicKeys(Path(folder) / "public-keys.json"), KeyPair.from_seed("api", b"b" * 32)
        keys.publish(pair)
        credential, verifier = ServiceCredential(pair, "lcm"), ServiceTokenVerifier(keys, "lcm")
        token = credential.authorization().removeprefix("Bearer ")
        verifier.verify(token)
        made = micros(lambda: ServiceCredential(pair, "lcm").authorization(), count)
        reused = micros(credential.authorization, count)
        anew = micros(lambda: ServiceTokenVerifier(keys, "lcm").verify(token), count)
        kept = micros(lambda: verifier.verify(token), count)
        without, with_token = asyncio.run(calls(Path(folder), pair, keys, count))
    ratio = statistics.median(with_token) / statistics.median(without)
    faster = statistics.median(anew) / statistics.median(kept)
    show(
        "Tokens of services",
        [
            Row("a token is made", made, "us"),
            Row("a token is used again", reused, "us"),
            Row("a token is verified anew", anew, "us"),
            Row("a kept token is verified", kept, "us"),
            Row("a call without authentication", without, "us"),
            Row("a call with a token", with_token, "us"),
        ],
        notes=[
            f"a call with a token takes {ratio:.2f} times as long as one without authentication",
            f"a kept token is verified {faster:.0f} times faster than a new one",
        ],
    )


if __name__ == "__main__":
    main()

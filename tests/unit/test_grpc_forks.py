"""Environments could not be built ("uv ended with code -11") while the helper called the metrics service.

A program that is started as another user, as uv is, begins in a fork: there gRPC's threads went on, and crashed.
"""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAMS = 100
_SCRIPT = f"""
import asyncio, collections, json, os, subprocess
import services
import grpc.aio

def start_programs():
    started = (subprocess.run(["/bin/true"], user=os.geteuid(), check=False) for _ in range({_PROGRAMS}))
    return collections.Counter(program.returncode for program in started)

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def call():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
            while True:
                try:
                    await channel.unary_unary("/unknown/method")(b"")
                except grpc.aio.AioRpcError:
                    pass

    calls = [asyncio.create_task(call()) for _ in range(2)]
    ends = await asyncio.to_thread(start_programs)
    for task in calls:
        task.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(None)
    print(json.dumps(ends))

asyncio.run(main())
"""


def test_program_of_another_user_is_started_while_grpc_is_busy() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"0": _PROGRAMS}, done.stderr

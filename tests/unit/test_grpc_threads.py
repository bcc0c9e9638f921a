"""Each message between two services woke up several threads of gRPC, which then looked for more on timers."""

from __future__ import annotations

import json
import subprocess
import sys

_CALLS = 300
_SCRIPT = f"""
import asyncio, json
from pathlib import Path
import services
import grpc.aio

def switches_of_event_engine():
    tasks = list(Path("/proc/self/task").iterdir())
    texts = [(task / "status").read_text() for task in tasks if "event_engine" in (task / "comm").read_text()]
    return sum(int(text.partition("\\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        before = switches_of_event_engine()
        for _ in range({_CALLS}):
            try:
                await channel.unary_unary("/unknown/method")(b"")
            except grpc.aio.AioRpcError:
                pass
        print(json.dumps(switches_of_event_engine() - before))
    await server.stop(None)

asyncio.run(main())
"""


def test_calls_between_services_do_not_wake_up_the_threads_of_grpcs_event_engine() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr == "", "a version of gRPC that does not know the switches of services/__init__.py says so here"
    assert json.loads(done.stdout) < _CALLS

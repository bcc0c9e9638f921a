"""How many durable submissions the api takes in a second, and how long one takes at a steady 50 a second.

    python -m bench.submit [--seconds 20] [--at-once 16] [--quick]

The real api as a process of its own, over SQLite and a folder in a temporary place, without the other services: what is
measured is the way from a request to the 201 that promises that the job is on disk (an fsync in each). Jobs carry an
idempotency key; those "with code" also bring 4 KiB that nobody has sent before. Whoever asks is one process beside it
on the same processors, which speaks HTTP/1.1 by hand, so that as little as may be of what is measured is its own.

At 50 a second, requests begin when their time has come, whether or not those before have been answered: waiting counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import uuid
from pathlib import Path

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from tests.testbed.api import a_zip
from tests.testbed.api_process import ApiProcess, api_processes

RATE = 50
SPEC = {"name": "bench", "command": "python train.py", "framework": "jax", "learners": 2}
WARMING = 50


class Asker:
    """Connections to the api, each used by one request at a time."""

    def __init__(self, api: ApiProcess, key: str) -> None:
        self._address, self._key = api.address.rpartition(":"), key
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._code = 0

    async def submit(self, *, code: bool) -> float:
        """Milliseconds until the 201 was there."""
        kind, body = self._form() if code else ("application/json", json.dumps(SPEC).encode())
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: weft\r\nAuthorization: Bearer {self._key}\r\nContent-Type: {kind}\r\n"
            f"Idempotency-Key: {uuid.uuid4().hex}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        host, _, port = self._address
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        told = await reader.readexactly(length)
        took = (time.perf_counter() - began) * 1e3
        if not answer.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"not accepted: {told.decode()}")
        self._free.append((reader, writer))
        return took

    def _form(self) -> tuple[str, bytes]:
        self._code += 1
        code = a_zip({"train.py": f"{self._code} {uuid.uuid4()}", "noise": os.urandom(4096)})
        parts = (
            b'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n' + json.dumps(SPEC).encode(),
            b'--b\r\nContent-Disposition: form-data; name="code"; filename="code.zip"\r\n\r\n' + code,
            b"--b--\r\n",
        )
        return "multipart/form-data; boundary=b", b"\r\n".join(parts)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def fastest(asker: Asker, *, seconds: float, at_once: int, code: bool) -> list[float]:
    """How many were acknowledged in each whole second."""
    counts = [0] * max(1, int(seconds))
    began = time.perf_counter()

    async def one() -> None:
        while True:
            await asker.submit(code=code)
            second = int(time.perf_counter() - began)
            if second >= len(counts):
                return
            counts[second] += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    return [float(count) for count in counts]


async def steady(asker: Asker, *, seconds: float, code: bool) -> list[float]:
    """Milliseconds of each submission, from the moment at which it was to begin."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        late = (time.perf_counter() - due) * 1e3
        return late + await asker.submit(code=code)

    return list(await asyncio.gather(*(one(number) for number in range(int(seconds * RATE)))))


async def measure(*, seconds: float, at_once: int) -> list[Row]:
    """On an api of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-submit-") as folder:
        async with api_processes(Path(folder), 1) as [api]:
            asker = Asker(api, await api.key())
            for _ in range(WARMING):
                await asker.submit(code=True)
            rows: list[Row] = []
            for code, words in ((False, "spec only"), (True, "with 4 KiB of code")):
                took = await steady(asker, seconds=seconds, code=code)
                rows.append(Row(f"at {RATE}/s, {words}", took, promised="p99 <= 100"))
            for code, words in ((False, "spec only"), (True, "with 4 KiB of code")):
                counts = await fastest(asker, seconds=seconds, at_once=at_once, code=code)
                rows.append(Row(f"{at_once} at once, {words}", counts, unit="1/s", promised=">= 300"))
            asker.close()
    return rows


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement (default: 20)")
    parser.add_argument("--at-once", type=int, default=16, help="submitters that never pause (default: 16)")
    parser.add_argument("--quick", action="store_true", help="three seconds each")
    args = parser.parse_args()
    with ending_cleanly():
        rows = asyncio.run(measure(seconds=3 if args.quick else args.seconds, at_once=args.at_once))
    show("submit: durable submissions through the api, on SQLite", rows)


if __name__ == "__main__":
    main()

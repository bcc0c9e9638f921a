"""Measures durable submissions per second, and the latency of one at a steady 50 a second.

    python -m bench.submit [--seconds 20] [--at-once 16] [--quick]

The real api runs as its own process over SQLite and a temporary folder, without the other services. The time is that
from a request to its 201, which promises that the job is on disk (one fsync each). Jobs carry an idempotency key; jobs
"with code" also carry 4 KiB of new code. One client process on the same processors writes plain HTTP/1.1, so that the
client adds as little time as possible.

At 50 a second, each request is due at a fixed time, whether or not earlier ones are answered: waiting counts.
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


class Submitter:
    """Connections to the api, each used by one request at a time."""

    def __init__(self, api: ApiProcess, key: str) -> None:
        self._address, self._key = api.address.rpartition(":"), key
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._code = 0

    async def submit(self, *, code: bool) -> float:
        """Submits a job. Returns the milliseconds until the 201."""
        kind, body = self._form() if code else ("application/json", json.dumps(SPEC).encode())
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: weft\r\nAuthorization: Bearer {self._key}\r\nContent-Type: {kind}\r\n"
            f"Idempotency-Key: {uuid.uuid4().hex}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        host, _, port = self._address
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        response_head = await reader.readuntil(b"\r\n\r\n")
        length = int(response_head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        response_body = await reader.readexactly(length)
        took = (time.perf_counter() - began) * 1e3
        if not response_head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"not accepted: {response_body.decode()}")
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


async def fastest(submitter: Submitter, *, seconds: float, at_once: int, code: bool) -> list[float]:
    """Returns the number of acknowledged submissions in each whole second."""
    counts = [0] * max(1, int(seconds))
    began = time.perf_counter()

    async def submit_until_end() -> None:
        while True:
            await submitter.submit(code=code)
            second = int(time.perf_counter() - began)
            if second >= len(counts):
                return
            counts[second] += 1

    await asyncio.gather(*(submit_until_end() for _ in range(at_once)))
    return [float(count) for count in counts]


async def steady(submitter: Submitter, *, seconds: float, code: bool) -> list[float]:
    """Returns the milliseconds of each submission since the moment it was due."""
    began = time.perf_counter()

    async def submit_at(number: int) -> float:
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        late = (time.perf_counter() - due) * 1e3
        return late + await submitter.submit(code=code)

    return list(await asyncio.gather(*(submit_at(number) for number in range(int(seconds * RATE)))))


async def measure(*, seconds: float, at_once: int) -> list[Row]:
    """Runs all measurements on a new api, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-submit-") as folder:
        async with api_processes(Path(folder), 1) as [api]:
            submitter = Submitter(api, await api.key())
            for _ in range(WARMING):
                await submitter.submit(code=True)
            rows: list[Row] = []
            for code, words in ((False, "spec only"), (True, "with 4 KiB of code")):
                took = await steady(submitter, seconds=seconds, code=code)
                rows.append(Row(f"at {RATE}/s, {words}", took, promised="p99 <= 100"))
            for code, words in ((False, "spec only"), (True, "with 4 KiB of code")):
                counts = await fastest(submitter, seconds=seconds, at_once=at_once, code=code)
                rows.append(Row(f"{at_once} at once, {words}", counts, unit="1/s", promised=">= 300"))
            submitter.close()
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

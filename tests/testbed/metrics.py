"""A real metrics service as a process, in a WEFT_HOME of its own, and its clients."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.core.adapters.identity import LearnerTokenSigner
from services.core.adapters.rpc.client import Credential, LearnerCredential, connect, translating
from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable
from services.core.domain.ids import RANDOM_BITS, make_id
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.tokens import LearnerIdentity
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.runtime.home import Home
from services.core.runtime.operations_client import read_operations
from tests.testbed import identities
from tests.testbed.server import free_address
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
CALL_S = 30.0
"""For one call: a service that answers later is taken for one that is away."""
WIDTH = 10
"""Bytes of each line and point."""


def job_id() -> str:
    return make_id("j", now_ms=time.time_ns() // 1_000_000, random_bits=int.from_bytes(os.urandom(8)) % 2**RANDOM_BITS)


class MetricsProcess:
    """Keeps its folder and its address over restarts."""

    def __init__(
        self,
        root: Path,
        etcd_address: str,
        environment: Mapping[str, str] | None = None,
        *,
        address: str | None = None,
    ) -> None:
        """``environment``: further settings. ``address``: one of its own if None."""
        self.home = Home(root / "home")
        self.environment = {"WEFT_METRICS_KEEP_ALIVE_S": "0.5", **(environment or {})}
        self.log = root / "metrics.log"
        self.address = address or free_address()
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / "run").mkdir(parents=True)
        identities.install(self.home.root)
        addresses = {"etcd": etcd_address, "metrics": self.address, "metrics-ops": free_address()}
        self.home.addresses_file.write_text(json.dumps(addresses))

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.metrics"],
                cwd=ROOT,
                env={**os.environ, "WEFT_HOME": str(self.home.root), **self.environment},
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Sends SIGTERM. Returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(HANG_S)

    def operations(self, path: str) -> str:
        """The body of an answer with any status."""
        return read_operations(
            self.home.address("metrics-ops"), path, timeout_s=HANG_S, headers=identities.operations_headers("metrics")
        ).body.decode()


@contextmanager
def running(root: Path, etcd_address: str, environment: Mapping[str, str] | None = None) -> Generator[MetricsProcess]:
    """``environment``: further settings."""
    service = MetricsProcess(root, etcd_address, environment)
    service.start()
    try:
        yield service
    finally:
        service.kill()


class Shards:
    """Metrics services, of which each has a shard of the jobs."""

    def __init__(self, root: Path, etcd_address: str) -> None:
        self._root, self._etcd = root, etcd_address
        self._addresses = f"{free_address()}-{{}}"
        self.services: list[MetricsProcess] = []

    def start(self, count: int, before: int | None = None) -> None:
        """Starts all again with these numbers; those that are new begin with an empty folder."""
        self.kill()
        for shard in range(max(count, before or 1)):
            self.start_one(shard, count, before)

    def start_one(self, shard: int, count: int, before: int | None = None) -> None:
        while len(self.services) <= shard:
            number = len(self.services)
            place = self._root / f"shard-{number}"
            self.services.append(MetricsProcess(place, self._etcd, address=self._addresses.format(number)))
        service = self.services[shard]
        service.environment |= {
            "WEFT_METRICS_SHARDS": str(count),
            "WEFT_METRICS_SHARD": str(shard),
            "WEFT_METRICS_SHARD_ADDRESSES": self._addresses,
        }
        service.environment.pop("WEFT_METRICS_SHARDS_BEFORE", None)
        if before is not None:
            service.environment["WEFT_METRICS_SHARDS_BEFORE"] = str(before)
        service.start()

    def kill(self) -> None:
        for service in self.services:
            service.kill()

    def jobs(self, shard: int) -> set[str]:
        """Those that have a folder in the shard's store."""
        folder = self.services[shard].home / "metrics"
        return {path.name for path in folder.glob("[!.]*") if path.is_dir()}

    def agreed(self, shard: int) -> Mapping[str, Any]:
        """What its volume says; empty: nothing yet."""
        path = self.services[shard].home / "metrics" / "shards.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}


class Peer:
    """A client. Repeats its calls while the service does not answer."""

    def __init__(self, service: MetricsProcess, stub: Any, credential: Credential) -> None:
        self.channel = connect(service.address, credential)
        self._stub = stub(self.channel)

    async def call(self, method: str, request: Any) -> Any:
        """Raises the errors of the domain's table; Unavailable only after ``HANG_S``."""
        give_up = time.monotonic() + HANG_S
        while True:
            try:
                return await self.once(method, request)
            except Unavailable:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.02)

    async def once(self, method: str, request: Any) -> Any:
        with translating():
            return await getattr(self._stub, method)(request, timeout=CALL_S)

    def stream(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request)

    async def close(self) -> None:
        await self.channel.close()


class Reader(Peer):
    """Reads as another service does."""

    def __init__(self, service: MetricsProcess) -> None:
        super().__init__(service, metrics_pb2_grpc.TelemetryStub, identities.credential("api", "metrics"))

    async def lines(self, job: str, **query: Any) -> list[str]:
        reply = await self.call("Lines", pb.LinesRequest(job_id=job, **query))
        return [stored.line.text for stored in reply.lines]


class Helper(Peer):
    """One learner's helper, reduced to its calls."""

    def __init__(
        self,
        service: MetricsProcess,
        job: str,
        *,
        rank: int = 0,
        attempt: int = 1,
        signer: LearnerTokenSigner = identities.SIGNER,
    ) -> None:
        self.me = LearnerIdentity(job, "t", attempt, "worker", rank, f"worker-{rank}")
        self.seq = 0
        super().__init__(service, metrics_pb2_grpc.IntakeStub, LearnerCredential(signer.mint(self.me)))

    def source(self, name: str = "stdout", **other: Any) -> pb.Source:
        own: dict[str, Any] = {"attempt": self.me.attempt, "role": self.me.role, "rank": self.me.rank, "run": 1}
        fields: dict[str, Any] = {**own, "source": name, **other}
        return pb.Source(**fields)

    def lines(self, start: int, texts: Sequence[str], **more: Any) -> pb.SourceBatch:
        """A batch of lines with the numbers from ``start`` on."""
        rows = [
            pb.LogLine(offset=(start + at) * WIDTH, time_ms=time.time_ns() // 1_000_000, text=text)
            for at, text in enumerate(texts)
        ]
        place: dict[str, Any] = {"start": start * WIDTH, "end": (start + len(texts)) * WIDTH}
        fields: dict[str, Any] = {"source": self.source(), **place, "lines": rows, **more}
        return pb.SourceBatch(**fields)

    def points(self, start: int, values: Sequence[float], name: str = "loss") -> pb.SourceBatch:
        rows = [
            pb.MetricPoint(offset=(start + at) * WIDTH, time_ms=1000, name=name, step=start + at, value=value)
            for at, value in enumerate(values)
        ]
        start, end = start * WIDTH, (start + len(values)) * WIDTH
        return pb.SourceBatch(source=self.source("metrics.jsonl"), start=start, end=end, points=rows)

    async def append(self, *batches: pb.SourceBatch) -> list[int]:
        return list((await self.call("Append", pb.AppendRequest(batches=batches))).committed)

    def status(self, phase: Phase, *, seq: int | None = None) -> LearnerStatus:
        me = self.me
        self.seq = self.seq + 1 if seq is None else seq
        return LearnerStatus(name=me.name, role=me.role, rank=me.rank, attempt=me.attempt, seq=self.seq, phase=phase)

    async def report(self, phase: Phase, *, seq: int | None = None) -> bool:
        """Returns whether the attempt is current."""
        text = json.dumps(dump(self.status(phase, seq=seq))).encode()
        return bool((await self.call("Report", pb.ReportRequest(status=text))).current)

    async def append_with_beat(self, *batches: pb.SourceBatch, progress: float) -> pb.AppendReply:
        beat = pb.BeatRequest(progress=progress, eta_ms=-1)
        reply: pb.AppendReply = await self.call("Append", pb.AppendRequest(batches=batches, beat=beat))
        return reply

    async def beat(self) -> tuple[bool, bool]:
        """(current, go)."""
        reply = await self.call("Beat", pb.BeatRequest(progress=-1, eta_ms=-1))
        return reply.current, reply.go

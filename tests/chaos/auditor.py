"""Audits a run through the APIs, the stores' public clients and the process table only.

Its input is what the owners wanted and which learners were killed. It uses no internals of the platform: its table of
allowed status transitions is written from the contract, not imported from the code under test.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.usage import USAGE_NAMES
from services.core.ports.job_store import JobQuery, JobStore
from services.core.runtime.address import Address
from tests.chaos.load import Life, Owned
from tests.chaos.process_table import Sampler, learner_processes
from weft import Client, NotFound
from weft._job import Job
from weft._records import HistoryEvent

ENDS: Final[Mapping[Life, frozenset[str]]] = {
    "complete": frozenset({"COMPLETED"}),
    "fail first": frozenset({"COMPLETED"}),
    "halt": frozenset({"COMPLETED"}),
    "stay": frozenset({"COMPLETED"}),
    "fail": frozenset({"FAILED"}),
    # A learner that finished before the kill arrived has completed: an exit counts more than the desired state.
    "kill": frozenset({"KILLED"}),
}
_LIVE: Final = {"QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING"}
FOLLOWS: Final[Mapping[str, set[str]]] = {
    "QUEUED": {"PENDING", "HALTED", "HALTING"},
    "PENDING": {"DOWNLOADING", "PROCESSING", "STORING", "COMPLETED", "QUEUED", "HALTING"},
    "DOWNLOADING": {"PROCESSING", "STORING", "COMPLETED", "QUEUED", "HALTING"},
    "PROCESSING": {"STORING", "COMPLETED", "QUEUED", "HALTING"},
    "STORING": {"COMPLETED", "QUEUED", "HALTING"},
    "HALTING": {"HALTED", "COMPLETED"},
    "HALTED": {"RESUMED", "KILLED"},
    "RESUMED": {"QUEUED"},
}
"""The status machine. A live job may also fail or be killed."""


@dataclass
class Verdict:
    """Result of an audit: failures, and how many objects were checked."""

    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter[str])

    def must(self, holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            self.failures.append(what)


def judge_jobs(client: Client, owned: Sequence[Owned], killed_learners: Mapping[str, int], verdict: Verdict) -> None:
    """Checks that every acknowledged job exists once, ended as its owner wanted, and has all lines and points in order.

    ``killed_learners``: job id -> number of kills of its learners.
    """
    listed = Counter(job.id for job in client.jobs.list(limit=None))
    mine = {owned_job.job.id for owned_job in owned}
    verdict.must(set(listed) == mine, f"lost jobs, or jobs that no owner submitted: {sorted(set(listed) ^ mine)}")
    verdict.must(max(listed.values(), default=1) == 1, "a job is listed twice")
    for owned_job in owned:
        job = owned_job.job.refresh()
        name = f"{job.id} ({owned_job.order.life})"
        verdict.counts["jobs"] += 1
        verdict.must(job.status in ENDS[owned_job.order.life], f"{name} is {job.status} ({job.reason}: {job.message})")
        verdict.must(bool(job.document["released"]), f"{name} holds hardware")
        events = job.history()
        for failure in history_failures(events):
            verdict.failures.append(f"{name}: {failure}")
        verdict.counts["events"] += len(events)
        failed = sum(event.before in {"PROCESSING", "STORING"} and event.to == "QUEUED" for event in events)
        planned = killed_learners.get(job.id, 0) + (owned_job.order.life == "fail first")
        verdict.must(failed <= planned, f"{name}: {failed} attempts failed, of which {planned} were to")
        for failure in stream_failures(client, owned_job, events, verdict.counts):
            verdict.failures.append(f"{name}: {failure}")


def history_failures(events: Sequence[HistoryEvent]) -> Iterator[str]:
    """Yields gaps, duplicates and transitions that the status machine does not allow."""
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield f"its history is numbered {[event.seq for event in events]}"
    if not events or (events[0].before, events[0].to) != (None, "QUEUED"):
        yield "its history does not begin with QUEUED"
    for before, after in pairwise(events):
        if after.before != before.to:
            yield f"event {after.seq} comes from {after.before} and follows {before.to}"
        allowed = FOLLOWS.get(before.to, set()) | ({"FAILED", "KILLED"} if before.to in _LIVE else set())
        if after.to not in allowed:
            yield f"event {after.seq} goes from {before.to} to {after.to}"
    admitted = [event.attempt for event in events if event.to == "PENDING"]
    if admitted != list(range(1, len(admitted) + 1)):
        yield f"its attempts are numbered {admitted}"


def stream_failures(
    client: Client, owned_job: Owned, events: Sequence[HistoryEvent], counts: Counter[str]
) -> Iterator[str]:
    """Yields lines and points that are missing, duplicated, out of order or unlike the raw log, by attempt and rank."""
    job, order = owned_job.job, owned_job.order
    lines, points = list(job.logs()), list(job.points())
    counts.update(lines=len(lines), points=len(points))
    usage = [point.seq for point in job.points(name=USAGE_NAMES)]  # numbered with the other points
    for what, seqs in (("lines", [line.seq for line in lines]), ("points", sorted([*usage, *(p.seq for p in points)]))):
        if seqs != list(range(1, len(seqs) + 1)):
            yield f"its {what} are numbered with gaps or duplicates"
    lines_by_learner: dict[tuple[int, int], list[str]] = {}
    for line in lines:
        if line.run != 1 or line.stream != "stdout" or line.partial:
            yield f"line {line.seq} belongs to no learner: {line}"
        lines_by_learner.setdefault((line.attempt, line.rank), []).append(line.text)
    reported: dict[tuple[int, int], list[int | None]] = {}
    for point in points:
        reported.setdefault((point.attempt, point.rank), []).append(point.step)
    ran = {event.attempt for event in events if event.to == "PROCESSING"}
    killed = {event.attempt for event in events if event.to == "KILLED"}
    for attempt in {event.attempt for event in events if event.attempt} | {
        key[0] for key in lines_by_learner | reported
    }:
        for rank in range(order.learners):
            texts = lines_by_learner.get((attempt, rank), [])
            steps = [text for text in texts if not text.startswith("said ")]
            where = f"attempt {attempt}, rank {rank}"
            if steps != [f'{{"step": {n}, "loss": 1.5}}' for n in range(1, len(steps) + 1)]:
                yield f"{where}: its lines are not 1 to {len(steps)}"
            if reported.get((attempt, rank), []) != list(range(1, len(steps) + 1)):
                yield f"{where}: {len(steps)} lines, but points {len(reported.get((attempt, rank), []))}"
            complete = job.status == "COMPLETED" and attempt == job.attempt
            if complete and (
                texts[-1:] != [f"said {len(steps)}"] or (order.life != "stay" and len(steps) != order.steps)
            ):
                yield f"{where}: it ended with {texts[-1:]} after {len(steps)} of {order.steps} steps"
        if attempt in ran - killed:
            counts["raw logs"] += order.learners
            yield from _unlike_raw(
                client,
                job,
                attempt,
                {rank: lines_by_learner.get((attempt, rank), []) for rank in range(order.learners)},
            )


def _unlike_raw(client: Client, job: Job, attempt: int, lines_by_learner: Mapping[int, list[str]]) -> Iterator[str]:
    """Yields differences between the served lines and the raw logs that were stored at the end."""
    with tempfile.TemporaryDirectory(prefix="weft-chaos-") as folder:
        try:
            files = client.jobs.download(job.id, folder, what="logs", attempt=attempt)
        except NotFound:
            files = []
        for rank, texts in lines_by_learner.items():
            raw = next((path for path in files if path.parts[-2:] == (f"worker-{rank}", "stdout.1")), None)
            if raw is None:
                yield f"attempt {attempt}, rank {rank}: its raw log was not stored ({job.message})"
            elif (written := raw.read_text().splitlines()) != texts:
                yield f"attempt {attempt}, rank {rank}: it wrote {len(written)} lines, of which {len(texts)} are there"


def judge_processes(sampler: Sampler, verdict: Verdict) -> None:
    """Checks that attempts never overlapped and that each learner was one process from start to end."""
    verdict.counts["samples of the process table"] = sampler.samples
    verdict.failures += sampler.overlaps
    for place, commands in sampler.commands.items():
        verdict.must(len(commands) == 1, f"{place} was {len(commands)} processes: {commands}")
    verdict.counts["learners"] = len(sampler.commands)


async def left_behind(home: Path, etcd_address: Address, jobs: JobStore, secrets: frozenset[str]) -> list[str]:
    """Returns a line for each leftover of ended jobs: processes, files, secrets, mounts, keys, reservations."""
    leftovers = [f"{entry.part} of {entry.place} (pid {entry.process.pid})" for entry in learner_processes(home)]
    leftovers += [f"folder {path}" for path in (home / "node").iterdir() if path.name != ".agent"]
    leftovers += [f"file {path}" for path in _temporary(home)]
    leftovers += [f"secret {name}" for name in sorted(secret_names(home) - secrets)]
    leftovers += [f"control group {path}" for path in _groups(home)]
    leftovers += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if f"{home}/node/" in line]
    status = EtcdStatusStore(etcd_address)
    try:
        leftovers += [f"etcd key {entry.key}" for entry in await status.list("/jobs/")]
    finally:
        await status.close()
    holding = await jobs.find(JobQuery(holding=True, deleted=True), limit=1000)
    untrimmed = await jobs.find(JobQuery(untrimmed=True, deleted=True), limit=1000)
    leftovers += [f"job {job.id} holds hardware" for job in holding]
    return leftovers + [f"history of {job.id} that was not copied" for job in untrimmed]


def _temporary(home: Path) -> Iterator[Path]:
    """Yields temporary files of writes and transfers that never finished."""
    for pattern in ("*.tmp", "run/*.tmp", "objects/.weft-staging/*", "secrets/.new/*", "uploads/*", "broker/*/[!.]*"):
        yield from (path for path in home.glob(pattern) if path.is_file() and path.parent.name != "control")


def secret_names(home: Path) -> frozenset[str]:
    """Returns the names of the files in the secret store."""
    return frozenset(path.name for path in (home / "secrets").iterdir())


def _groups(home: Path) -> list[Path]:
    """Returns learners' control groups below the folders that the node agent recorded."""
    note = home / "node" / ".agent" / "groups.json"
    places = json.loads(note.read_text())["places"] if note.exists() else []
    return [path for place in places for path in Path(place).iterdir() if path.is_dir()]


async def until_clean(
    home: Path, etcd_address: Address, jobs: JobStore, secrets: frozenset[str], *, timeout_s: float
) -> tuple[float, list[str]]:
    """Waits until nothing is left behind. Returns (seconds waited, leftovers)."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while left := await left_behind(home, etcd_address, jobs, secrets):
        if loop.time() - began > timeout_s:
            break
        await asyncio.sleep(0.25)
    return loop.time() - began, left

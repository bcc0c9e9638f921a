"""R14 on real stores, files and processes: a damaged object harms its own job only; the api never answers with a 5xx.

In memory, by the thousand: tests/simulation/test_poison.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.job import admitted
from services.local.commands import PLATFORM
from tests.promises import Promise
from tests.testbed.api import Api, running_api
from tests.testbed.live_files import live_files
from tests.testbed.mutations import Mutator
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually, until
from weft import Client
from weft._job import Job

SERVICES = ("api", "lcm", "guardian", "metrics", "node", "etcd")
SMALL = {"cpus": 0.2, "memory": "64MiB"}
DONE_S = HANG_S


def answered(response: httpx2.Response) -> None:
    assert response.status_code < 500, f"{response.request.method} {response.request.url}: {response.text}"


# --- the api over SQLite -------------------------------------------------------------


class Files:
    """The installation's SQLite files, which a test damages."""

    def __init__(self, home: Path, harm: Mutator) -> None:
        self.home, self.harm = home, harm
        self.sound: dict[tuple[str, str, str, tuple[Any, ...]], str] = {}

    def add(self, file: str, table: str, column: str, *keys: str) -> None:
        """Adds every row of a table to those that ``damage`` chooses from, with its present content."""
        select = f"SELECT {', '.join(keys)}, {column} FROM {table}"  # noqa: S608 - our own words
        where = " AND ".join(f"{key} = ?" for key in keys)
        update = f"UPDATE {table} SET {column} = ? WHERE {where}"  # noqa: S608 - as above
        self.sound |= {(file, update, table, tuple(key)): text for *key, text in self._rows(file, select)}

    def _rows(self, file: str, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        connection = apsw.Connection(str(self.home / file))
        try:
            connection.set_busy_timeout(10_000)
            return list(connection.execute(statement, values))
        finally:
            connection.close()

    def damage(self, spare: str) -> None:
        """Damages one row that does not contain ``spare`` in its key."""
        place = self.harm.random.choice([row for row in sorted(self.sound, key=str) if spare not in str(row[3])])
        self.harm.counts[place[2]] += 1
        text = self.harm.text(json.loads(self.sound[place]))
        self._rows(place[0], place[1], (text.encode("utf-8", "replace").decode(), *place[3]))


async def read_all(api: Api, victims: list[str], healthy: str) -> None:
    """Calls everything that needs no other service."""
    for path in ("/v1/jobs", "/v1/jobs?status=QUEUED", "/v1/queue", "/v1/cluster", "/v1/keys", "/v1/quarantine"):
        answered(await api.admin.get(path))
    for job in victims:
        for path in ("", "/history", "/explain", "/artifacts"):
            answered(await api.admin.get(f"/v1/jobs/{job}{path}"))
        answered(await api.admin.post(f"/v1/jobs/{job}/halt", headers={"Idempotency-Key": f"halt-{job}"}))
    listed = (await api.admin.get("/v1/jobs")).json()["jobs"]
    assert healthy in [job["id"] for job in listed]
    assert (await api.admin.get(f"/v1/jobs/{healthy}")).status_code == 200


@pytest.mark.promise("R14")
@pytest.mark.timeout(1800)
async def test_the_api_answers_with_damaged_documents_events_and_records(promise: Promise, tmp_path: Path) -> None:
    n = promise.n(short=20, long=2_000)
    harm = Mutator(14)
    async with running_api(tmp_path) as api:
        healthy = (await api.submit())["id"]
        victims = [(await api.submit())["id"] for _ in range(3)]
        for job in victims[1:]:
            await api.change(job, lambda job: admitted(job, placement={"worker-0": "local"}, dispatcher_term=1, now=5))
        for number in range(2):
            await api.key(f"user-{number}", "acme")
        await read_all(api, victims, healthy)
        for job_id in (*victims, healthy):
            job = await api.store.get(job_id)
            assert job is not None
            await api.store.append_history(job.id, job.tenant, job.history_tail)
        files, admin = Files(tmp_path, harm), api.admin_key.split("_")[1]
        files.add("jobs.sqlite", "jobs", "doc", "id")
        files.add("jobs.sqlite", "history", "event", "job", "seq")
        files.add("records.sqlite", "records", "body", "kind", "id")
        files.sound = {place: text for place, text in files.sound.items() if admin not in str(place[3])}
        for _ in range(n):
            files.damage(spare=healthy)
            await read_all(api, victims, healthy)
        assert (await api.submit())["status"] == "QUEUED"
    promise.kept(n, "mutations of documents, events and records on SQLite; no answer of the api was a 5xx")
    promise.saw("of these " + ", ".join(f"{count} {kind}" for kind, count in sorted(harm.counts.items())))


# --- the whole platform ----------------------------------------------------------------


class Damager:
    """Damages data of the victims while other jobs run."""

    def __init__(self, running: Platform, harm: Mutator, victims: list[str]) -> None:
        self.platform, self.harm, self.victims = running, harm, victims
        self.home = running.home.root
        self.documents = {job: self._document(job) for job in victims}

    def _document(self, job: str) -> Any:
        connection = apsw.Connection(str(self.home / "jobs.sqlite"))
        ((text,),) = connection.execute("SELECT doc FROM jobs WHERE id = ?", (job,))
        connection.close()
        return json.loads(str(text))

    async def damage(self) -> None:
        """Damages one thing of one victim."""
        job = self.harm.random.choice(self.victims)
        kinds: dict[str, Callable[[str], Any]] = {
            "job document": self._job_document,
            "node file": self._node_file,
            "metric file": self._metric_file,
        }
        kind = self.harm.random.choice([*kinds, "etcd value"])
        self.harm.counts[kind] += 1
        if kind == "etcd value":
            await self._etcd_value(job)
        else:
            kinds[kind](job)

    def _job_document(self, job: str, text: str | None = None) -> None:
        made = self.harm.text(self.documents[job]) if text is None else text
        connection = apsw.Connection(str(self.home / "jobs.sqlite"))
        connection.set_busy_timeout(10_000)
        connection.execute("UPDATE jobs SET doc = ? WHERE id = ?", (made.encode("utf-8", "replace").decode(), job))
        connection.close()

    def restore(self) -> None:
        """Writes the sound documents back."""
        for job, document in self.documents.items():
            self._job_document(job, json.dumps(document))

    def _node_file(self, job: str) -> None:
        present = [
            path
            for path in live_files(self.home / "node" / job)
            if path.suffix == ".json" and "job" not in path.relative_to(self.home / "node" / job).parts
        ]
        if not present:
            return
        path = self.harm.random.choice(sorted(present))
        temporary = path.with_name(f".{path.name}.poison")
        content = self.harm.content({"schema": 1, "pid": 1, "start_time": 1, "boot_id": "b", "time": 5, "run": 1})
        with suppress(FileNotFoundError):  # the agent has removed the folder meanwhile
            temporary.write_bytes(content)
            temporary.replace(path)

    def _metric_file(self, job: str) -> None:
        present = [path for path in (self.home / "metrics" / job).glob("*") if path.is_file()]
        if not present:
            return
        path, at = self.harm.random.choice(sorted(present)), self.harm.random.randrange(200)
        content = self.harm.random.randbytes(64)
        with suppress(FileNotFoundError), path.open("r+b") as file:  # the service removes a journal that it has closed
            file.seek(at)
            file.write(content)

    async def _etcd_value(self, job: str) -> None:
        status = EtcdStatusStore(self.platform.home.address("etcd"), timeout_s=HANG_S)
        try:
            key = self.harm.random.choice(
                (
                    f"/jobs/{job}/attempt",
                    f"/jobs/{job}/learners/worker-0",
                    f"/jobs/{job}/guardian",
                    f"/jobs/{job}/x/y/z",
                    "/jobs/x",
                    "/members/guardian/",
                    "/members/lcm/nobody",
                )
            )
            await status.put(key, self.harm.text({"attempt": 1, "learners": 1, "name": "worker-0", "seq": 3})[:60_000])
        finally:
            await status.close()


def spec(command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "poison", "command": command, "resources": SMALL, "grace": "1s", **fields}


def noisy(harm: Mutator) -> str:
    """A command that prints, and reports as metrics, malformed lines."""
    lines = b"\n".join([harm.line()[:3_000] for _ in range(20)] + [b"the end"])
    text = base64.b64encode(lines).decode()
    return f"echo {text} | base64 -d; echo; echo {text} | base64 -d >> $JOB_STATE_DIR/metrics.jsonl; sleep 0.2"


def read_job(client: httpx2.Client, job: str) -> None:
    for path in ("/v1/jobs", "/v1/queue", "/v1/cluster", "/v1/quarantine"):
        answered(client.get(path))
    for path in ("", "/history", "/explain", "/progress", "/logs", "/metrics", "/metrics?series=true", "/artifacts"):
        answered(client.get(f"/v1/jobs/{job}{path}"))


@pytest.mark.promise("R14")
@pytest.mark.timeout(3600)
def test_healthy_jobs_complete_while_all_data_beside_them_is_damaged(promise: Promise) -> None:
    n = promise.n(short=10, long=400)
    harm = Mutator(41)
    waits = "while [ ! -e $JOB_STATE_DIR/on ]; do sleep 0.1; done; echo done"
    with (
        platform({"WEFT_NODE_CPUS": "4", "WEFT_QUARANTINE_S": "1"}) as running,
        Client(running.url, running.key) as client,
    ):
        over = client.jobs.submit(spec(noisy(harm))).wait(DONE_S)
        assert (over.status, "the end" in [line.text for line in over.logs()]) == ("COMPLETED", True)
        healthy, victim = client.jobs.submit(spec(waits, learners=2)), client.jobs.submit(spec("exec sleep 3600"))
        for job in (healthy, victim):
            assert eventually(lambda job=job: _runs(job), DONE_S)  # type: ignore[misc]
        before = {service: running.process(service) for service in SERVICES}
        damager = Damager(running, harm, [over.id, victim.id])
        headers = {"Authorization": f"Bearer {running.key}"}
        with httpx2.Client(base_url=running.url, headers=headers, trust_env=False, timeout=HANG_S) as api:
            for _ in range(n):
                asyncio.run(damager.damage())
                read_job(api, harm.random.choice([over.id, victim.id, healthy.id]))
            damager._job_document(over.id, "{")
            asyncio.run(until(lambda: asyncio.to_thread(_held, running, over.id), DONE_S))
            for folder in (running.home / "node" / healthy.id / "1").glob("worker-*"):
                (folder / "job" / "on").touch()
            healthy.wait(DONE_S)
            assert (healthy.status, healthy.attempt) == ("COMPLETED", 1)
            following = client.jobs.submit(spec("true")).wait(DONE_S)
            assert (following.status, following.attempt) == ("COMPLETED", 1)
            assert {service: running.process(service) for service in SERVICES} == before
            damager.restore()
            asyncio.run(until(lambda: asyncio.to_thread(_free, running, over.id), DONE_S))
            victim.refresh().kill()
            victim.wait(DONE_S)
            assert eventually(lambda: victim.refresh().at_rest, DONE_S)
            assert running.processes_of(victim.id) == []
    promise.kept(n, "mutations on the running platform: documents, etcd, node and metric files, log lines")
    promise.saw("of these " + _few(harm.counts))


def _runs(job: Job) -> bool:
    return job.refresh().status == "PROCESSING"


def _held(running: Platform, job: str) -> bool:
    """True if `weft status` names the job, and `weft doctor` says what to do."""
    held = (PLATFORM.status(str(running.home.root))["quarantine"] or {"held": []})["held"]
    (line,) = [check for check in PLATFORM.doctor(str(running.home.root)) if check["check"] == "quarantine"]
    named = any((entry["kind"], entry["job"]) == ("job", job) for entry in held)
    return named and not line["ok"] and job in line["detail"] and "backup" in line["fix"]


def _free(running: Platform, job: str) -> bool:
    quarantine = PLATFORM.status(str(running.home.root))["quarantine"]
    if quarantine is None:
        return False
    return all((entry["kind"], entry["job"]) != ("job", job) for entry in quarantine["held"])


def _few(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))

"""R17: a backup that is made while jobs run, restored on an empty platform, has all that the api showed before."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.local.commands import PLATFORM
from tests.promises import Promise
from tests.testbed.platform import Platform, empty_platform, platform
from tests.testbed.s3 import S3
from tests.waiting import HANG_S, eventually
from weft import Client, Job

SMALL = {"cpus": 0.5, "memory": "64MiB"}
Seen = dict[str, Any]
"""What the api shows, by what it is and of whom."""

TRAINS = """
for n in 1 2 3 4 5 6 7 8; do
  echo "step $n"; echo '{"name": "loss", "step": '$n', "value": 0.'$n'}' >> "$LOG_DIR/m.jsonl"
done
cat train.sh; echo model > "$RESULT_DIR/model.bin"; echo 8 > "$CHECKPOINT_DIR/n"
"""
FAILS_ONCE = """
n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0); echo "from $n"
if [ "$n" = 0 ]; then echo 1 > "$CHECKPOINT_DIR/n"; exit 3; fi
if [ "$WEFT_ATTEMPT" = 2 ]; then while :; do echo "at work"; sleep 0.02; done; fi
"""


@dataclass
class First:
    """The platform that was backed up, and what it showed before and after."""

    file: Path
    key: str
    users_key: str
    before: Seen
    after: Seen
    jobs: Mapping[str, str]
    """What it is for -> id."""
    acknowledged: list[str]
    """Before the backup began."""


def snapshot(url: str, key: str) -> Seen:
    """The secrets, and everything of every job."""
    content: Seen = {}
    with Client(url, key) as client:
        content |= {f"secret {secret['name']}": secret for secret in client.secrets.list()}
        for job in client.jobs.list():
            content[f"job {job.id}"] = client.jobs.document(job.id)
            content |= {f"event {job.id} {event.seq}": event for event in job.history()}
            content |= {f"line {job.id} {line.seq}": line for line in job.logs()}
            content |= {f"point {job.id} {point.seq}": point for point in job.points()}
            for file in job.artifacts():
                content[f"file {job.id} {file.path}"] = _digest(url, key, f"/v1/jobs/{job.id}/artifacts/{file.path}")
    return content


def _digest(url: str, key: str, path: str) -> str:
    return hashlib.sha256(_ask(url, key, path).content).hexdigest()


def _key_for(url: str, key: str, user: str) -> str:
    wanted = {"name": "laptop", "user": user, "tenant": "acme"}
    return str(_ask(url, key, "/v1/keys", wanted).json()["key"])


def _ask(url: str, key: str, path: str, body: dict[str, str] | None = None) -> httpx2.Response:
    with httpx2.Client(trust_env=False, timeout=HANG_S, headers={"Authorization": f"Bearer {key}"}) as http:
        answer = http.get(url + path) if body is None else http.post(url + path, json=body)
    return answer.raise_for_status()


def _submit(client: Client, code: Path) -> dict[str, Job]:
    """Ended well, ended badly, deleted, at work for the second time, waiting for room."""
    metrics = [{"type": "jsonl", "path": "m.jsonl"}]
    jobs = {
        "trained": client.jobs.submit(
            {"name": "a", "command": TRAINS, "resources": SMALL, "metrics": metrics}, code=code
        ),
        "failed": client.jobs.submit({"name": "b", "command": "echo oh; exit 7", "resources": SMALL}),
        "deleted": client.jobs.submit({"name": "c", "command": "echo gone", "resources": SMALL}),
    }
    for job in jobs.values():
        job.wait(HANG_S)
    jobs["deleted"].delete()
    again = {"max": 1, "backoff": "100ms"}
    jobs["at work"] = client.jobs.submit({"name": "d", "command": FAILS_ONCE, "resources": SMALL, "retries": again})
    eventually(lambda: sum(line.text == "at work" for line in jobs["at work"].logs()) > 5)
    whole = {"cpus": 2, "memory": "1MiB"}
    jobs["waiting"] = client.jobs.submit({"name": "e", "command": "echo room", "resources": whole})
    return jobs


@pytest.fixture
def first(tmp_path: Path) -> First:
    """Backed up while one trains and somebody submits; then gone for good."""
    folder = tmp_path
    (folder / "code").mkdir()
    (folder / "code" / "train.sh").write_text("# of the code\n")
    with platform({"WEFT_NODE_CPUS": "2"}) as first_platform, Client(first_platform.url, first_platform.key) as client:
        jobs = _submit(client, folder / "code")
        client.secrets.set("s3", {"access_key": "AKIA", "secret_key": "wJal"})
        users_key = _key_for(first_platform.url, first_platform.key, "ada")
        before, acknowledged, enough = snapshot(first_platform.url, first_platform.key), [], threading.Event()

        def submit() -> None:
            with Client(first_platform.url, first_platform.key) as another:
                while not enough.is_set():
                    spec = {"name": "f", "command": "true", "resources": SMALL}
                    acknowledged.append(another.jobs.submit(spec).id)

        submitting = threading.Thread(target=submit)
        submitting.start()
        try:
            eventually(lambda: len(acknowledged) >= 3)
            so_far = list(acknowledged)
            PLATFORM.backup(str(folder / "b"), str(first_platform.home.root), report=lambda _: None)
        finally:
            enough.set()
            submitting.join()
        after = snapshot(first_platform.url, first_platform.key)
        ids = {what: job.id for what, job in jobs.items()}
        return First(folder / "b", first_platform.key, users_key, before, after, ids, so_far)


def _servers(request: pytest.FixtureRequest) -> dict[str, str]:
    s3: S3 = request.getfixturevalue("s3")
    return {"WEFT_JOB_STORE": request.getfixturevalue("mongo_uri"), **s3.settings("restored")}


@pytest.mark.promise("R17")
def test_restored_platform_shows_everything_the_first_one_showed(
    first: First, promise: Promise, request: pytest.FixtureRequest
) -> None:
    """On the servers' stores, and in the long run on another embedded set, too."""
    compared = 0
    for stores in (_servers(request), dict[str, str]())[: promise.n(short=1, long=2)]:
        with empty_platform({"WEFT_NODE_CPUS": "2", **stores}) as restored:
            with restored.environment():
                PLATFORM.restore(str(first.file), str(restored.home.root))
            restored.up()
            compared += _compare(first, restored)
    promise.kept(compared, "jobs, events, lines, points and files of a backup made under load, compared by the api")


def _compare(first: First, restored: Platform) -> int:
    """How many things were compared, all of them equal; then all jobs that were not at rest end well."""
    assert restored.key == first.key
    now, at_work = snapshot(restored.url, first.key), first.jobs["at work"]
    expected = {name: value for name, value in first.before.items() if not _of(name, at_work, first.jobs["waiting"])}
    assert {name: now.get(name) for name in expected} == expected
    # Of what was at work: all that was seen before, and nothing that was not there.
    grew = {name: value for name, value in first.before.items() if _of(name, at_work) and not name.startswith("job ")}
    assert {name: now.get(name) for name in grew} == grew
    lines = {name: value for name, value in now.items() if name.startswith(f"line {at_work} ") and value.attempt < 3}
    assert lines.items() <= first.after.items()
    assert all(f"job {job_id}" in now for job_id in first.acknowledged)
    assert f"job {first.jobs['deleted']}" not in now

    assert _ask(restored.url, first.users_key, "/v1/whoami").json()["user"] == "ada"
    with Client(restored.url, restored.key) as client:
        job = client.jobs.get(at_work).wait(HANG_S)
        assert (job.status, job.attempt) == ("COMPLETED", 3)
        assert [line.text for line in job.logs() if line.attempt == 3] == ["from 1"]
        reasons = [(event.to, event.actor, event.reason) for event in job.history()]
        assert ("QUEUED", "restore", "Restored") in reasons
        for job_id in (first.jobs["waiting"], *first.acknowledged):
            assert client.jobs.get(job_id).wait(HANG_S).status == "COMPLETED"
    return len(expected) + len(grew) + len(first.acknowledged)


def _of(name: str, *ids: str) -> bool:
    return name.split()[1] in ids

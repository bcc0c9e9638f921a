"""Data from a tenant's own S3 store, on a whole platform with a real S3 server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.errors import PermissionDenied
from services.core.runtime.learner_folder import LearnerFolder
from services.helper.metrics_client import IntakeClient
from tests.testbed.live_files import files_with
from tests.testbed.platform import Platform, platform
from tests.testbed.s3 import REGION, S3
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._errors import InvalidSpec
from weft._job import Job

DONE_S = 2 * HANG_S
PHOTOS = "photos"
BUCKET = "photos"
OBJECTS = {"set/a.txt": b"one", "set/deep/b c+%ü.txt": b"two", "set/empty": b"", "other/x": b"foreign", "set2/y": b"no"}


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    with platform({"WEFT_NODE_CPUS": "1", "WEFT_HTTP_ALLOW": "127.0.0.0/8"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as client:
        yield client


@pytest.fixture
def bucket(s3: S3) -> Path:
    s3.bucket(BUCKET)
    for key, content in OBJECTS.items():
        path = s3.data / BUCKET / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return s3.data / BUCKET


def set_secret(client: Client, s3: S3, name: str = "photos", **changes: str) -> None:
    keys = s3.credentials
    client.secrets.set(name, {"access_key": keys.access_key, "secret_key": keys.secret_key, **changes})


def a_spec(s3: S3, command: str, *, path: str = "", secret: str = PHOTOS, **store: str) -> dict[str, Any]:
    where = {"url": f"s3://{BUCKET}/set", "endpoint": s3.endpoint, "region": REGION, "secret": secret, **store}
    return {
        "name": "photos",
        "command": command,
        "resources": {"cpus": 1, "memory": "256MiB"},
        "data_stores": [{"id": "d", "type": "s3", **where}],
        "inputs": [{"store": "d", "path": path, "mount": "in"}],
    }


def printed(job: Job) -> list[str]:
    return [line.text for line in job.logs()]


def canaries(s3: S3) -> list[bytes]:
    """The values of the secret, and what a signed URL has."""
    return [s3.credentials.secret_key.encode(), s3.credentials.access_key.encode(), b"X-Amz-Signature="]


def test_learner_finds_the_objects_and_the_secret_is_nowhere(
    client: Client, weft_up: Platform, s3: S3, bucket: Path
) -> None:
    set_secret(client, s3)
    # Where learners see all processes of the machine, one of them may end before it is read: that is no failure.
    others = "cat /proc/*/cmdline 2> /dev/null || true"
    command = f"cd $DATA_DIR && find . -type f | LC_ALL=C sort && cat in/a.txt 'in/deep/b c+%ü.txt'; env; {others}"
    job = client.jobs.submit(a_spec(s3, command)).wait(DONE_S)
    assert (job.status, job.message) == ("COMPLETED", "")
    text = printed(job)
    assert text[:4] == ["./in/a.txt", "./in/deep/b c+%ü.txt", "./in/empty", text[3]]
    assert text[3].startswith("onetwo")
    secrets = canaries(s3)
    assert not any(word.decode() in line for line in text for word in secrets)
    assert files_with(weft_up.home.root, secrets) == []
    assert not any(word.decode() in str(job.document) for word in secrets)


def test_one_object_is_fetched_by_its_path(client: Client, s3: S3, bucket: Path) -> None:
    set_secret(client, s3)
    job = client.jobs.submit(a_spec(s3, "cat $DATA_DIR/in/a.txt", path="a.txt")).wait(DONE_S)
    assert (job.status, printed(job)) == ("COMPLETED", ["one"])
    missing = client.jobs.submit(a_spec(s3, "true", path="deep")).wait(DONE_S)
    assert (missing.status, missing.reason) == ("FAILED", "DataNotFound")
    assert "with a final '/'" in missing.message


def test_changed_object_is_fetched_again(client: Client, s3: S3, bucket: Path) -> None:
    set_secret(client, s3)
    command = "cat $DATA_DIR/in/a.txt"
    assert printed(client.jobs.submit(a_spec(s3, command)).wait(DONE_S)) == ["one"]
    (bucket / "set" / "a.txt").unlink()
    (bucket / "set" / "a.txt").write_bytes(b"changed")
    assert printed(client.jobs.submit(a_spec(s3, command)).wait(DONE_S)) == ["changed"]


def test_submit_names_a_secret_that_cannot_be_used(client: Client, s3: S3) -> None:
    client.secrets.set("half", {"access_key": "a"})
    for name, says in (("nowhere", "has no secret 'nowhere'"), ("half", "has no secret_key")):
        with pytest.raises(InvalidSpec) as refused:
            client.jobs.submit(a_spec(s3, "true", secret=name))
        assert "data_stores.0.secret" in str(refused.value)
        assert says in str(refused.value)
        assert f"weft secret set {name}" in str(refused.value)


def test_job_whose_secret_was_replaced_by_a_wrong_one_says_so(client: Client, s3: S3, bucket: Path) -> None:
    set_secret(client, s3, "changed", secret_key="wrong-canary")
    job = client.jobs.submit(a_spec(s3, "true", secret="changed")).wait(DONE_S)
    assert (job.status, job.reason) == ("FAILED", "SecretInvalid")
    assert "weft secret set changed" in job.message
    assert "wrong-canary" not in job.message
    assert s3.credentials.access_key not in job.message


def test_job_whose_secret_was_deleted_while_it_waited_says_so(client: Client, s3: S3, bucket: Path) -> None:
    set_secret(client, s3, "gone")
    first = client.jobs.submit(a_spec(s3, "exec sleep 600", secret="gone"))
    eventually(lambda: first.refresh().status == "PROCESSING", DONE_S)
    waiting = client.jobs.submit(a_spec(s3, "true", secret="gone"))
    client.secrets.delete("gone")
    first.kill()
    waiting.wait(DONE_S)
    assert (waiting.status, waiting.reason) == ("FAILED", "SecretInvalid")
    assert "there is no secret 'gone' any more" in waiting.message


def test_helper_gets_urls_for_the_inputs_of_its_job_only(
    client: Client, weft_up: Platform, s3: S3, bucket: Path
) -> None:
    set_secret(client, s3)
    job = client.jobs.submit(a_spec(s3, "exec sleep 600"))
    eventually(lambda: job.refresh().status == "PROCESSING", DONE_S)
    (folder,) = (path.parent for path in (weft_up.home / "node" / job.id).rglob("learner.json"))
    assignment = LearnerFolder(folder).assignment()

    async def sign(*reads: tuple[str, str]) -> list[str]:
        intake = IntakeClient(Path(assignment.addresses_file), assignment.learner.token)
        try:
            answers = []
            for mount, key in reads:
                try:
                    answers.append((await intake.sign_data(mount, key, "")).partition("?")[0])
                except PermissionDenied as denied:
                    answers.append(denied.message)
            return answers
        finally:
            await intake.close()

    foreign = [("in", "other/x"), ("in", "set2/y"), ("in", "set"), ("out", "set/a.txt"), ("", ""), ("d", "")]
    mine = asyncio.run(sign(("in", "set/a.txt"), ("in", "")))
    assert mine == [f"{s3.endpoint}/{BUCKET}/set/a.txt", f"{s3.endpoint}/{BUCKET}"]
    assert all(answer.startswith(("this object is in no", "the job has no")) for answer in asyncio.run(sign(*foreign)))
    assert files_with(weft_up.home.root, canaries(s3)) == [], "while it runs"
    job.kill().wait(DONE_S)

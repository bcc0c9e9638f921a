"""The platform while its S3 server is away: requests that need objects get 503 with Retry-After; running jobs go on."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.promises import Promise
from tests.testbed.platform import Platform, platform
from tests.testbed.s3 import S3
from tests.waiting import HANG_S, eventually
from weft import Client

SMALL = {"cpus": 0.5, "memory": "64MiB"}
LONG = {
    "name": "long",
    "learners": 2,
    "resources": SMALL,
    "command": "trap '' TERM; echo started; until [ -e $JOB_STATE_DIR/stop-requested ]; do sleep 0.1; done;"
    " echo x > $RESULT_DIR/x",
    "grace": "60s",
    "store_timeout": "10m",
}
LARGE = 20 * 2**20
STORES = {
    "name": "stores",
    "resources": SMALL,
    "store_timeout": "10m",
    "command": f"head -c {LARGE} /dev/urandom > $RESULT_DIR/large; sha256sum < $RESULT_DIR/large",
}

HAS_RUN = {"PROCESSING", "STORING", "COMPLETED"}


def code(number: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.sh", f"echo {number}\n")
    return out.getvalue()


def submit(weft: Platform, number: int) -> httpx2.Response:
    """Submits with code that the store does not have."""
    spec = {"name": "short", "command": "sh train.sh", "code": ".", "resources": SMALL}
    files: dict[str, Any] = {"spec": ("spec.json", json.dumps(spec), "application/json"), "code": code(number)}
    return httpx2.post(
        f"{weft.url}/v1/jobs",
        files=files,
        headers={"Authorization": f"Bearer {weft.key}"},
        timeout=HANG_S,
        trust_env=False,
    )


@pytest.mark.promise("R13")
@pytest.mark.timeout(0)
def test_submissions_are_refused_and_jobs_run_on_while_the_object_store_is_away(
    own_s3: S3, promise: Promise, tmp_path: Path
) -> None:
    rounds = promise.n(short=2, long=100)
    back: list[float] = []
    with platform(own_s3.settings("weft")) as weft, Client(weft.url, weft.key) as client:
        long = client.jobs.submit(LONG)
        eventually(lambda: long.refresh().status == "PROCESSING")
        eventually(lambda: len(list(long.logs())) == 2)
        learners = weft.learner_pids(long.id)
        for number in range(rounds):
            storing = client.jobs.submit(STORES)
            eventually(lambda: list(storing.logs()))  # noqa: B023 - called in this round only
            eventually(lambda: storing.refresh().status in HAS_RUN)  # noqa: B023 - its status follows its output
            own_s3.kill()
            refused = submit(weft, number)
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["code"] == "unavailable"
            assert [line.text for line in long.logs()] == ["started", "started"]
            assert storing.refresh().status in HAS_RUN
            own_s3.start()
            began = time.monotonic()
            made = eventually(lambda: _accepted(submit(weft, number)))  # noqa: B023
            back.append(time.monotonic() - began)
            assert client.jobs.get(made["id"]).wait(HANG_S).status == "COMPLETED"
            assert [line.text for line in client.jobs.get(made["id"]).logs()] == [str(number)]
            _has_stored_all(client, storing.id, tmp_path / str(number))
            assert (long.refresh().status, long.attempt) == ("PROCESSING", 1)
            assert weft.learner_pids(long.id) == learners
        long.halt().wait(HANG_S)
        assert (long.refresh().status, long.attempt) == ("HALTED", 1)
        long.download(tmp_path / "long")
        assert len([path for path in (tmp_path / "long").rglob("x") if path.read_text() == "x\n"]) == 2
    assert min(back) < 5  # each was waited for; how long the slowest took is told, for a machine may be busy
    promise.kept(rounds, "outages of the object store: 503 + Retry-After, nothing that runs is touched")
    promise.saw(f"submits are taken again {max(back):.2f} s after the store's return at most (promised: 5 s)")


def _accepted(answer: httpx2.Response) -> dict[str, str]:
    """The job; empty if the api answers 503."""
    if answer.status_code == 503:
        return {}
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def _has_stored_all(client: Client, job_id: str, to: Path) -> None:
    job = client.jobs.get(job_id).wait(HANG_S)
    assert (job.status, job.attempt, job.message) == ("COMPLETED", 1, "")
    job.download(to)
    (large,) = to.rglob("large")
    digest = hashlib.sha256(large.read_bytes()).hexdigest()
    assert [line.text for line in job.logs()] == [f"{digest}  -"]

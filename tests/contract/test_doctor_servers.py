"""`weft doctor` on the servers of an installation: a line with the fault and the advice."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from services.core.adapters.celery.app import QUEUE
from services.core.runtime.home import Home
from services.local.doctor import examine
from tests.testbed.ferretdb import FerretDB
from tests.testbed.hints import Carrier
from tests.testbed.server import free_port


def finding(check: str, home: Path) -> tuple[bool, str]:
    """The result of a check and its line with the advice."""
    entry = next(candidate for candidate in examine(Home(home)) if candidate["check"] == check)
    line = " -> ".join(filter(None, [entry["detail"], entry["fix"]]))
    assert "\n" not in line
    assert "hidden" not in line
    return entry["ok"], line


def test_doctor_accepts_a_missing_home_and_does_not_create_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert finding("broker", home) == (True, f"a folder ({home / 'broker'})")
    assert finding("job store", home) == (True, f"files ({home / 'jobs.sqlite'})")
    assert not home.exists()


def test_doctor_accepts_every_working_broker(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", carrier.url)
    ok, line = finding("broker", carrier.home)
    assert ok, line
    assert carrier.kind in line


@pytest.mark.parametrize("scheme", ["amqp", "redis"])
def test_doctor_names_an_unavailable_broker_without_its_password(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("WEFT_BROKER_URL", f"{scheme}://weft:hidden@127.0.0.1:{port}/0")
    ok, line = finding("broker", tmp_path)
    assert not ok
    assert f"127.0.0.1:{port}" in line
    assert "start the broker of WEFT_BROKER_URL" in line


@pytest.mark.parametrize("carrier", ["rabbitmq", "redis"], indirect=True)
def test_doctor_reports_refused_broker_credentials(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, place = carrier.url.rpartition("@") if "@" in carrier.url else carrier.url.rpartition("//")
    scheme = carrier.url.partition(":")[0]
    monkeypatch.setenv("WEFT_BROKER_URL", f"{scheme}://stranger:hidden@{place}")
    ok, line = finding("broker", carrier.home)
    assert not ok
    assert "refuses the user or password" in line
    assert "correct WEFT_BROKER_URL" in line


@pytest.mark.parametrize("carrier", ["rabbitmq"], indirect=True)
def test_doctor_reports_a_foreign_queue_of_our_name(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", carrier.url)
    with carrier.channel() as channel:
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=False, auto_delete=False)
    try:
        ok, line = finding("broker", carrier.home)
        assert not ok
        assert f"has a queue {QUEUE}" in line
        assert "remove it" in line
    finally:
        with carrier.channel(declared=False) as channel:
            channel.queue_delete(QUEUE)


def test_doctor_reports_an_unsupported_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", "memory://hidden")
    ok, line = finding("broker", tmp_path)
    assert not ok
    assert "begins neither with" in line


def test_doctor_refuses_ferretdb_as_job_store(
    ferretdb: FerretDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", f"{ferretdb.uri}doctor")
    ok, line = finding("job store", tmp_path)
    assert not ok
    assert "of 16 compare-and-sets of one revision win" in line
    assert "operator-guide" in line


def test_doctor_accepts_mongodb_as_job_store(mongo_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", mongo_uri)
    monkeypatch.setattr("services.core.adapters.mongo.connection.TIMEOUT_S", 60)  # the machine of the tests may be busy
    assert finding("job store", tmp_path) == (True, "MongoDB: one winner of each race, linearizable reads")


def test_doctor_reports_an_unavailable_mongodb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", f"mongodb://weft:hidden@127.0.0.1:{free_port()}/")
    ok, line = finding("job store", tmp_path)
    assert not ok
    assert "start the server of WEFT_JOB_STORE" in line
    gc.collect()  # a leaked socket warns here, not in a later test

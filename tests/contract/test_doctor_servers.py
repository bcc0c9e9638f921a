"""`weft doctor` on the servers of an installation: a line with the fault and the advice."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
from redis import Redis

from services.core.adapters.celery.app import QUEUE
from services.core.adapters.mongo.describing import step_down
from services.core.domain.errors import WeftError
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings
from services.local.conformance import CHECKS, FAIL, NOT_APPLICABLE, PASS, Check, Subject
from services.local.conformance import examine as conformance_checks
from services.local.doctor import examine
from tests.testbed.ferretdb import FerretDB
from tests.testbed.hints import Carrier
from tests.testbed.server import free_port
from tests.waiting import HANG_S


def finding(check: str, home: Path) -> tuple[bool, str]:
    """The result of a check and its line with the advice."""
    entry = next(candidate for candidate in examine(Home(home)) if candidate["check"] == check)
    line = " -> ".join(filter(None, [entry["detail"], entry["fix"]]))
    assert "\n" not in line
    assert "hidden" not in line
    return entry["ok"], line


def conformance(home: Path, check: str) -> list[Check]:
    """The results of one check of `weft conformance`."""
    subject = Subject(Settings(home=home), f"http://127.0.0.1:{free_port()}", "weft_k_s", within_s=1)
    checks = conformance_checks(subject, skip=[name for name in CHECKS if name != check], report=lambda _: None)
    return [result for result in checks if result.detail != "left out"]


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that answer, whatever they answer, may take as long as a busy machine needs."""
    for name in (
        "mongo.connection.TIMEOUT_S",
        "celery.app._CONNECT_S",
        "celery.app._SENDER_S",
        "celery.check._DELIVERY_S",
    ):
        monkeypatch.setattr(f"services.core.adapters.{name}", HANG_S)


def test_doctor_accepts_a_missing_home_and_does_not_create_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert finding("broker", home) == (True, f"a folder ({home / 'broker'})")
    assert finding("job store", home) == (True, f"files ({home / 'jobs.sqlite'})")
    assert not home.exists()


def test_doctor_says_what_to_do_about_a_folder_of_hints_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "broker").write_text("a file in the place of the folder")
    ok, line = finding("broker", tmp_path)
    assert not ok
    assert "make it a folder of the user that runs Weft" in line


@pytest.mark.usefixtures("long_timeouts")
@pytest.mark.parametrize("carrier", ["redis"], indirect=True)
def test_doctor_says_what_to_do_about_a_redis_with_other_data_under_our_names(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", carrier.url)
    with Redis.from_url(carrier.url) as client:
        client.delete(QUEUE)
        client.set(QUEUE, "no list")
        try:
            ok, line = finding("broker", carrier.home)
        finally:
            client.delete(QUEUE)
    assert not ok
    assert "takes no hints" in line
    assert "name a primary with free memory in WEFT_BROKER_URL" in line


@pytest.mark.usefixtures("long_timeouts")
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


@pytest.mark.usefixtures("long_timeouts")
@pytest.mark.parametrize("carrier", ["rabbitmq", "redis"], indirect=True)
def test_doctor_reports_refused_broker_credentials(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, place = carrier.url.rpartition("@") if "@" in carrier.url else carrier.url.rpartition("//")
    scheme = carrier.url.partition(":")[0]
    monkeypatch.setenv("WEFT_BROKER_URL", f"{scheme}://stranger:hidden@{place}")
    ok, line = finding("broker", carrier.home)
    assert not ok
    assert "refuses the user or password" in line
    assert "name a user in WEFT_BROKER_URL that may configure, write and read" in line
    assert "correct WEFT_BROKER_URL" in line


@pytest.mark.usefixtures("long_timeouts")
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


@pytest.mark.usefixtures("long_timeouts")
def test_doctor_refuses_ferretdb_as_job_store(
    ferretdb: FerretDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", f"{ferretdb.uri}doctor")
    ok, line = finding("job store", tmp_path)
    assert not ok
    assert "of 16 compare-and-sets of one revision win" in line
    assert "operator-guide" in line


@pytest.mark.usefixtures("long_timeouts")
def test_doctor_accepts_mongodb_as_job_store(mongo_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", mongo_uri)
    assert finding("job store", tmp_path) == (True, "MongoDB: one winner of each race, linearizable reads")


def test_doctor_reports_an_unavailable_mongodb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", f"mongodb://weft:hidden@127.0.0.1:{free_port()}/")
    ok, line = finding("job store", tmp_path)
    assert not ok
    assert "start the server of WEFT_JOB_STORE" in line
    gc.collect()  # a leaked socket warns here, not in a later test


@pytest.mark.usefixtures("long_timeouts")
@pytest.mark.parametrize("carrier", ["rabbitmq", "redis"], indirect=True)
def test_conformance_sends_a_hint_through_the_broker_and_leaves_none(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", carrier.url)
    waiting = carrier.waiting()
    (broker,) = conformance(carrier.home, "broker")
    assert (broker.verdict, broker.fix) == (PASS, ""), broker
    assert re.fullmatch(rf"{carrier.kind} \(.*\) delivered a hint in \d+ ms", broker.detail)
    assert carrier.waiting() == waiting


def test_conformance_fails_for_a_broker_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BROKER_URL", f"redis://:hidden@127.0.0.1:{free_port()}/0")
    (broker,) = conformance(tmp_path, "broker")
    assert (broker.verdict, broker.fix) == (FAIL, 'see docs/operator-guide.md, "Brokers"')
    assert "hidden" not in broker.detail


def test_conformance_asks_no_broker_where_hints_go_without_one(tmp_path: Path) -> None:
    (broker,) = conformance(tmp_path, "broker")
    assert (broker.verdict, broker.detail) == (NOT_APPLICABLE, "hints go without a broker")


@pytest.mark.usefixtures("long_timeouts")
def test_conformance_says_that_a_mongodb_without_replica_set_has_no_fail_over(
    mongo_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_JOB_STORE", mongo_uri)
    store, fail_over = conformance(tmp_path, "job store")
    assert (store.check, store.verdict) == ("job store", PASS), store
    assert (fail_over.check, fail_over.verdict) == ("job store fail-over", NOT_APPLICABLE)
    assert re.fullmatch(r"127\.0\.0\.1:\d+ is no replica set: jobs wait while it restarts", fail_over.detail)


async def test_a_refused_step_down_is_an_error_at_once(mongo_uri: str) -> None:
    with pytest.raises(WeftError, match="MongoDB"):
        await step_down(mongo_uri)

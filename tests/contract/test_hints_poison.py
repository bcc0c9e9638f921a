"""Invalid messages in each broker: dropped, logged, counted and never redelivered."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from services.core.adapters.celery.app import QUEUE, TASK
from services.core.adapters.celery.broker import RABBITMQ
from services.core.adapters.celery.hints import CeleryHints
from services.core.adapters.celery.poison import AT_MOST_BYTES
from tests.promises import Promise
from tests.testbed.hints import Carrier, Service, Worker, arrives
from tests.waiting import HANG_S, until

HEADERS = {"task": TASK, "id": "1", "lang": "py"}
BODY = [["submitted", "poisoned", ""], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
Message = tuple[str | bytes, dict[str, Any], str]


def message(body: Any = BODY, content_type: str = "application/json", **headers: Any) -> Message:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return text, {key: value for key, value in {**HEADERS, **headers}.items() if value is not None}, content_type


MESSAGES: dict[str, Message] = {
    "not JSON": message("hello"),
    "not even text": message(b"\xff\xfe\x00"),
    "JSON of another form": message({"topic": "submitted"}),
    "nothing": message(""),
    "null": message("null"),
    "nested deeper than can be read": message("[" * 5_000 + "]" * 5_000),
    "pickled": message(b"\x80\x04N.", "application/x-python-serialize"),
    "yaml": message("a: 1", "application/x-yaml"),
    "no task": message(task=None),
    "another task": message(task="celery.backend_cleanup"),
    "a task of no kind": message(task=7),
    "no id": message(id=None),
    "put off for a year": message(eta="2100-01-01T00:00:00+00:00"),
    "an expiry of no kind": message(expires="whenever"),
    "limits of no kind": message(timelimit="soon"),
    "said to be compressed": message(compression="zlib"),
    "too few arguments": message([["submitted"], *BODY[1:]]),
    "too many arguments": message([["submitted", "a", "b", "c"], *BODY[1:]]),
    "arguments of no kind": message([[{"topic": 1}, None, []], *BODY[1:]]),
    "arguments by name": message([BODY[0], {"act": "x"}, BODY[2]]),
    "another task to follow": message([*BODY[:2], {"callbacks": [{"task": TASK, "args": ["a", "b", "c"]}]}]),
    "huge": message(json.dumps([["submitted", "x" * 2**20, ""], *BODY[1:]])),
    "just too long": message(json.dumps([["submitted", "x" * AT_MOST_BYTES, ""], *BODY[1:]])),
    "of Celery's first protocol": message({"task": TASK, "id": "1", "args": BODY[0], "kwargs": {}}, task=None, id=None),
}

ENVELOPE = {
    "body": base64.b64encode(json.dumps(BODY).encode()).decode(),
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": HEADERS,
    "properties": {
        "delivery_tag": "1",
        "body_encoding": "base64",
        "delivery_info": {"exchange": "", "routing_key": QUEUE},
    },
}
INJECTED: dict[str, bytes] = {
    "not JSON": b"hello",
    "half a message": json.dumps(ENVELOPE).encode()[:200],
    "not even text": b"\xff\xfe\x00",
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "an empty message": b"{}",
    "no properties": json.dumps({**ENVELOPE, "properties": {}}).encode(),
    "headers of no kind": json.dumps({**ENVELOPE, "headers": [1]}).encode(),
    "a body that is no base64": json.dumps({**ENVELOPE, "body": "?"}).encode(),
    "a body of no kind": json.dumps({**ENVELOPE, "body": {"a": 1}}).encode(),
    "huge": json.dumps({**ENVELOPE, "body": "x" * 2**20}).encode(),
}


@pytest.fixture(scope="module")
def worker(carrier: Carrier) -> Iterator[Worker]:
    worker = Worker(carrier.home, carrier.url)
    yield worker
    worker.end()


@pytest.fixture
async def hints(carrier: Carrier) -> AsyncGenerator[CeleryHints]:
    hints = CeleryHints(carrier.settings)
    yield hints
    await hints.close()


@pytest.mark.promise("R14")
async def test_invalid_messages_are_dropped_logged_and_counted_and_the_worker_continues(
    carrier: Carrier, worker: Worker, hints: CeleryHints, services: dict[str, Service], promise: Promise
) -> None:
    heard = services["guardian"].nudged.heard
    await arrives(hints, services["guardian"], "desired", "before")
    for body, headers, content_type in MESSAGES.values():
        carrier.publish(body, headers, content_type)
    for text in INJECTED.values():
        carrier.inject(text)
    await hints.send("weather", "fine")
    await arrives(hints, services["guardian"], "desired", "after")
    assert {job_id for _, job_id in heard} == {"before", "after"}
    poisoned = len(MESSAGES) + len(INJECTED)
    await until(lambda: len(worker.events("hint.poisoned")) == poisoned)
    await until(lambda: worker.events("hint.topic_refused"))
    await until(lambda: worker.counter("weft_hints_poisoned_total") == poisoned + 1)
    assert services["lcm"].nudged.heard == []
    # No traceback, nothing of what they held, and nothing that comes back.
    assert {line["level"] for line in worker.lines()} <= {"debug", "info", "warning"}
    assert not [line for line in worker.lines() if len(json.dumps(line)) > 500]
    assert worker.process.poll() is None
    await hints.close()  # on a busy machine "after" was sent several times
    await until(lambda: carrier.waiting() == 0)
    worker.process.terminate()
    assert worker.process.wait(HANG_S) == 0
    assert carrier.waiting() == 0
    promise.kept(poisoned + 1, f"messages that are no hints, in {carrier.kind}")


@pytest.mark.promise("R14")
async def test_hint_with_changed_bytes_does_not_stop_the_worker(
    carrier: Carrier, hints: CeleryHints, services: dict[str, Service], promise: Promise
) -> None:
    chance = random.Random(14)
    worker = Worker(carrier.home, carrier.url)
    n = promise.n(short=100, long=5_000)
    try:
        for number in range(1, n + 1):
            carrier.inject(mutated(json.dumps(ENVELOPE if carrier.kind != RABBITMQ else BODY).encode(), chance))
            if number % 500 == 0 or number == n:  # a queue holds a thousand
                await arrives(hints, services["guardian"], "desired", str(number))
        assert worker.process.poll() is None
        await until(lambda: worker.counter("weft_hints_poisoned_total") > n / 2)
        assert {line["level"] for line in worker.lines()} <= {"debug", "info", "warning"}
    finally:
        worker.end()
    promise.kept(n, f"hints with some bytes changed, in {carrier.kind}")


def mutated(text: bytes, chance: random.Random) -> bytes:
    """One to four bytes changed, left out or put in."""
    out = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out))
        out[at : at + chance.randint(0, 2)] = bytes(chance.randrange(256) for _ in range(chance.randint(0, 2)))
    return bytes(out)

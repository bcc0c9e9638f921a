"""Checks for `weft doctor` and `weft conformance` that the broker can carry hints.

Services do not check: they work without a broker, too.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from amqp.exceptions import AccessRefused, NotAllowed, PreconditionFailed  # type: ignore[import-untyped]
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.transport import pyamqp
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from services.core.adapters.celery import poison
from services.core.adapters.celery.app import EXPIRES_S, QUEUE, TASK, make_app
from services.core.adapters.celery.broker import FOLDER, RABBITMQ, Broker
from services.core.domain.errors import InvalidRequest, Unavailable

_DELIVERY_S: Final = 5.0
_POLL_S: Final = 0.02
_NOT_LET_IN: Final = (AccessRefused, NotAllowed, AuthenticationError, NoPermissionError)


def check_broker(broker: Broker) -> str:
    """What answers there, without its password. Blocks for some seconds at most.

    InvalidRequest where the broker does not want us, Unavailable where none answers; both say what it said.
    """
    if broker.kind == FOLDER:
        if broker.folder.exists() and not os.access(broker.folder, os.W_OK | os.X_OK):
            raise InvalidRequest(
                f"the folder of hints, {broker.folder}, cannot be written by this user; make it a folder of the user "
                "that runs Weft, with mode 700"
            )
        return f"a folder ({broker.folder})"
    with _opened(broker) as (app, _, channel):
        app.amqp.queues[QUEUE].bind(channel).declare()
    return _name(broker)


def deliver_hint(broker: Broker) -> float:
    """Sends a hint through a queue of its own and receives it. Returns the seconds that it took.

    Blocks for some seconds at most, and leaves nothing on the broker. Raises as ``check_broker``, and Unavailable if
    the hint does not arrive whole.
    """
    name = f"{QUEUE}.check.{uuid.uuid4().hex}"
    with _opened(broker) as (app, connection, _), connection.channel() as channel:
        queue: Any = Queue(name, Exchange(""), routing_key=name, durable=False, expires=EXPIRES_S)  # type: ignore[no-untyped-call]
        bound = queue.bind(channel)
        bound.declare()
        try:
            began = time.monotonic()
            app.send_task(
                TASK,
                args=("check", "", ""),
                expires=EXPIRES_S,
                delivery_mode="transient",
                queue=queue,
                producer=Producer(channel),  # type: ignore[no-untyped-call]
                retry=False,
            )
            message = bound.get(no_ack=True)
            while message is None and time.monotonic() < began + _DELIVERY_S:
                time.sleep(_POLL_S)
                message = bound.get(no_ack=True)
            took_s = time.monotonic() - began
        finally:
            bound.delete()
    if message is None:
        raise Unavailable(
            f"{_name(broker)} accepted a hint and did not deliver it within {_DELIVERY_S:g} s; its log and its load "
            "may say why"
        )
    try:
        poison.hint(TASK, message.body, message.content_type, message.headers)
    except poison.Poisoned as poisoned:
        raise Unavailable(
            f"{_name(broker)} delivered a hint with another {poisoned.why}; remove the policy, plug-in or proxy that "
            "changes messages"
        ) from None
    return took_s


def _name(broker: Broker) -> str:
    return f"{broker.kind} ({maybe_sanitize_url(broker.url)})"


@contextmanager
def _opened(broker: Broker) -> Generator[tuple[Any, Any, Any]]:
    """An app, a connection that is made at its first use, and a channel of a server.

    Raises InvalidRequest and Unavailable for the server's errors.
    """
    name = _name(broker)
    app = make_app(broker)
    connection: Any = app.connection_for_write()
    try:
        with connection, _channel(connection, broker.kind) as channel:
            yield app, connection, channel
    except PreconditionFailed:
        raise InvalidRequest(
            f"{name} has a queue {QUEUE} that is not Weft's, or of another version; remove it, and Weft creates its own"
        ) from None
    except _NOT_LET_IN as error:
        raise InvalidRequest(
            f"{name} refuses the user or password: {_reason(error)}; name a user in WEFT_BROKER_URL that may "
            "configure, write and read there"
        ) from None
    except ResponseError as error:  # Redis: read-only, out of memory, something else under our name
        raise InvalidRequest(
            f"{name} takes no hints: {_reason(error)}; name a primary with free memory in WEFT_BROKER_URL, whose "
            "database has nothing else"
        ) from None
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise Unavailable(f"{name} does not answer: {_reason(error)}") from None
    finally:
        app.close()


@contextmanager
def _channel(connection: Any, kind: str) -> Generator[Any]:
    """Leaves nothing open where we are not let in, as kombu's own would with RabbitMQ."""
    if kind != RABBITMQ:
        with connection.channel() as channel:
            yield channel
        return
    direct = pyamqp.Connection(
        connection.host,
        connection.userid,
        connection.password,
        virtual_host=connection.virtual_host,
        connect_timeout=connection.connect_timeout,
        **connection.transport_options,
    )
    try:
        direct.connect()
        yield direct.channel()
        direct.close()
    finally:
        direct.collect()


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

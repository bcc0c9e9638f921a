"""Checks for `weft doctor` that the broker can carry hints. Services do not check: they work without a broker, too."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from amqp.exceptions import AccessRefused, NotAllowed, PreconditionFailed  # type: ignore[import-untyped]
from kombu.transport import pyamqp
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from services.core.adapters.celery.app import QUEUE, make_app
from services.core.adapters.celery.broker import FOLDER, RABBITMQ, Broker
from services.core.domain.errors import InvalidRequest, Unavailable

_NOT_LET_IN: Final = (AccessRefused, NotAllowed, AuthenticationError, NoPermissionError)


def check_broker(broker: Broker) -> str:
    """What answers there, without its password. Blocks for some seconds at most.

    InvalidRequest where the broker does not want us, Unavailable where none answers; both say what it said.
    """
    if broker.kind == FOLDER:
        if broker.folder.exists() and not os.access(broker.folder, os.W_OK | os.X_OK):
            raise InvalidRequest(f"the folder of hints, {broker.folder}, cannot be written by this user")
        return f"a folder ({broker.folder})"
    name = f"{broker.kind} ({maybe_sanitize_url(broker.url)})"
    app = make_app(broker)
    connection: Any = app.connection_for_write()
    try:
        with connection, _channel(connection, broker.kind) as channel:
            app.amqp.queues[QUEUE].bind(channel).declare()
    except PreconditionFailed:
        raise InvalidRequest(
            f"{name} has a queue {QUEUE} that is not Weft's, or of another version; remove it, and Weft creates its own"
        ) from None
    except _NOT_LET_IN as error:
        raise InvalidRequest(f"{name} refuses the user or password: {_reason(error)}") from None
    except ResponseError as error:  # Redis: read-only, out of memory, something else under our name
        raise InvalidRequest(f"{name} takes no hints: {_reason(error)}") from None
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise Unavailable(f"{name} does not answer: {_reason(error)}") from None
    finally:
        app.close()
    return name


@contextmanager
def _channel(connection: Any, kind: str) -> Generator[Any]:
    """Leaves nothing open where we are not let in, as kombu's own would with RabbitMQ."""
    if kind != RABBITMQ:
        with connection.channel() as channel:
            yield channel
        return
    direct = pyamqp.Connection(
        connection.host, connection.userid, connection.password, virtual_host=connection.virtual_host,
        connect_timeout=connection.connect_timeout, **connection.transport_options,
    )  # fmt: skip
    try:
        direct.connect()
        yield direct.channel()
        direct.close()
    finally:
        direct.collect()


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

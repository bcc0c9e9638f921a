"""How MongoDB is spoken to: acknowledged by a majority and its journals, read from the primary's majority.

The URI says where the server is and who we are; how safely we write is not its choice: our options are given beside it
and win over it. Nothing of pymongo's crosses the border upwards (``translated``).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import bson
import pymongo
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.errors import BSONError
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.monitoring import (
    ServerHeartbeatFailedEvent,
    ServerHeartbeatListener,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
)

from services.core.domain.errors import (
    Duplicate,
    Internal,
    InvalidRequest,
    NoSpace,
    TooLarge,
    Unavailable,
    WeftError,
)

Document: TypeAlias = dict[str, Any]
Database: TypeAlias = AsyncDatabase[Document]

TIMEOUT_S: Final = 5.0
"""Of one call of ours, however many the driver makes of it. An election takes longer: callers come again."""
_LOOK_S: Final = 1.0
"""How long the end of a client waits for the driver's look for its server: where packets vanish it may last."""
UNSURE: Final = (ConnectionFailure, ExecutionTimeout, WriteConcernError)
"""After these nobody knows whether a write took place, or whether it will last."""
_RETRY_AFTER_S: Final = 1.0
_NAME: Final = "weft"
_REFUSED: Final = frozenset({13, 18, 8000})
"""Unauthorized, AuthenticationFailed, AtlasError."""
_DISK_FULL: Final = 14031
_TOO_LARGE: Final = 10334
_MAX_BYTES: Final = 16 * 2**20
_LARGE: Final = "the document is larger than MongoDB's 16 MB"


class _PlainInt(TypeDecoder):
    """64-bit numbers come as a class of the driver's own, which our encoders would not take for an int."""

    @property
    def bson_type(self) -> type[Int64]:
        return Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


_CODECS: Final = CodecOptions(document_class=dict, type_registry=TypeRegistry([_PlainInt()]))


class _Looks(ServerHeartbeatListener):
    """Which servers the driver is looking for just now. Each look may be making a connection."""

    def __init__(self) -> None:
        self._under_way: set[tuple[str, int | None]] = set()
        self._over = asyncio.Event()

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        if not event.awaited:  # on the connection that is there
            self._under_way.add(event.connection_id)

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        self._ended(event.connection_id)

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        self._ended(event.connection_id)

    def _ended(self, server: tuple[str, int | None]) -> None:
        self._under_way.discard(server)
        self._over.set()

    async def over(self) -> None:
        while self._under_way:
            self._over.clear()
            await self._over.wait()


async def close(database: Database) -> None:
    """Ends the client between two looks: of a look that it cancels the driver leaves the socket open."""
    client = database.client
    (looks,) = (one for one in client.options.event_listeners if isinstance(one, _Looks))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_S):
            await looks.over()
    await client.close()


def connect(uri: str) -> Database:
    """The database that the URI names (``weft`` where it names none). Nothing is sent yet. One event loop only."""
    try:
        # An option that it does not understand the driver drops with a warning: tls=ture would mean no TLS.
        with warnings.catch_warnings(action="error"):
            client: AsyncMongoClient[Document] = AsyncMongoClient(
                uri, w="majority", journal=True, readConcernLevel="majority", readPreference="primary",
                retryWrites=True, retryReads=True, serverSelectionTimeoutMS=round(TIMEOUT_S * 1000), appname=_NAME,
                event_listeners=[_Looks()],
            )  # fmt: skip
    except (ConfigurationError, UserWarning, ValueError) as error:
        raise InvalidRequest(f"WEFT_JOB_STORE cannot be used: {error}") from error
    return client.get_default_database(_NAME).with_options(codec_options=_CODECS)


def check_size(document: Document) -> None:
    """Raises TooLarge for a document that MongoDB refuses by its size, and the encoder's errors."""
    if len(bson.encode(document)) > _MAX_BYTES:
        raise TooLarge(_LARGE)


@contextmanager
def translated() -> Generator[None]:
    """Bounds what is awaited inside in time, and raises only WeftErrors of the driver's and the encoder's.

    Within a task: Python 3.11's ``wait_for``, by which the driver sends, forgets a cancellation that comes as it is
    done. Here it is raised after all, or services would not stop.
    """
    task = asyncio.current_task()
    asked = task.cancelling() if task else 0
    try:
        with pymongo.timeout(TIMEOUT_S):
            yield
    except (PyMongoError, BSONError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise _ours(error) from error
    finally:
        if task and task.cancelling() > asked:
            raise asyncio.CancelledError


def _ours(error: Exception) -> WeftError:
    said = str(error).partition(", full error")[0]
    match error:
        case ConnectionFailure() | ExecutionTimeout() | WriteConcernError():
            brief = said.partition(" (configured")[0].partition(", Timeout")[0]
            return Unavailable(f"MongoDB does not answer: {brief}", retry_after_s=_RETRY_AFTER_S)
        case DuplicateKeyError():
            return Duplicate(f"it is there already: {said}")
        case DocumentTooLarge():
            return TooLarge(_LARGE)
        case OperationFailure():
            return _refusal(error.code, said)
        case InvalidOperation():
            return Unavailable("the store is closed")
        case ConfigurationError():  # found out late, e.g. an SRV record
            return InvalidRequest(f"WEFT_JOB_STORE cannot be used: {said}")
        case UnicodeEncodeError():
            return InvalidRequest("text that is not Unicode cannot be stored")
        case BSONError() | OverflowError() | RecursionError():
            return InvalidRequest(f"MongoDB cannot store this: {said}")
        case _:
            return Internal(f"MongoDB: {said}")


def _refusal(code: int | None, said: str) -> WeftError:
    """What the server said no to."""
    if code == _TOO_LARGE:
        return TooLarge(_LARGE)
    if code == _DISK_FULL:
        return NoSpace(f"MongoDB's disk is full: {said}")
    if code in _REFUSED:
        return Unavailable(f"MongoDB refuses the user of WEFT_JOB_STORE: {said}")
    return Internal(f"MongoDB: {said}")

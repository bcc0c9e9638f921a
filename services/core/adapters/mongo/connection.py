"""Connections to MongoDB: writes wait for a majority and its journals, reads come from the primary's majority.

The URI names the server and the user. The options for safe writes are fixed here and override those of the URI. No
error of pymongo leaves this package (``translated``).
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
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
"""Time limit of one call of ours, which may be several of the driver. An election takes longer: callers try again."""
_GRACE_S: Final = 1.0
"""Beyond the time limit, for the driver to report it: its reason is the better one."""
_DISCOVERY_S: Final = 1.0
"""How long ``close`` waits for the driver's discovery of a server, which may hang if packets are dropped."""
_RETRY_AFTER_S: Final = 1.0
_NAME: Final = "weft"
_AWAY: Final = frozenset({6, 7, 89, 9001, 50, 202, 262, 10107, 13435, 13436, 189, 91, 11600, 11602, 133, 134, 43})
"""A shard behind a router is away or fails over, which the driver reports like any refusal: HostUnreachable,
HostNotFound, NetworkTimeout, SocketException; MaxTimeMSExpired, NetworkInterfaceExceededTimeLimit, ExceededTimeLimit;
NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary, PrimarySteppedDown; ShutdownInProgress,
InterruptedAtShutdown, InterruptedDueToReplStateChange; FailedToSatisfyReadPreference,
ReadConcernMajorityNotAvailableYet; CursorNotFound."""
_REFUSED: Final = frozenset({13, 18, 8000})
"""Unauthorized, AuthenticationFailed, AtlasError."""
_DISK_FULL: Final = 14031
_TOO_LARGE: Final = 10334
_MAX_BYTES: Final = 16 * 2**20
_UNESCAPED: Final = re.compile(r"[^:]*://(?:[^@]*[/?#\[\]@]|[^:@]*:[^@]*:).*@", re.DOTALL)
"""A URI whose user name or password seems to have characters that end it there."""
_HOW_TO_ESCAPE: Final = (
    "if its password has one of : / ? # [ ] @ %, write that as %3A %2F %3F %23 %5B %5D %40 %25; in the user name, too"
)
_LARGE: Final = "the document is larger than MongoDB's 16 MB"


class _PlainInt(TypeDecoder):
    """Converts the driver's class for 64-bit integers, which our encoders do not accept, to int."""

    @property
    def bson_type(self) -> type[Int64]:
        return Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


_CODECS: Final = CodecOptions(document_class=dict, type_registry=TypeRegistry([_PlainInt()]))


class _Discovery(ServerHeartbeatListener):
    """The servers that the driver is checking now. Each check may open a connection."""

    def __init__(self) -> None:
        self._under_way: set[tuple[str, int | None]] = set()
        self._finished = asyncio.Event()

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        if not event.awaited:  # awaited checks use an open connection
            self._under_way.add(event.connection_id)

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        self._ended(event.connection_id)

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        self._ended(event.connection_id)

    def _ended(self, server: tuple[str, int | None]) -> None:
        self._under_way.discard(server)
        self._finished.set()

    async def finished(self) -> None:
        while self._under_way:
            self._finished.clear()
            await self._finished.wait()


async def close(database: Database) -> None:
    """Closes the client between two checks of its servers: the driver leaks the socket of a cancelled check."""
    client = database.client
    (discovery,) = (listener for listener in client.options.event_listeners if isinstance(listener, _Discovery))
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCOVERY_S):
            await discovery.finished()
    await client.close()


def connect(uri: str) -> Database:
    """The database that the URI names; ``weft`` if it names none. Sends nothing yet. For one event loop.

    Raises InvalidRequest for a URI that cannot be used.
    """
    try:
        # The driver drops an unknown option with a warning only: tls=ture would mean no TLS.
        with warnings.catch_warnings(action="error"):
            client: AsyncMongoClient[Document] = AsyncMongoClient(
                uri,
                w="majority",
                journal=True,
                readConcernLevel="majority",
                readPreference="primary",
                # ``until_answered`` repeats writes. Where the server is no replica set, the driver's own retry raises
                # the error of the attempt before while it holds a new connection. It takes that for a break of the
                # connection and drops all others: with several writers none of them ever writes again.
                retryWrites=False,
                retryReads=True,
                serverSelectionTimeoutMS=round(TIMEOUT_S * 1000),
                appname=_NAME,
                event_listeners=[_Discovery()],
            )
    except (ConfigurationError, UserWarning, ValueError) as error:
        if _UNESCAPED.match(uri):
            # Without the error: it may quote what the driver has taken for a database or an option.
            raise InvalidRequest(f"WEFT_JOB_STORE cannot be used: {_HOW_TO_ESCAPE}") from None
        raise InvalidRequest(f"WEFT_JOB_STORE cannot be used: {error}") from error
    return client.get_default_database(_NAME).with_options(codec_options=_CODECS)


def check_size(document: Document) -> None:
    """Raises TooLarge for a document that MongoDB refuses by its size, and the encoder's errors."""
    if len(bson.encode(document)) > _MAX_BYTES:
        raise TooLarge(_LARGE)


@asynccontextmanager
async def translated(*, limited: bool = True) -> AsyncGenerator[None]:
    """Limits the time of calls within it, and raises errors of the driver and the encoder as WeftErrors.

    Without ``limited``, only the search for a server is limited.

    The driver's own limit does not hold for a TLS handshake, which may take 60 s. So there is a second one around it.

    Python 3.11's ``wait_for``, which the driver uses, loses a cancellation that arrives as it ends. It is raised again
    here; otherwise services would not stop. ``asyncio.timeout`` takes its own cancellation back before that.
    """
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(TIMEOUT_S + _GRACE_S if limited else None):
            with pymongo.timeout(TIMEOUT_S if limited else None):
                yield
    except TimeoutError as error:
        raise Unavailable("MongoDB does not answer: no reply in time", retry_after_s=_RETRY_AFTER_S) from error
    except (PyMongoError, BSONError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise _weft_error(error) from error
    finally:
        if task and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


def unsure(error: Exception) -> bool:
    """True if it is unknown after this error whether a write took place and is durable. It may be sent again."""
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WriteConcernError):
        return True
    return isinstance(error, OperationFailure) and error.code in _AWAY


def _weft_error(error: Exception) -> WeftError:
    text = str(error).partition(", full error")[0]
    match error:
        case _ if unsure(error):
            brief = text.partition(" (configured")[0].partition(", Timeout")[0]
            return Unavailable(f"MongoDB does not answer: {brief}", retry_after_s=_RETRY_AFTER_S)
        case DuplicateKeyError():
            return Duplicate(f"it exists already: {text}")
        case DocumentTooLarge():
            return TooLarge(_LARGE)
        case OperationFailure():
            return _refusal(error.code, text)
        case InvalidOperation():
            return Unavailable("the store is closed")
        case ConfigurationError():  # found late, for example by an SRV record
            return InvalidRequest(f"WEFT_JOB_STORE cannot be used: {text}")
        case UnicodeEncodeError():
            return InvalidRequest("text that is not Unicode cannot be stored")
        case BSONError() | OverflowError() | RecursionError():
            return InvalidRequest(f"MongoDB cannot store this: {text}")
        case _:
            return Internal(f"MongoDB: {text}")


def _refusal(code: int | None, text: str) -> WeftError:
    """The WeftError for an operation that the server refused."""
    if code == _TOO_LARGE:
        return TooLarge(_LARGE)
    if code == _DISK_FULL:
        return NoSpace(f"MongoDB's disk is full: {text}")
    if code in _REFUSED:
        return Unavailable(f"MongoDB refuses the user of WEFT_JOB_STORE: {text}")
    return Internal(f"MongoDB: {text}")

"""A watch that resumes: list at a revision, then follow from the next one, over any number of lost connections.

etcd3's own watch ends at a disconnect, and then spins. This one handles:

* The connection breaks: watch again from the last seen revision + 1. All changes of one revision come in one response,
  so none is lost and none is seen twice.
* That revision was compacted meanwhile: list again, with ``reset``.
* etcd lost everything (another cluster id; a lower revision or raft term): list again, with ``reset``. A watch from a
  revision that does not exist yet would otherwise wait in silence until the new etcd has caught up with the old one.
* etcd sends nothing (half-open connection, stopped process): after ``silence_s`` request progress, after as long again
  reconnect. The watch does not resume from the revision in that reply: etcd before 3.5.8 may send it ahead of older
  events.
* Another program wrote bytes that are no value of ours (no UTF-8, too large): that entry is delivered as malformed, the
  others as usual.
* A message is larger than the connection reads, because such entries are large: a list uses smaller pages, a watch
  lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc.aio
import structlog

from services.core.adapters.etcd.connection import Connection
from services.core.domain.errors import Unavailable, WeftError
from services.core.gen.weft.etcd import kv_pb2, rpc_pb2, rpc_pb2_grpc
from services.core.ports.status_store import Change, Entry, check_key, decode_key, decode_value
from services.core.runtime.retry import Backoff
from services.core.runtime.timers import aligned_pause

_PAGE: Final = 1000
_SMALLER: Final = 4
"""A page that is too large is read again with this fraction of entries."""
_PROGRESS_REQUEST: Final = b"\x1a\x00"
"""A serialized WatchRequest whose ``progress_request`` (field 3, etcd 3.4) is set: etcd3's messages are older than that
field, but keep and send fields that they do not know."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_COMPACTED: Final = "required revision has been compacted"
_TOO_LARGE: Final = "larger than max"
"""In gRPC's error for a message that exceeds the limit of the connection."""
_NOT_YET: Final = "required revision is a future revision"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Translates between the port's keys and etcd's."""

    prefix: str

    def full(self, key: str) -> bytes:
        """The stored key. Raises InvalidRequest for an invalid key or prefix."""
        return (self.prefix + check_key(key)).encode()

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """The range [first, end) of all keys with this prefix. UTF-8 never ends in 0xff, so ``end`` exists."""
        first = self.full(prefix)
        return first, first[:-1] + bytes((first[-1] + 1,))

    def key(self, full: bytes) -> str:
        return decode_key(full)[0].removeprefix(self.prefix)

    def entry(self, pair: kv_pb2.KeyValue) -> Entry:
        """Never raises: bytes that are no key or no value of ours make the entry malformed."""
        _, key_error = decode_key(pair.key)
        value, value_error = decode_value(pair.value)
        key = self.key(pair.key)
        return Entry(key, value, pair.mod_revision, pair.create_revision, malformed=key_error or value_error)


@dataclass(frozen=True, slots=True)
class Position:
    """The last revision that a watcher has seen, and the history it belongs to."""

    cluster_id: int
    raft_term: int
    revision: int

    def fits(self, header: rpc_pb2.ResponseHeader) -> bool:
        """False if the sender of this header cannot have the history that the watcher saw."""
        return (
            header.cluster_id == self.cluster_id
            and header.raft_term >= self.raft_term
            and header.revision >= self.revision
        )

    def at(self, revision: int) -> Position:
        return replace(self, revision=max(self.revision, revision))


@dataclass(frozen=True, slots=True)
class Listing:
    entries: list[Entry]
    position: Position


class _HistoryGone(Exception):
    """The watch cannot be resumed: list again."""


async def read_all(connection: Connection, keys: Keyspace, prefix: str) -> Listing:
    """All entries below a prefix as of one revision, read in pages."""
    while True:
        try:
            return await _read_pages(connection, keys, prefix)
        except _HistoryGone:  # compacted, or lost with everything, between two pages
            continue


async def _read_pages(connection: Connection, keys: Keyspace, prefix: str) -> Listing:
    first, end = keys.range(prefix)
    entries: list[Entry] = []
    position: Position | None = None
    limit = _PAGE
    while True:
        request = rpc_pb2.RangeRequest(
            key=first, range_end=end, limit=limit, revision=position.revision if position else 0
        )
        try:
            reply = await connection.call(connection.kv.Range, request)
        except WeftError as error:
            if _TOO_LARGE in error.message and limit > 1:
                limit = max(1, limit // _SMALLER)
                continue
            if _COMPACTED in error.message or _NOT_YET in error.message:
                raise _HistoryGone from None
            raise
        if position is None:
            position = Position(reply.header.cluster_id, reply.header.raft_term, reply.header.revision)
        entries += [keys.entry(pair) for pair in reply.kvs]
        if not reply.more:
            return Listing(entries, position)
        first = reply.kvs[-1].key + b"\x00"


async def resuming(
    connection: Connection, keys: Keyspace, prefix: str, *, silence_s: float
) -> AsyncGenerator[Change, None]:
    """See ``StatusStore.watch``. Ends when this side closes the connection."""
    position: Position | None = None
    backoff, is_first_failure = Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S), True
    while not connection.closed:
        try:
            if position is None:
                listing = await read_all(connection, keys, prefix)
                yield Change("reset")
                for entry in listing.entries:
                    yield Change("put", entry.key, entry)
                position = listing.position
            stream = _Stream(connection, keys, prefix, silence_s=silence_s)
            try:
                position = await stream.open(position)
                backoff.reset()
                is_first_failure = True
                while True:
                    for event in await stream.events():
                        yield _change(keys, event)
                        position = position.at(event.kv.mod_revision)
            finally:
                await stream.close()
        except _HistoryGone:
            log.info("watch.history_lost", prefix=prefix)
            position = None
        except (WeftError, grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError) as error:
            if _TOO_LARGE in str(error):
                position = None  # the message that catches up is too large for this connection
            if is_first_failure and not connection.closed:
                log.warning("watch.interrupted", prefix=prefix, why=_why(error))
        if connection.closed:
            return
        # Also before listing again: a failure that repeats must not make this loop spin.
        is_first_failure = False
        await backoff.wait()


def _why(error: Exception) -> str:
    return error.code().name.lower() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "timeout"


def _change(keys: Keyspace, event: kv_pb2.Event) -> Change:
    if event.type == kv_pb2.Event.DELETE:
        return Change("delete", keys.key(event.kv.key))
    entry = keys.entry(event.kv)
    return Change("put", entry.key, entry)


class _Stream:
    """One watch on one call."""

    def __init__(self, connection: Connection, keys: Keyspace, prefix: str, *, silence_s: float) -> None:
        self._connection = connection
        self._keys = keys
        self._prefix = prefix
        self._silence_s = silence_s
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._channel = connection.channel()
        self._call: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, position: Position) -> Position:
        """Starts after the position; returns it with the present raft term. Raises _HistoryGone for another history."""
        self._metadata = await self._connection.metadata()
        self._call = rpc_pb2_grpc.WatchStub(self._channel).Watch(metadata=self._metadata)
        first, end = self._keys.range(self._prefix)
        create = rpc_pb2.WatchCreateRequest(key=first, range_end=end, start_revision=position.revision + 1)
        await self._write(rpc_pb2.WatchRequest(create_request=create))
        header = (await self._next()).header
        if not position.fits(header):
            # An etcd member may lag behind the position; a linearizable read does not.
            request = rpc_pb2.RangeRequest(key=first, count_only=True)
            header = (await self._connection.call(self._connection.kv.Range, request)).header
            if not position.fits(header):
                raise _HistoryGone
        return replace(position, raft_term=header.raft_term)

    async def events(self) -> list[kv_pb2.Event]:
        """The changes in the next message; may be empty."""
        return list((await self._next()).events)

    async def close(self) -> None:
        for task in self._tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # the call is over: retrieve the error so that asyncio does not report it
        if self._call is not None:
            self._call.cancel()
        # A closed channel goes on connecting while anything refers to a call of it.
        self._tasks, self._call = set(), None
        await self._connection.drop(self._channel)

    async def _next(self) -> rpc_pb2.WatchResponse:
        message = await self._read()
        if message is grpc.aio.EOF:
            raise Unavailable("etcd ended the watch")
        response: rpc_pb2.WatchResponse = message
        if response.canceled:
            if response.compact_revision or _COMPACTED in response.cancel_reason:
                raise _HistoryGone
            # Some versions report an expired token as 'permission denied' here.
            self._connection.forget_token(self._metadata)
            raise Unavailable(f"etcd refused the watch: {response.cancel_reason}")
        return response

    async def _read(self) -> Any:
        """The next message. Requests progress once after a silence; raises Unavailable without a reply to that."""
        read = self._start(self._call.read())
        try:
            if not await self._done(read):
                await self._write(rpc_pb2.WatchRequest.FromString(_PROGRESS_REQUEST))
                if not await self._done(read):
                    raise Unavailable("etcd sends nothing")
            return read.result()
        finally:
            del read  # see close(): a task whose error refers to this frame would keep the frame alive

    async def _write(self, request: rpc_pb2.WatchRequest) -> None:
        write = self._start(self._call.write(request))
        try:
            if not await self._done(write):
                raise Unavailable("etcd does not accept requests")
            write.result()
        except asyncio.InvalidStateError:
            raise Unavailable("etcd ended the watch") from None
        finally:
            del write  # as above

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        # A task of its own, not wait_for: gRPC ends the whole call if a read or write of it is cancelled.
        task = asyncio.ensure_future(coroutine)
        self._tasks = {other for other in self._tasks if not other.done()} | {task}
        return task

    async def _done(self, task: asyncio.Task[Any]) -> bool:
        """Waits up to ``silence_s`` for the task; False if it still runs. Raises Unavailable if the call ended."""
        closing = self._connection.closing
        silence_s = aligned_pause(self._silence_s)
        await asyncio.wait({task, closing}, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
        # A call that ends with its channel cancels its task: that must not look like a cancellation of the caller.
        if closing.done() or task.cancelled():
            raise Unavailable("the connection of the watch was closed")
        return task.done()

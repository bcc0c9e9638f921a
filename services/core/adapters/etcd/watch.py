"""A watch that resumes: list at a revision, then follow from the next one, over any number of lost connections.

Why not etcd3's: it ends at a disconnect, and then spins. What can go wrong, and what is done:

* The connection breaks: watch again from the last seen revision + 1. All changes of one revision come in one response,
  so none is lost and none is seen twice.
* That revision was compacted meanwhile: list again, with ``reset``.
* etcd lost everything (another cluster id; a lower revision or raft term): list again, with ``reset``. A watch from a
  revision that does not exist yet would otherwise wait in silence until the new etcd has caught up with the old one.
* The peer is silent (half-open connection, stopped process): after ``silence_s`` ask for progress, after as long again
  break off. The revision in the answer is not resumed from: etcd before 3.5.8 may send it ahead of older events.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc.aio
import structlog

from services.core.adapters.etcd.connection import Connection
from services.core.domain.errors import Unavailable, WeftError
from services.core.gen.weft.etcd import kv_pb2, rpc_pb2, rpc_pb2_grpc
from services.core.ports.status_store import Change, Entry

_PAGE: Final = 1000
_PROGRESS_REQUEST: Final = b"\x1a\x00"
"""A serialized WatchRequest whose ``progress_request`` (field 3, etcd 3.4) is set: etcd3's messages are older than that
field, but keep and send fields that they do not know."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_COMPACTED: Final = "required revision has been compacted"
_NOT_YET: Final = "required revision is a future revision"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Translates between the port's keys and etcd's."""

    prefix: str

    def full(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """[first, end) of all keys that begin so. Never empty nor ending in 0xff: it is UTF-8."""
        first = self.full(prefix)
        return first, first[:-1] + bytes((first[-1] + 1,))

    def key(self, full: bytes) -> str:
        return full.decode().removeprefix(self.prefix)

    def entry(self, pair: kv_pb2.KeyValue) -> Entry:
        return Entry(self.key(pair.key), pair.value.decode(), pair.mod_revision, pair.create_revision)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a watcher has seen, and in which history."""

    cluster_id: int
    raft_term: int
    revision: int

    def fits(self, header: rpc_pb2.ResponseHeader) -> bool:
        """Whether an etcd that answers so may still continue what we saw."""
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
    """What we saw cannot be continued: list again."""


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
    while True:
        request = rpc_pb2.RangeRequest(
            key=first, range_end=end, limit=_PAGE, revision=position.revision if position else 0
        )
        try:
            reply = await connection.call(connection.kv.Range, request)
        except WeftError as error:
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
    """See ``StatusStore.watch``. Ends when the connection is closed by us."""
    position: Position | None = None
    failures = 0
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
                failures = 0
                while True:
                    for event in await stream.events():
                        yield _change(keys, event)
                        position = position.at(event.kv.mod_revision)
            finally:
                await stream.close()
        except _HistoryGone:
            log.info("watch.lists_again", prefix=prefix)
            position = None
        except (WeftError, grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError) as error:
            if failures == 0 and not connection.closed:
                log.warning("watch.interrupted", prefix=prefix, why=_why(error))
        if connection.closed:
            return
        # Also before listing again: whatever goes wrong each time must not make this spin.
        await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
        failures += 1


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
        self._doing: set[asyncio.Task[Any]] = set()

    async def open(self, position: Position) -> Position:
        """Follows from the position on; it, with the raft term of now. _HistoryGone where etcd has another history."""
        self._metadata = await self._connection.metadata()
        self._call = rpc_pb2_grpc.WatchStub(self._channel).Watch(metadata=self._metadata)
        first, end = self._keys.range(self._prefix)
        create = rpc_pb2.WatchCreateRequest(key=first, range_end=end, start_revision=position.revision + 1)
        await self._write(rpc_pb2.WatchRequest(create_request=create))
        header = (await self._next()).header
        if not position.fits(header):
            # A follower of a healthy cluster may lag behind what we saw; a linearizable read does not.
            request = rpc_pb2.RangeRequest(key=first, count_only=True)
            header = (await self._connection.call(self._connection.kv.Range, request)).header
            if not position.fits(header):
                raise _HistoryGone
        return replace(position, raft_term=header.raft_term)

    async def events(self) -> list[kv_pb2.Event]:
        """The next changes; maybe none."""
        return list((await self._next()).events)

    async def close(self) -> None:
        for doing in self._doing:
            if not doing.cancel() and not doing.cancelled():
                doing.exception()  # whatever it was, the call is over: not to be reported as unseen
        if self._call is not None:
            self._call.cancel()
        # A closed channel goes on trying to connect for as long as a call of it is referred to by anything.
        self._doing, self._call = set(), None
        await self._connection.drop(self._channel)

    async def _next(self) -> rpc_pb2.WatchResponse:
        message = await self._heard()
        if message is grpc.aio.EOF:
            raise Unavailable("etcd ended the watch")
        response: rpc_pb2.WatchResponse = message
        if response.canceled:
            if response.compact_revision or _COMPACTED in response.cancel_reason:
                raise _HistoryGone
            # Some versions call a token that ran out 'permission denied' here.
            self._connection.forget_token(self._metadata)
            raise Unavailable(f"etcd refused the watch: {response.cancel_reason}")
        return response

    async def _heard(self) -> Any:
        """The next message. Asks once when it is silent; Unavailable where that is not answered either."""
        reading = self._start(self._call.read())
        try:
            if not await self._done(reading):
                await self._write(rpc_pb2.WatchRequest.FromString(_PROGRESS_REQUEST))
                if not await self._done(reading):
                    raise Unavailable("etcd is silent")
            return reading.result()
        finally:
            del reading  # see close(): a frame that holds a task whose error holds that frame lives for long

    async def _write(self, request: rpc_pb2.WatchRequest) -> None:
        writing = self._start(self._call.write(request))
        try:
            if not await self._done(writing):
                raise Unavailable("etcd does not take our requests")
            writing.result()
        except asyncio.InvalidStateError:
            raise Unavailable("etcd ended the watch") from None
        finally:
            del writing  # as above

    def _start(self, doing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        # A task of its own, not wait_for: a read or write that is cancelled by a timeout cancels the whole call.
        task = asyncio.ensure_future(doing)
        self._doing = {other for other in self._doing if not other.done()} | {task}
        return task

    async def _done(self, task: asyncio.Task[Any]) -> bool:
        """Whether it is, within the time for which silence is nothing unusual."""
        closing = self._connection.closing
        await asyncio.wait({task, closing}, timeout=self._silence_s, return_when=asyncio.FIRST_COMPLETED)
        # A call that was cancelled with its channel must not look like the end of our own task.
        if closing.done() or task.cancelled():
            raise Unavailable("the watch was cut off")
        return task.done()

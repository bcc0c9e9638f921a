"""Bounds the messages of calls that need no key (health, reflection, the version): any client may send them.

gRPC receives a message whole before it can be refused, and each may be as large as a piece of an upload. So these calls
share a few places for messages that are being received, and a message beyond ``_LARGEST`` ends its call.

A client sends its message with its call, so a call that has a place for a while and no message is idle. It loses its
place to a call that waits for one, and of those that wait the newest is next: however many idle calls there are, they
delay the others by ``_TURN_S`` only.

A call lasts as long as its client wants: it need not read its answer, and may watch the health for ever. So the calls
are counted until their answers are sent, and with more than ``_MOST`` the connection that has most of them is cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final

import grpc
import grpc.aio

from services.api.grpc.errors import status_of
from services.core.domain.errors import InvalidRequest, Unavailable, WeftError

_MOST: Final = 1_000
"""Calls at a time. Each takes 25 KB of memory, and one whose client does not read cannot be ended by an answer."""
_PLACES: Final = 4
_WAIT_S: Final = 10.0
"""Longest time for a message, with the wait for its place. An idle stream of reflection is ended after it."""
_TURN_S: Final = 0.2
"""Longest time with a place while other calls wait for one."""
_LARGEST: Final = 64 * 1024
"""Bytes. Ordinary messages have some tens: the names of services and methods."""
Context = grpc.aio.ServicerContext[Any, Any]


class OpenCalls:
    def __init__(self, cut: Callable[[str], None]) -> None:
        """``cut``: closes the connection of this name, ``context.peer()``; without effect if there is none."""
        self._cut = cut
        self._calls = Counter[str]()
        """Connection -> its calls."""
        self._holders: dict[asyncio.Timeout, float] = {}
        """Time limit of a call with a place -> when it got it, in seconds of the loop; the oldest first."""
        self._waiting: dict[asyncio.Timeout, asyncio.Future[None]] = {}
        """Time limit of a call without a place -> done once it has one; the oldest first."""

    async def received(self, context: Context) -> bytes:
        """The message of a call.

        Raises InvalidRequest if there is none or it is too large, Unavailable after ``_WAIT_S``,
        or after ``_TURN_S`` if others wait.
        """
        self._count(context)
        message = await self._next(context)
        if message is None:
            raise InvalidRequest("the call has no message")
        return message

    def _count(self, context: Context) -> None:
        """Counts the call until its answer is sent, or its connection has ended."""
        connection = context.peer()

        def ended(_: Context) -> None:
            self._calls[connection] -= 1
            if not self._calls[connection]:
                del self._calls[connection]

        self._calls[connection] += 1
        at_end: Any = context.add_done_callback  # the stubs know no functions here
        at_end(ended)
        if self._calls.total() > _MOST:
            self._cut(max(self._calls, key=self._calls.__getitem__))

    async def _next(self, context: Context) -> bytes | None:
        """None at the end of the stream. Raises as ``received``."""
        try:
            async with asyncio.timeout(_WAIT_S) as limit, self._place(limit):
                message = await context.read()
                if message is grpc.aio.EOF:
                    return None
                if len(message) > _LARGEST:
                    del message  # the error's trace would keep it
                    raise InvalidRequest(f"a message of a call without a key has at most {_LARGEST} bytes")
                return bytes(message)
        except TimeoutError:
            raise Unavailable(
                "no message was received in time; send it with the call, and try again", retry_after_s=1
            ) from None

    @asynccontextmanager
    async def _place(self, limit: asyncio.Timeout) -> AsyncGenerator[None]:
        """Waits for a place and holds it. ``limit``: of the call; it is brought forward while others wait."""
        turn = self._waiting[limit] = asyncio.get_running_loop().create_future()
        self._assign()
        try:
            await turn
            yield
        finally:
            self._waiting.pop(limit, None)
            self._holders.pop(limit, None)
            self._assign()

    def _assign(self) -> None:
        """Gives free places to the newest calls that wait. For the others the oldest holders get ``_TURN_S`` only."""
        while self._waiting and len(self._holders) < _PLACES:
            limit, turn = self._waiting.popitem()
            self._holders[limit] = asyncio.get_running_loop().time()
            if not turn.done():  # else its call has just ended, and gives the place back
                turn.set_result(None)
        for limit, since_s in islice(self._holders.items(), len(self._waiting)):
            if not limit.expired():
                limit.reschedule(since_s + _TURN_S)

    def handler(self, handler: Any, parse: Callable[[bytes], Any]) -> Any:
        """The handler of another library's service, with these bounds. ``parse`` raises WeftErrors."""

        @asynccontextmanager
        async def refusing(context: Context) -> AsyncGenerator[None]:
            try:
                yield
            except WeftError as error:
                await context.abort(*status_of(error, ""))

        async def messages(context: Context) -> AsyncGenerator[Any]:
            async with refusing(context):
                self._count(context)
                while (message := await self._next(context)) is not None:
                    yield parse(message)

        async def answer(_: Any, context: Context) -> Any:
            async with refusing(context):
                return await handler.unary_unary(parse(await self.received(context)), context)

        async def watch(_: Any, context: Context) -> None:
            async with refusing(context):
                message, replies = parse(await self.received(context)), _Replies()
                async with asyncio.TaskGroup() as group:
                    group.create_task(handler.unary_stream(message, replies))
                    while True:
                        await context.write(await replies.next())

        async def converse(_: Any, context: Context) -> AsyncGenerator[Any]:
            async for reply in handler.stream_stream(messages(context), context):
                yield reply

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(converse, None, handler.response_serializer)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(watch, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(answer, None, handler.response_serializer)


class _Replies:
    """What a handler uses as its context: takes its replies at once.

    The health service writes while it holds a lock of all who watch a service: one of them that does not read its
    replies would keep the others from theirs.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Queue[Any]()

    async def write(self, reply: Any) -> None:
        self._queue.put_nowait(reply)

    async def next(self) -> Any:
        return await self._queue.get()

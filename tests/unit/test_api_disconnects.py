"""Work for a client that leaves is ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from services.api.rest.disconnects import while_connected
from tests.waiting import HANG_S


def request_of(messages: asyncio.Queue[dict[str, Any]]) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive=messages.get)


async def test_statistics_for_a_page_that_was_left_are_not_computed_to_their_end() -> None:
    """Charts that were scrolled out of view went on to load the metrics service, for a second each."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answering = asyncio.ensure_future(while_connected(request_of(messages), work()))
    async with asyncio.timeout(HANG_S):
        await began.wait()
        await messages.put({"type": "http.request", "body": b"", "more_body": False})
        await messages.put({"type": "http.disconnect"})
        with pytest.raises(ClientDisconnect):
            await answering
    assert ended.is_set()


async def test_the_answer_and_the_error_of_work_reach_a_client_that_stays() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return 10 // number

    request = request_of(asyncio.Queue())
    assert await while_connected(request, work(5)) == 2
    with pytest.raises(ZeroDivisionError):
        await while_connected(request, work(0))

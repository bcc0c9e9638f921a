"""Live streams that survive the connection: every event once, in order, until the platform says that it was the last.

A stream that ends without `event: end` was cut. It is opened again with the id of the last event that was handed out,
so nothing is lost and nothing comes twice; how often that works is limited only by `patience_s` of silence. The end
event carries the job's final state: whoever follows to the end knows how it ended without asking again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from weft._errors import ConnectionFailed, Internal, Unavailable, WeftError, from_problem
from weft._http import STREAM_SILENCE_S, Http, pause_s

# A platform that is being mended may be away for minutes; training goes on meanwhile, and so does whoever watches it.
PATIENCE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: its kind, its document, and the token to go on after it ("" where it has none)."""

    kind: str
    data: dict[str, Any]
    token: str


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended: the job's state once it was at rest and everything stored had been given."""

    id: str
    status: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    deleted: bool = False


class Follow:
    """Iterates over the events of one stream. After the last one, `end` says how the job ended.

    on_cut: called with the error each time that the connection is lost, before it is made again; once per loss.
    """

    def __init__(
        self,
        http: Http,
        path: str,
        params: Mapping[str, Any],
        *,
        on_cut: Callable[[WeftError], None] = lambda _error: None,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = http
        self._path = path
        self._params = dict(params)
        self._on_cut = on_cut
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._token = ""
        self._heard_at = clock()
        self._events = self._run()
        self.end: End | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Hang up. The job is not touched."""
        self._events.close()

    def _run(self) -> Generator[Event, None, None]:
        attempt = 0
        while self.end is None:
            try:
                for event in self._connection():
                    attempt = 0
                    yield event
                if self.end is not None:
                    return
                cut: WeftError = ConnectionFailed("the stream was cut")
            except (ConnectionFailed, Unavailable) as failed:
                cut = failed
            if attempt == 0:
                self._on_cut(cut)
            pause = pause_s(attempt) if cut.retry_after_s is None else cut.retry_after_s
            if self._clock() - self._heard_at + pause > self._patience_s:
                raise cut
            self._sleep(pause)
            attempt += 1

    def _connection(self) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"}
        if self._token:
            headers["Last-Event-ID"] = self._token
        with self._http.open(self._path, params=self._params, headers=headers, silence_s=STREAM_SILENCE_S) as response:
            try:
                for event in httpx2.EventSource(response):
                    self._heard_at = self._clock()
                    document = json.loads(event.data)
                    if event.event == "error":
                        raise from_problem(int(document.get("status") or 500), document)
                    if event.event == "end":
                        self.end = _end(document)
                        return
                    # The id of the parser is sticky: an event without one repeats the one before.
                    self._token = event.id or self._token
                    yield Event(event.event, document, event.id)
            except (httpx2.SSEError, ValueError) as garbled:
                raise Internal(f"the stream is garbled ({garbled}): is this the address of a Weft platform?") from None


def _end(document: Mapping[str, Any]) -> End:
    return End(
        id=str(document.get("id", "")),
        status=str(document.get("status", "")),
        reason=str(document.get("reason") or ""),
        message=str(document.get("message") or ""),
        exit_code=document.get("exit_code"),
        deleted=bool(document.get("deleted")),
    )

"""The transport of the synchronous client: its own for a platform on this machine, else the HTTP library's.

The HTTP library takes 60 ms to import, as long as all else that `weft list` does. A request to a platform on loopback
needs none of what it adds (TLS, proxies), so it goes over a plain socket. Uploads and streams always use the library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft._loopback import Loopback, is_plain_loopback
from weft._profile import Profile
from weft.http_exchange import Answer

if TYPE_CHECKING:
    import httpx2

    from weft._httpx import Httpx, Stream


class Transport:
    """Speaks to one platform with one key; threads may share it."""

    def __init__(self, profile: Profile, *, transport: httpx2.BaseTransport | None = None) -> None:
        self._profile = profile
        self._given = transport
        self._lock = threading.Lock()
        self._library: Httpx | None = None
        self._process = os.getpid()
        """The process that has made the clients."""
        self._inherited: Httpx | None = None
        """Of the process that this was forked from. Not closed: its locks are as they were in that one's threads."""
        self._loopback: Loopback | None = None
        if transport is None and is_plain_loopback(profile.url):
            self._loopback = Loopback(profile)
        else:
            self._httpx()  # an address or a key that cannot be used is an error now

    def close(self) -> None:
        self._leave_inherited()
        if self._loopback is not None:
            self._loopback.close()
        if self._library is not None:
            self._library.close()

    def _leave_inherited(self) -> None:
        """In a process that was forked, such as a worker of `multiprocessing`: it makes connections of its own.

        On common ones the two processes would get each other's answers.
        """
        if self._process == os.getpid():
            return
        if self._loopback is not None:
            self._loopback.drop_idle()  # they stay open in the other process
        self._inherited, self._library = self._library, None
        self._lock, self._process = threading.Lock(), os.getpid()

    def request(
        self, method: str, path: str, *, params: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> Answer:
        """``body``: sent as JSON; None: no body."""
        self._leave_inherited()
        way = self._loopback or self._httpx()
        return way.request(method, path, params=params, body=body, headers=headers)

    def upload(
        self, path: str, *, parts: Sequence[tuple[str, Any]], headers: Mapping[str, str], answer_s: float
    ) -> Answer:
        """POST a multipart form. ``answer_s``: the longest time for the answer after the form is sent."""
        return self._httpx().upload(path, parts=parts, headers=headers, answer_s=answer_s)

    def open(self, path: str, *, params: Mapping[str, Any], headers: Mapping[str, str], silence_s: float) -> Stream:
        """A GET. ``silence_s``: the longest time between two pieces of the body."""
        return self._httpx().open(path, params=params, headers=headers, silence_s=silence_s)

    def _httpx(self) -> Httpx:
        """The HTTP library's client; made when it is first needed."""
        from weft._httpx import Httpx  # noqa: PLC0415 - see the module's docstring

        self._leave_inherited()
        with self._lock:
            if self._library is None:
                self._library = Httpx(self._profile, transport=self._given)
            return self._library

"""Requests to the platform: one place that knows about keys, patience, problems and proxies.

What this module keeps true:

* A request that may safely be sent twice (GET, or a POST that the platform recognises as the same one) outlives a
  restart of the platform: 429, 503 and broken connections are tried again with growing, jittered pauses, or when
  Retry-After says so. How long: a couple of seconds while the platform has never answered (it is probably not there,
  and somebody waits for that news), longer once it has.
* A request that never left (no connection) is always safe to send again.
* Every answer that is no success becomes a typed error (`weft._errors`).
* The key goes to the configured address alone: redirects are not followed, and nothing on this machine's loopback ever
  goes through a proxy.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import httpx2

from weft._errors import ConnectionFailed, InvalidRequest, Unavailable, WeftError, from_problem
from weft._profile import Profile, is_loopback
from weft._version import sdk_version

# How long a request is tried before and after the platform has answered this client, in seconds. An api that dies is
# back within 2 s (promises.md, R6); 20 s also covers a machine that is starting.
FIRST_PATIENCE_S = 2.0
PATIENCE_S = 20.0
_RETRIED = frozenset({429, 502, 503, 504})
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 4.0

# An event stream sends a comment every 15 s: three lost ones mean that it is dead.
STREAM_SILENCE_S = 45.0
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0)


def pause_s(attempt: int, *, jitter: Callable[[], float] = random.random) -> float:
    """Seconds to wait before try number ``attempt`` + 2: doubling, between half and the whole of each step."""
    return float(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**attempt)) * (0.5 + jitter() / 2)


class Http:
    """Speaks to one platform with one key. Threads may share it. ``on_wait`` hears why a request is tried again."""

    def __init__(
        self,
        profile: Profile,
        *,
        transport: httpx2.BaseTransport | None = None,
        on_wait: Callable[[WeftError], None] = lambda _why: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.profile = profile
        self._on_wait = on_wait
        self._clock = clock
        self._sleep = sleep
        self._answered = False
        try:
            address = httpx2.URL(profile.url)
            local = is_loopback(address.host)
            # Reading the system's certificates takes longer than all else that `weft list` does. Without them nothing
            # is trusted: should anything ever be asked over TLS here, it fails.
            trust = True if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            headers = {"Authorization": f"Bearer {profile.key}"} if profile.key else {}
            headers["User-Agent"] = f"weft-sdk/{sdk_version()}"
            self._client = httpx2.Client(
                base_url=profile.url, headers=headers, timeout=_TIMEOUT, trust_env=not local, transport=transport,
                verify=trust,
            )  # fmt: skip
        except (httpx2.InvalidURL, UnicodeEncodeError) as wrong:
            raise InvalidRequest(f"the address or key of this profile cannot be used: {wrong}") from None

    def close(self) -> None:
        self._client.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        safe: bool | None = None,
    ) -> dict[str, Any]:
        """Send and read a JSON object. ``safe``: may be sent twice; by default, GET is."""
        response = self.send(
            lambda: self._client.build_request(
                method, path, params=_present(params), json=body, headers=dict(headers or {})
            ),
            safe=method == "GET" if safe is None else safe,
        )
        return _object(response)

    def upload(self, path: str, *, parts: Callable[[], list[tuple[str, Any]]], key: str) -> dict[str, Any]:
        """POST a multipart form under an idempotency key. ``parts`` gives fresh, rewound parts for each try."""
        headers = {"Idempotency-Key": key}
        # No limit on writing: the network decides how long an upload takes. A long read: the platform stores it.
        slow = httpx2.Timeout(300.0, connect=5.0)
        response = self.send(
            lambda: self._client.build_request("POST", path, files=parts(), headers=headers, timeout=slow), safe=True
        )
        return _object(response)

    def send(self, build: Callable[[], httpx2.Request], *, safe: bool) -> httpx2.Response:
        """The answer to the request that ``build`` makes, tried again as the module says; a typed error otherwise."""

        def once() -> httpx2.Response:
            with self._wrapped():
                response = self._client.send(build())
            self._answered = True
            if not response.is_success:
                raise problem_of(response)
            return response

        return self._patiently(once, safe=safe)

    @contextmanager
    def open(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = 60.0,
    ) -> Generator[httpx2.Response, None, None]:
        """A GET whose body is read while it comes. Tried again until it begins; the caller handles a later cut."""
        timeout = httpx2.Timeout(silence_s, connect=5.0)

        def once() -> httpx2.Response:
            request = self._client.build_request(
                "GET", path, params=_present(params), headers=dict(headers or {}), timeout=timeout
            )
            with self._wrapped():
                response = self._client.send(request, stream=True)
                self._answered = True
                if not response.is_success:
                    with closing(response):
                        response.read()
                    raise problem_of(response)
            return response

        response = self._patiently(once, safe=True)
        with closing(response), self._wrapped():
            yield response

    def _patiently(self, once: Callable[[], httpx2.Response], *, safe: bool) -> httpx2.Response:
        began, attempt = self._clock(), 0
        while True:
            try:
                return once()
            except WeftError as failed:
                if not (safe and _worth_retrying(failed)) and not isinstance(failed, NeverSent):
                    raise
                pause = pause_s(attempt) if failed.retry_after_s is None else failed.retry_after_s
                patience = PATIENCE_S if self._answered else FIRST_PATIENCE_S
                if self._clock() - began + pause > patience:
                    raise
                self._on_wait(failed)
                self._sleep(pause)
                attempt += 1

    def _wrapped(self) -> AbstractContextManager[None]:
        return _typed_errors(self.profile.url)


class NeverSent(ConnectionFailed):
    """No connection could be made: the platform cannot have seen the request."""


@contextmanager
def _typed_errors(url: str) -> Generator[None, None, None]:
    """Turn what the HTTP library raises into the SDK's errors."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as failed:
        host = httpx2.URL(url).host
        todo = "start it with `weft up`" if is_loopback(host) else "check the address (`weft profile`) and the network"
        raise NeverSent(f"nothing answers at {url} ({_reason(failed)}); {todo}") from failed
    except httpx2.TimeoutException as failed:
        raise ConnectionFailed(f"{url} does not answer in time; try again") from failed
    except httpx2.TransportError as failed:
        raise ConnectionFailed(f"the connection to {url} broke ({_reason(failed)}); try again") from failed
    except httpx2.InvalidURL as failed:
        raise InvalidRequest(f"'{url}' is no address of a platform: {failed}") from failed


def _reason(failed: Exception) -> str:
    text = str(failed) or type(failed).__name__
    return "connection refused" if "refused" in text.lower() else text


def _worth_retrying(failed: WeftError) -> bool:
    return isinstance(failed, ConnectionFailed) or failed.status in _RETRIED


def problem_of(response: httpx2.Response) -> WeftError:
    """The error of an answer that is no success."""
    if response.is_redirect:
        where = response.headers.get("location", "elsewhere")
        return InvalidRequest(f"this address only points to {where}; sign in there: `weft login URL`")
    try:
        problem = response.json()
    except ValueError:
        problem = None
    return from_problem(
        response.status_code,
        problem if isinstance(problem, dict) else None,
        retry_after=response.headers.get("retry-after"),
    )


def _object(response: httpx2.Response) -> dict[str, Any]:
    if not response.content:
        return {}
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unavailable("the answer is not JSON: is this the address of a Weft platform? (`weft profile`)")
    return document


def _present(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters without those that were not given; flags as the platform writes them."""
    given = {name: value for name, value in (params or {}).items() if value is not None and value != ()}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}

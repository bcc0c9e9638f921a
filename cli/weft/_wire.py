"""Requests and answers, for both clients: retry limits, headers, problem documents and their errors."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2

from weft._errors import ConnectionFailed, InvalidRequest, Unavailable, WeftError, from_problem
from weft._profile import Profile, is_loopback
from weft._version import sdk_version

# How long a request is tried before and after the platform has answered this client, in seconds. An api that dies is
# back within 2 s (promises.md, R6); 20 s also covers a machine that is starting.
FIRST_RETRY_FOR_S = 2.0
RETRY_FOR_S = 20.0
_RETRIED = frozenset({429, 502, 503, 504})
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 4.0

# An event stream sends a comment every 15 s: three lost ones mean that it is dead.
STREAM_SILENCE_S = 45.0
TIMEOUT = httpx2.Timeout(30.0, connect=5.0)


def pause_s(attempt: int, *, jitter: Callable[[], float] = random.random) -> float:
    """Seconds to wait before try number ``attempt`` + 2: doubling, between half and the whole of each step."""
    return float(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**attempt)) * (0.5 + jitter() / 2)


class NeverSent(ConnectionFailed):
    """No connection could be made: the platform cannot have seen the request."""


@contextmanager
def typed_errors(url: str) -> Generator[None, None, None]:
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


def client_options(profile: Profile) -> dict[str, Any]:
    """Of the HTTP library's client, for this platform and key. InvalidRequest where they cannot be used."""
    try:
        address = httpx2.URL(profile.url)
        headers = {"Authorization": f"Bearer {profile.key}"} if profile.key else {}
        headers["User-Agent"] = f"weft-sdk/{sdk_version()}"
        profile.key.encode("ascii")
    except (httpx2.InvalidURL, UnicodeEncodeError) as wrong:
        raise InvalidRequest(f"the address or key of this profile cannot be used: {wrong}") from None
    # Reading the system's certificates takes longer than all else that `weft list` does. Without them nothing is
    # trusted: should anything ever be asked over TLS here, it fails.
    trust = True if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {
        "base_url": profile.url, "headers": headers, "timeout": TIMEOUT, "trust_env": not is_loopback(address.host),
        "verify": trust,
    }  # fmt: skip


def once_only(method: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers under which the platform acts once, however often this request is sent: a POST gets a key of its own."""
    given = dict(headers or {})
    if method == "POST":
        given.setdefault("Idempotency-Key", os.urandom(16).hex())
    return given


def worth_retrying(failed: WeftError) -> bool:
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


def json_object(response: httpx2.Response) -> dict[str, Any]:
    if not response.content:
        return {}
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unavailable("the answer is not JSON: is this the address of a Weft platform? (`weft profile`)")
    return document


def present(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters without those that were not given; flags as the platform writes them."""
    given = {name: value for name, value in (params or {}).items() if value is not None and value != ()}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}

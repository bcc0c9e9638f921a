"""The options and errors of the HTTP library, for both of its clients."""

from __future__ import annotations

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2

from weft._errors import Internal, InvalidRequest
from weft._profile import Profile, is_loopback
from weft._wire import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, broken, common_headers, never_sent, timed_out


def timeout(answer_s: float) -> httpx2.Timeout:
    """``answer_s``: the longest time between two pieces of the answer."""
    return httpx2.Timeout(answer_s, connect=CONNECT_TIMEOUT_S)


@contextmanager
def typed_errors(url: str, *, home: str = "") -> Generator[None, None, None]:
    """Raises the SDK's errors in place of those of the HTTP library. ``home``: as for `never_sent`."""
    try:
        yield
    except httpx2.SSEError as garbled:
        raise Internal(f"the stream is garbled ({garbled}): is this the address of a Weft platform?") from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as failed:
        raise never_sent(url, httpx2.URL(url).host, failed, home=home) from failed
    except httpx2.TimeoutException as failed:
        raise timed_out(url) from failed
    except httpx2.TransportError as failed:
        raise broken(url, failed) from failed
    except httpx2.InvalidURL as failed:
        raise InvalidRequest(f"'{url}' is no address of a platform: {failed}") from failed


def client_options(profile: Profile) -> dict[str, Any]:
    """Of the HTTP library's client, for this platform and key. InvalidRequest where they cannot be used."""
    try:
        address = httpx2.URL(profile.url)
    except httpx2.InvalidURL as wrong:
        raise InvalidRequest(f"the address of this profile cannot be used: {wrong}") from None
    # Reading the system's certificates takes longer than a request on this machine. Without them nothing is trusted:
    # a request over TLS would fail.
    trust = True if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {
        "base_url": profile.url,
        "headers": common_headers(profile),
        "timeout": timeout(ANSWER_TIMEOUT_S),
        "trust_env": not is_loopback(address.host),
        "verify": trust,
    }

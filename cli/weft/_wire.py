"""Requests and answers, for both clients and all transports: retry limits, headers, problem documents, their errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from weft._errors import ConnectionFailed, InvalidRequest, Unavailable, WeftError, from_problem
from weft._profile import Profile, is_loopback
from weft._version import SDK_VERSION
from weft.http_exchange import Answer, bearer

# How long a request is tried again after its first failure, before and after the platform has answered this client, in
# seconds. An api that dies is back within 2 s (promises.md, R6); 20 s also covers a machine that is starting.
FIRST_RETRY_FOR_S = 2.0
RETRY_FOR_S = 20.0
_RETRIED = frozenset({429, 502, 503, 504})
_PAUSE_S, LONGEST_PAUSE_S = 0.1, 4.0

# An event stream sends a comment every 15 s: three lost ones mean that it is dead.
STREAM_SILENCE_S = 45.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


DELETED: Final = Answer(204, {}, b"")


def _chance() -> float:
    """A random number from 0 to 1, without the module `random`, which takes 10 ms to import."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def pause_s(attempt: int, *, jitter: Callable[[], float] = _chance) -> float:
    """Seconds to wait before try number ``attempt`` + 2: doubling, between half and the whole of each step."""
    return float(min(LONGEST_PAUSE_S, _PAUSE_S * 2**attempt)) * (0.5 + jitter() / 2)


class NeverSent(ConnectionFailed):
    """No connection could be made: the platform cannot have seen the request."""


def never_sent(url: str, host: str, failed: Exception, *, home: str = "") -> NeverSent:
    """The error of a connection that was not made. ``home``: the folder of a platform of this machine, if known."""
    todo = "check the address (`weft profile`) and the network"
    if is_loopback(host):
        import shlex  # noqa: PLC0415 - most commands reach the platform

        todo = f"start it with `weft up{f' --home {shlex.quote(home)}' if home else ''}`"
    return NeverSent(f"nothing answers at {url} ({_reason(failed)}); {todo}")


def timed_out(url: str) -> ConnectionFailed:
    return ConnectionFailed(f"{url} does not answer in time; try again")


def broken(url: str, failed: Exception) -> ConnectionFailed:
    return ConnectionFailed(f"the connection to {url} broke ({_reason(failed)}); try again")


def _reason(failed: Exception) -> str:
    text = str(failed) or type(failed).__name__
    return "connection refused" if "refused" in text.lower() else text


def common_headers(profile: Profile) -> dict[str, str]:
    """The headers of every request with this key. Raises InvalidRequest if the key cannot be a header's value."""
    if not (profile.key.isascii() and profile.key.isprintable()):
        raise InvalidRequest("the key of this profile cannot be used: it has characters that no key has")
    return {**bearer(profile.key), "User-Agent": f"weft-sdk/{SDK_VERSION}"}


def once_only(method: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers under which the platform acts once, however often this request is sent: a POST gets a key of its own."""
    given = dict(headers or {})
    if method == "POST":
        given.setdefault("Idempotency-Key", os.urandom(16).hex())
    return given


def worth_retrying(failed: WeftError) -> bool:
    return isinstance(failed, ConnectionFailed) or failed.status in _RETRIED


def perhaps_done(failed: WeftError) -> bool:
    """The platform may have acted on the request, although it failed: its answer was lost, or a store's was."""
    return worth_retrying(failed) and not isinstance(failed, NeverSent) and failed.status != 429


def problem_of(answer: Answer) -> WeftError:
    """The error of an answer that is no success."""
    if answer.status in _REDIRECTS and "location" in answer.headers:
        return InvalidRequest(
            f"this address only points to {answer.headers['location']}; sign in there: `weft login URL`"
        )
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = None
    return from_problem(
        answer.status, problem if isinstance(problem, dict) else None, retry_after=answer.headers.get("retry-after")
    )


def json_object(answer: Answer) -> dict[str, Any]:
    if not answer.body:
        return {}
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unavailable("the answer is not JSON: is this the address of a Weft platform? (`weft profile`)")
    return document


def present(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters without those that were not given; flags as the platform writes them."""
    given = {name: value for name, value in (params or {}).items() if value is not None and value != ()}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}

"""Intercepts the calls of any port.

    store = intercept_calls(store, "jobs", interceptor)     # still a JobStore

Every coroutine method of the port is intercepted, so there is no list of calls to maintain. Failpoints kill a process
at such a call (``services.core.failpoints.ports``); tests/simulation kills, pauses or cuts it off there. Plain methods
are called directly: they only read memory.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from services.core.domain.job import Job

Port = TypeVar("Port")
_ID: Final = re.compile(r"(?<![0-9a-z])[a-z][0-9a-hjkmnp-tv-z]{22}(?![0-9a-z])")
_NAMED_CHANGES: Final = ("guardian", "verdict", "released")
"""Fields whose change is part of a replace's subject. Which others change in the same write depends on timing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a port."""

    port: str
    method: str
    subject: str = ""
    """What it is about, without ids, so that it is equal in each run: a plan's step, a key, a job's new status."""

    @property
    def name(self) -> str:
        """``cluster.do``."""
        return f"{self.port}.{self.method}"

    def __str__(self) -> str:
        """``cluster.do(reserve)``."""
        return f"{self.name}({self.subject})" if self.subject else self.name


class CallInterceptor(Protocol):
    """Runs before and after each call of a port."""

    async def call(self, call: Call, act: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the result of the call. ``act`` makes it: the interceptor awaits ``act()`` once, or not at all."""
        ...

    def stream(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Returns the items of a method that is an async generator."""
        ...


def intercept_calls(port: Port, name: str, interceptor: CallInterceptor) -> Port:
    """Returns a port that does what ``port`` does, each call through ``interceptor``, under the port's ``name``."""
    return cast("Port", _InterceptedPort(port, name, interceptor))


class _InterceptedPort:
    def __init__(self, port: Any, name: str, interceptor: CallInterceptor) -> None:
        self._port, self._name, self._interceptor = port, name, interceptor

    def __getattr__(self, attribute: str) -> Any:
        method = getattr(self._port, attribute)
        if inspect.iscoroutinefunction(method):

            async def call(*args: Any, **kwargs: Any) -> Any:
                intercepted = Call(self._name, attribute, call_subject(args))
                return await self._interceptor.call(intercepted, lambda: method(*args, **kwargs))

            return call
        if inspect.isasyncgenfunction(method):

            def stream(*args: Any, **kwargs: Any) -> Any:
                return self._interceptor.stream(method(*args, **kwargs))

            return stream
        return method


def call_subject(args: Sequence[Any]) -> str:
    """Returns what a call with these arguments is about; "" where the arguments have nothing that is stable."""
    jobs = [argument for argument in args if isinstance(argument, Job)]
    if len(jobs) == 2:
        return _replace_subject(*jobs)
    first = args[0] if args else None
    if isinstance(first, Job):
        return str(first.status)
    if isinstance(first, str):
        return "" if _ID.fullmatch(first) else without_ids(first)
    if is_dataclass(first):  # a query: the names of the fields that are set
        given = [
            field.name for field in fields(first) if getattr(first, field.name) not in (None, (), "", field.default)
        ]
        return "+".join(name for name in given if name not in {"after", "rev", "holder"})
    return ""


def without_ids(text: str) -> str:
    """Returns a key or path with ``*`` for each id in it."""
    return _ID.sub("*", text)


def _replace_subject(prior: Job, new: Job) -> str:
    """The new status and the named fields that changed."""
    if new.state == prior.state and new.history_tail != prior.history_tail:
        return "history copied"
    changed = [name for name in _NAMED_CHANGES if getattr(prior, name) != getattr(new, name)]
    return " ".join([str(new.status), *changed])

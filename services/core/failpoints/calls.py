"""One stand-in for every port: somebody sees each call, before it has an effect and after.

    store = intercept_calls(store, "jobs", watcher)     # a JobStore still

Which calls there are comes from the ports themselves, so nobody keeps a list: what is called through a port is a point
at which a process may die (``services.core.failpoints.points``) or be cut off (the crash points of tests/simulation).
Streams and plain methods pass through: they read.
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
_TURNS: Final = ("guardian", "verdict", "released")
"""Fields whose change is a turn in a job's life; others may change together or one by one, as it happens."""
"""What a document's change is not called after, unless it is all that changed."""


@dataclass(frozen=True, slots=True)
class Call:
    port: str
    method: str
    about: str = ""
    """What it is about, the same in each life of a job: the step, the key without its ids, what a document becomes."""

    @property
    def name(self) -> str:
        """``cluster.do``."""
        return f"{self.port}.{self.method}"

    def __str__(self) -> str:
        """``cluster.do(reserve)``."""
        return f"{self.name}({self.about})" if self.about else self.name


class CallInterceptor(Protocol):
    async def call(self, call: Call, act: Callable[[], Awaitable[Any]]) -> Any:
        """Whatever ``act`` returns, called once; or something else."""
        ...

    def stream(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The items as they come."""
        ...


def intercept_calls(port: Port, name: str, watcher: CallInterceptor) -> Port:
    """A port that does what ``port`` does, each call through ``watcher``."""
    return cast("Port", _StandIn(port, name, watcher))


class _StandIn:
    def __init__(self, port: Any, name: str, watcher: CallInterceptor) -> None:
        self._port, self._name, self._watcher = port, name, watcher

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        if inspect.iscoroutinefunction(found):

            async def call(*args: Any, **kwargs: Any) -> Any:
                made = Call(self._name, attribute, about(args))
                return await self._watcher.call(made, lambda: found(*args, **kwargs))

            return call
        if inspect.isasyncgenfunction(found):

            def stream(*args: Any, **kwargs: Any) -> Any:
                return self._watcher.stream(found(*args, **kwargs))

            return stream
        return found


def about(args: Sequence[Any]) -> str:
    """What a call with these arguments is about; "" where they say nothing that is the same in each life."""
    jobs = [one for one in args if isinstance(one, Job)]
    if len(jobs) == 2:
        return _change(*jobs)
    first = args[0] if args else None
    if isinstance(first, Job):
        return str(first.status)
    if isinstance(first, str):
        return "" if _ID.fullmatch(first) else without_ids(first)
    if is_dataclass(first):  # a query: by what it asks for
        asked = [each.name for each in fields(first) if getattr(first, each.name) not in (None, (), "", each.default)]
        return "+".join(name for name in asked if name not in {"after", "rev", "holder"})
    return ""


def without_ids(text: str) -> str:
    """Keys and paths with ``*`` for each id in them."""
    return _ID.sub("*", text)


def _change(prior: Job, new: Job) -> str:
    if new.state == prior.state and new.history_tail != prior.history_tail:
        return "history copied"
    turns = [name for name in _TURNS if getattr(prior, name) != getattr(new, name)]
    return " ".join([str(new.status), *turns])

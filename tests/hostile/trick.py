"""One trick: what an attacker does, and how the platform's answer is judged. The auditor judges what is true of all."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.hostile.arena import Arena, end
from tests.hostile.attacks.ground import BREACH, OVER
from weft import NotFinished, NotFound
from weft._job import Job

_END_S: Final = 180.0
"""An attack ends within this time, in seconds: its bounds sum up to less."""
_LINES: Final = 10_000
_FILES: Final = 300
_BYTES: Final = 50_000_000
Play = Callable[[Arena], Iterable[str]]
"""Plays the trick. Yields what went wrong for the platform."""


@dataclass(frozen=True, kw_only=True)
class Trick:
    name: str
    theme: str
    does: str
    """One sentence, for docs/hostile.md."""
    play: Play = field(repr=False)
    quick: bool = False
    """Part of `make test`."""
    restarts: bool = False
    """The trick itself restarts services."""
    pointless: Mapping[str, str] = field(default_factory=dict)
    """Isolation -> why the trick has no meaning there, or cannot be judged. It is not played there."""


def of_learner(
    attack: Callable[[], None],
    *,
    spec: Mapping[str, Any] | None = None,
    ends: Collection[str] = ("COMPLETED",),
    finishes: bool = True,
    during: Callable[[Arena, Job], Iterable[str]] | None = None,
    check: Callable[[Arena, Job], Iterable[str]] | None = None,
    quick: bool = False,
    restarts: bool = False,
    pointless: Mapping[str, str] | None = None,
) -> Trick:
    """A trick of a learner. ``attack``: a function of ``tests.hostile.attacks``, which runs inside the learner.

    ``finishes``: it reaches its own end. ``during``: what happens outside while it runs.
    """
    module = attack.__module__.rpartition(".")[2]

    def play(arena: Arena) -> Iterator[str]:
        job = arena.attack(module, attack.__name__, spec or {})
        if during is not None:
            yield from during(arena, job)
        yield from judge(arena, job, ends=ends, finishes=finishes)
        if check is not None:
            yield from check(arena, job)

    return Trick(
        name=_words(attack.__name__),
        theme=module,
        does=_sentence(attack),
        play=play,
        quick=quick,
        restarts=restarts,
        pointless=pointless or {},
    )


def of_request(theme: str, *, quick: bool = False) -> Callable[[Play], Trick]:
    """A trick of requests: its function sends them."""

    def made(play: Play) -> Trick:
        return Trick(name=_words(play.__name__), theme=theme, does=_sentence(play), play=play, quick=quick)

    return made


def judge(
    arena: Arena, job: Job, *, ends: Collection[str] = ("COMPLETED",), finishes: bool = True, reads: bool = True
) -> Iterator[str]:
    """Waits for the attack's end. Yields breaches, canaries in what it has produced, and an end that must not be."""
    try:
        job.wait(_END_S)
    except NotFinished as error:
        yield f"the end does not come: {error}"
        end(job)
        return
    if job.status not in ends:
        yield described(job)
    if not reads:
        return
    lines = [line.text for line in job.logs(tail=_LINES)]
    yield from (line for line in lines if line.startswith(BREACH))
    if finishes and OVER not in lines:
        yield f"the attack was not tried to its end: {lines[-3:]}"
    yield from leaked(arena, "its output", "\n".join(lines))
    yield from _stored(arena, job)


def described(job: Job) -> str:
    """How the attack has ended, with its history: the job is gone when the report is read."""
    history = [f"{event.to} {event.attempt} {event.reason} {event.message}" for event in job.history()]
    return f"the attack is {job.status} in attempt {job.attempt} ({job.reason}: {job.message}); {'; '.join(history)}"


def leaked(arena: Arena, where: str, text: str) -> Iterator[str]:
    """Yields the names of canaries and secrets that the text holds."""
    for name, secret in arena.secret_texts().items():
        if secret in text:
            yield f"{where} holds the canary '{name}'"


def _stored(arena: Arena, job: Job) -> Iterator[str]:
    files = list(job.artifacts())
    if len(files) > _FILES or sum(file.size for file in files) > _BYTES:
        return
    with tempfile.TemporaryDirectory() as folder:
        for what in ("results", "logs", "checkpoints"):
            place = Path(folder) / what
            try:
                paths = job.download(place, what=what)
            except NotFound:
                continue  # it has stored none of these
            for path in paths:
                if not path.resolve().is_relative_to(place.resolve()):
                    yield f"a download leaves its folder: {path}"
                yield from leaked(arena, f"the stored file {path.name!r}", path.read_bytes().decode("latin-1"))


def _words(name: str) -> str:
    return re.sub(r"^_+", "", name).replace("_", " ")


def _sentence(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split())

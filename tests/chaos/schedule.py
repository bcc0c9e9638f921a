"""Which faults hit which victims, and when: a pure function of the seed, so that a run can be replayed.

Times are seconds from the first fault. A victim among several processes is chosen by its position in their order at the
time of the fault, because pids are not known beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

SERVICES: Final = ("api", "lcm", "guardian", "metrics", "node", "etcd", "worker")
TIMED: Final = ("api", "lcm", "guardian", "metrics", "node")
"""Services whose clock can be made to jump."""
SECOND: Final = "second machine"
GAP_S: Final = 0.8
"""Mean seconds between two faults."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: its victims, its duration (seconds: least, most) and its weight in the schedule."""

    name: str
    victims: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)
    weight: int = 1
    needs: str = ""
    """Requirement of this kind: root (for mounts), clocks, seconds (second services), servers or hints; "": none."""


KINDS: Final = (
    Kind("kill", ("api", "lcm", "guardian", "metrics", "node", "etcd", "worker"), weight=2),
    Kind("kill one of", ("helpers", "learners", "shims"), weight=2),
    Kind("kill all of", ("services", "services and helpers")),
    # A service of the second machine: nothing restarts it until the fault ends.
    Kind("kill second", ("lcm", "guardian"), (0.5, 4.0), weight=2, needs="seconds"),
    Kind("stop second", ("lcm", "guardian"), (3.5, 6.0), weight=2, needs="seconds"),
    # Nothing restarts services until the supervisor is back.
    Kind("supervisor away", ("supervisor",), (0.5, 3.0)),
    # Longer than the lease, so that others have taken over when it resumes.
    Kind("stop", ("api", "lcm", "guardian", "metrics", "node", "etcd"), (3.5, 6.0)),
    Kind("stop one of", ("helpers",), (1.0, 6.0)),
    Kind("disk full", ("stores",), (1.0, 3.0), needs="root"),
    Kind("clock forth", TIMED, (1.5, 4.0), needs="clocks"),
    Kind("clock back", TIMED, (1.5, 4.0), needs="clocks"),
    # Hints are also lost with killed and stopped processes, and all of them in every fifth seed.
    Kind("hints doubled", ("lcm", "guardian"), needs="hints"),
    Kind("cut off", ("jobs", "objects", "broker"), (0.5, 4.0), needs="servers"),
    Kind("silent", ("jobs", "objects", "broker"), (0.5, 4.0), needs="servers"),
    # The second machine loses the first for longer than the lease; its services still hold their old terms.
    Kind("cut off", (SECOND,), (3.5, 6.0), weight=2, needs="seconds"),
    Kind("silent", (SECOND,), (3.5, 6.0), weight=2, needs="seconds"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: str
    victim: str
    for_s: float = 0.0
    share: float = 0.0
    """Position of the victim among several, in [0, 1): 0 is the first."""

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        which = f" ({self.share:.2f})" if self.kind.endswith("one of") else ""
        return f"{self.at_s:7.2f} s  {self.kind} {self.victim}{which}{lasts}"


def schedule(seed: int, count: int, has: Collection[str] = ()) -> list[Fault]:
    """Returns ``count`` faults, of kinds whose requirement is in ``has``."""
    kinds = [kind for kind in KINDS if not kind.needs or kind.needs in has]
    return schedule_of(kinds, random.Random(f"faults {seed}"), count, gap_s=GAP_S)


def schedule_of(kinds: Collection[Kind], chance: random.Random, count: int, *, gap_s: float) -> list[Fault]:
    """Returns ``count`` faults of these kinds, ``gap_s`` seconds apart in the mean."""
    deck = _deck(chance, kinds)
    faults: list[Fault] = []
    now = 0.0
    for _ in range(count):
        kind, victim = next(deck)
        lasts = chance.uniform(*kind.lasts_s)
        faults.append(Fault(round(now, 2), kind.name, victim, round(lasts, 2), round(chance.random(), 3)))
        now += min(3 * gap_s, chance.expovariate(1 / gap_s))
    return faults


def _deck(chance: random.Random, kinds: Collection[Kind]) -> Iterator[tuple[Kind, str]]:
    """Yields all kinds in random order, then all again: even a short schedule has many kinds."""
    cards = [(kind, victim) for kind in kinds for victim in kind.victims for _ in range(kind.weight)]
    while True:
        chance.shuffle(cards)
        yield from cards

"""Which faults hit whom, and when: a pure function of the seed, so that a run can be had again.

Times are seconds from the first fault. What runs in a process is chosen by its place among those that are there when
the fault comes, for nobody knows their pids beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

SERVICES: Final = ("api", "lcm", "guardian", "metrics", "node", "etcd", "worker")
TIMED: Final = ("api", "lcm", "guardian", "metrics", "node")
"""Those whose clock can be made to jump."""
SECOND: Final = "second machine"
GAP_S: Final = 0.8
"""Between two faults, on average."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, whom it may hit, how long it lasts (seconds, at least and at most), and how often it comes."""

    name: str
    victims: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)
    weight: int = 1
    needs: str = ""
    """What a run needs to have for it: root (mounts), clocks, a second machine, its stores as servers, hints."""


KINDS: Final = (
    Kind("kill", ("api", "lcm", "guardian", "metrics", "node", "etcd", "worker"), weight=2),
    Kind("kill one of", ("helpers", "learners", "shims"), weight=2),
    Kind("kill all of", ("services", "services and helpers")),
    # Nobody starts anything again until it is back.
    # Of another machine, as it were: nobody starts it again at once.
    Kind("kill second", ("lcm", "guardian"), (0.5, 4.0), weight=2, needs="seconds"),
    Kind("stop second", ("lcm", "guardian"), (3.5, 6.0), weight=2, needs="seconds"),
    Kind("supervisor away", ("supervisor",), (0.5, 3.0)),
    # Longer than the lease, so that the others take it for dead when it goes on.
    Kind("stop", ("api", "lcm", "guardian", "metrics", "node", "etcd"), (3.5, 6.0)),
    Kind("stop one of", ("helpers",), (1.0, 6.0)),
    Kind("disk full", ("stores",), (1.0, 3.0), needs="root"),
    Kind("clock forth", TIMED, (1.5, 4.0), needs="clocks"),
    Kind("clock back", TIMED, (1.5, 4.0), needs="clocks"),
    # Lost they are with whatever is killed or stopped, and all of them in every fifth seed.
    Kind("hints doubled", ("lcm", "guardian"), needs="hints"),
    Kind("cut off", ("jobs", "objects", "broker"), (0.5, 4.0), needs="servers"),
    Kind("silent", ("jobs", "objects", "broker"), (0.5, 4.0), needs="servers"),
    # From everything of the first, for longer than the lease; what runs on it believes still to be in charge.
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
    """Which one of several: 0 is the first of them, nearly 1 the last."""

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        which = f" ({self.share:.2f})" if self.kind.endswith("one of") else ""
        return f"{self.at_s:7.2f} s  {self.kind} {self.victim}{which}{lasts}"


def schedule(seed: int, count: int, has: Collection[str] = ()) -> list[Fault]:
    """So many faults, none of a kind that needs what this run does not have."""
    chance = random.Random(f"faults {seed}")
    deck = _deck(chance, [kind for kind in KINDS if not kind.needs or kind.needs in has])
    faults: list[Fault] = []
    now = 0.0
    for _ in range(count):
        kind, victim = next(deck)
        lasts = chance.uniform(*kind.lasts_s)
        faults.append(Fault(round(now, 2), kind.name, victim, round(lasts, 2), round(chance.random(), 3)))
        now += min(3 * GAP_S, chance.expovariate(1 / GAP_S))
    return faults


def _deck(chance: random.Random, kinds: Collection[Kind]) -> Iterator[tuple[Kind, str]]:
    """All of them before any comes again, in an order of its own each time: few faults are of many kinds as well."""
    cards = [(kind, victim) for kind in kinds for victim in kind.victims for _ in range(kind.weight)]
    while True:
        chance.shuffle(cards)
        yield from cards

"""Every trick, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from tests.hostile.trick import Trick
from tests.hostile.tricks import code, load, of_learners, pods, specs, tenants

TRICKS: Final[tuple[Trick, ...]] = (
    *of_learners.TRICKS,
    *pods.TRICKS,
    *tenants.TRICKS,
    *specs.TRICKS,
    *code.TRICKS,
    *load.TRICKS,
)
QUICK: Final[tuple[Trick, ...]] = tuple(trick for trick in TRICKS if trick.quick)

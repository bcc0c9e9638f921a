"""Every trick, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from tests.hostile.trick import Trick
from tests.hostile.tricks import of_learners, of_requests

TRICKS: Final[tuple[Trick, ...]] = (*of_learners.TRICKS, *of_requests.TRICKS)
QUICK: Final[tuple[Trick, ...]] = tuple(trick for trick in TRICKS if trick.quick)

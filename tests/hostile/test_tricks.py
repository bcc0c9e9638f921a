"""Hostile learners and users on the running platform: after each trick all is as before, and the next job trains.

`make hostile` plays every trick (docs/hostile.md) on every combination; `make test` plays a few on one.
"""

from __future__ import annotations

from tests.hostile.arena import Arena
from tests.hostile.auditor import audit, look
from tests.hostile.trick import Trick


def test_trick_harms_nobody(arena: Arena, trick: Trick) -> None:
    before = look(arena)
    held = False
    try:
        failures = [*trick.play(arena), *audit(arena, before, restarts=trick.restarts)]
        held = not failures
    finally:
        if not held:
            arena.mend()
    assert held, "\n".join([f"{trick.name} ({trick.does})", *failures[:12]])

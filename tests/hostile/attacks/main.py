"""``python3 -m tests.hostile.attacks.main MODULE FUNCTION``: runs one attack, inside a learner."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.hostile.attacks import ground

if __name__ == "__main__":
    getattr(import_module(f"tests.hostile.attacks.{sys.argv[1]}"), sys.argv[2])()
    ground.say(ground.OVER)

"""The code of a job that attacks: the modules of ``tests/hostile/attacks``, and what the attacker knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_ATTACKS: Final = Path(__file__).with_name("attacks")
IN_POD: Final = "PYTHONSAFEPATH= PYTHONPATH=$PWD python3 -B -m tests.hostile.attacks.main"
"""Runs the attack that follows: module, function. The helper's image imports no code of the working folder itself."""


def attack_files(intel: Mapping[str, Any]) -> dict[str, bytes]:
    """Path in the job's code -> content."""
    files = {f"tests/hostile/attacks/{path.name}": path.read_bytes() for path in _ATTACKS.glob("*.py")}
    return files | {"tests/hostile/attacks/intel.json": json.dumps(intel).encode()}

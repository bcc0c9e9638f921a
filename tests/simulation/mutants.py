"""Planted bugs: each patch of ``mutations/`` is applied to a copy of the tree, and seeds are told until the checker,
unchanged, finds it. A patch that no longer applies fails as one that is not found: the simulation must be mended then,
or the patch drawn anew for the code as it is, never made easier.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).parents[2]
PATCHES: Final = sorted((Path(__file__).parent / "mutations").glob("*.patch"))
SEEDS: Final = 600
"""Within so many each has to be found."""
_PATIENCE_S: Final = 1_200
_CARRIED: Final = ("services", "tests/simulation", "tests/testbed", "tests/documents.py")


@dataclass(frozen=True)
class Found:
    """How a planted bug was found."""

    seed: int
    breach: str
    told: int


class NotFoundOut(AssertionError):
    """A planted bug that nobody noticed, or that cannot be planted any more."""


def plant(patch: Path, into: Path) -> None:
    """A copy of the tree with the bug in it."""
    for name in _CARRIED:
        source, target = TREE / name, into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "*.patch"))
        else:
            shutil.copy(source, target)


async def hunt(patch: Path, into: Path, *, seeds: int = SEEDS) -> Found:
    """The first seed at which the checker finds the bug. NotFoundOut."""
    plant(patch, into)
    code, words = await _run(into, "git", "apply", "--unsafe-paths", str(patch))
    if code:
        raise NotFoundOut(f"{patch.name} does not apply any more: {words}")
    arguments = ("-m", "tests.simulation.seeds", "--count", str(seeds), "--until-breach")
    code, words = await _run(into, sys.executable, *arguments)
    if code:
        raise NotFoundOut(f"{patch.name}: the simulation fell over: {words[-2000:]}")
    sums: dict[str, Any] = json.loads(words)
    assert Path(sums["services"]).is_relative_to(into), "the copy was not what ran"
    if not sums["failures"]:
        raise NotFoundOut(f"{patch.name} was not found by {sums['told']} seeds")
    failure = sums["failures"][0]
    return Found(failure["seed"], failure["breaches"][0], sums["told"])


async def _run(where: Path, *command: str) -> tuple[int, str]:
    """(exit status, what it said)."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=where, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, (out if process.returncode == 0 else err).decode()

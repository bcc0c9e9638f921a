"""Mutation tests: each patch of ``mutations/`` is applied to a copy of the tree, and seeds run until the unchanged
checker detects the bug. A patch that does not apply fails like one that is not detected: the patch must be made again
for the current code, with the same bug.
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

from tests.simulation.seed_run import KUBERNETES, LOCAL

TREE: Final = Path(__file__).parents[2]
PATCHES: Final = sorted((Path(__file__).parent / "mutations").glob("*.patch"))
SEEDS: Final = 600
"""Each bug must be detected within so many seeds."""
_TIMEOUT_S: Final = 1_200
_ADAPTER: Final = "services/core/adapters/kubernetes/"
"""A bug in it is searched for on that cluster."""
_COPIED: Final = ("services", "tests/simulation", "tests/testbed", "tests/documents.py")


@dataclass(frozen=True)
class Detected:
    """How a bug was detected."""

    seed: int
    breach: str
    seeds: int
    """How many seeds ran."""


class NotDetected(AssertionError):
    """A bug was not detected, or its patch does not apply."""


def copy_tree(into: Path) -> None:
    """Copies what the simulation needs."""
    for name in _COPIED:
        source, target = TREE / name, into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "*.patch"))
        else:
            shutil.copy(source, target)


async def detect(patch: Path, into: Path, *, seeds: int = SEEDS) -> Detected:
    """Applies a patch to a copy of the tree in ``into`` and runs seeds up to the first breach. Raises NotDetected."""
    copy_tree(into)
    code, output = await _run(into, "git", "apply", "--unsafe-paths", str(patch))
    if code:
        raise NotDetected(f"{patch.name} does not apply any more: {output}")
    cluster = KUBERNETES if _ADAPTER in patch.read_text() else LOCAL
    arguments = ("-m", "tests.simulation.seeds", "--cluster", cluster, "--count", str(seeds), "--until-breach")
    code, output = await _run(into, sys.executable, *arguments)
    if code:
        raise NotDetected(f"{patch.name}: the simulation failed: {output[-2000:]}")
    sums: dict[str, Any] = json.loads(output)
    assert Path(sums["services"]).is_relative_to(into), "the copy did not run"
    if not sums["failures"]:
        raise NotDetected(f"{patch.name} was not detected by {sums['seeds']} seeds")
    failure = sums["failures"][0]
    return Detected(failure["seed"], failure["breaches"][0], sums["seeds"])


async def _run(folder: Path, *command: str) -> tuple[int, str]:
    """Runs a command in a folder. Returns its exit status and its output, or stderr after a failure."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, (out if process.returncode == 0 else err).decode()

"""Mutation tests of the simulation: its checker detects each bug that a patch puts into the protocols (R3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.promises import Promise
from tests.simulation.mutants import PATCHES, SEEDS, Detected, NotDetected, detect

_QUICK: Final = ("03", "08", "12", "22", "29")
"""The patches that every run tries: they are detected within a few seeds."""
_MIN_PATCHES: Final = 15


@pytest.mark.promise("R3")
async def test_the_checker_detects_bugs_in_the_protocols(promise: Promise, tmp_path: Path) -> None:
    patches = PATCHES if promise.n(short=0, long=1) else [patch for patch in PATCHES if patch.name.startswith(_QUICK)]
    assert len(PATCHES) >= _MIN_PATCHES
    two_at_a_time = asyncio.Semaphore(2)

    async def try_patch(patch: Path) -> Detected | NotDetected:
        async with two_at_a_time:
            try:
                return await detect(patch, tmp_path / patch.stem)
            except NotDetected as error:
                return error

    results = await asyncio.gather(*(try_patch(patch) for patch in patches))
    missed = [str(result) for result in results if isinstance(result, NotDetected)]
    assert not missed, "\n".join(missed)
    for patch, result in zip(patches, results, strict=True):
        assert isinstance(result, Detected)
        promise.saw(f"bug {patch.stem}: detected by seed {result.seed}: {result.breach[:110]}")
    promise.kept(len(patches), f"bugs in the protocols, each detected by the unchanged checker within {SEEDS} seeds")

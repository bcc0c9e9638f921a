"""What the checker is worth: bugs planted in the protocols are each found by it (R3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.promises import Promise
from tests.simulation.mutants import PATCHES, SEEDS, Found, NotFoundOut, hunt

_QUICK: Final = ("03", "08", "12", "22")
"""Those that every run looks for: found within a few seeds."""
_LEAST: Final = 15


@pytest.mark.promise("R3")
async def test_bugs_planted_in_the_protocols_are_found(promise: Promise, tmp_path: Path) -> None:
    patches = PATCHES if promise.n(short=0, long=1) else [one for one in PATCHES if one.name.startswith(_QUICK)]
    assert len(PATCHES) >= _LEAST
    turn = asyncio.Semaphore(2)

    async def one(patch: Path) -> Found | NotFoundOut:
        async with turn:
            try:
                return await hunt(patch, tmp_path / patch.stem)
            except NotFoundOut as error:
                return error

    found = await asyncio.gather(*(one(patch) for patch in patches))
    missed = [str(each) for each in found if isinstance(each, NotFoundOut)]
    assert not missed, "\n".join(missed)
    for patch, each in zip(patches, found, strict=True):
        assert isinstance(each, Found)
        promise.saw(f"planted {patch.stem}: caught by seed {each.seed}: {each.breach[:110]}")
    promise.kept(len(patches), f"planted bugs, each caught by the unchanged checker within {SEEDS} seeds")

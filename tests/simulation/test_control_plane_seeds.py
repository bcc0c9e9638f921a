"""Faults in any order: one live attempt at any time, and once they stop, every job becomes what its owner wants.

Each seed is one story of several jobs and at least three faults, in virtual time, told to a checker that knows no code
of the services (R3, R8). ``make promise R=R8`` tells ten thousand; ``python -m tests.simulation.seeds 17`` tells one
again, line by line.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.promises import Promise
from tests.simulation.faults import KINDS
from tests.simulation.story import FAULTS_EACH

_TREE = Path(__file__).parents[2]
_PART = 250
"""Seeds per process at most: so that both cores have work to the end."""


async def told(first: int, count: int, **environ: str) -> dict[str, Any]:
    """These seeds, in a process of their own."""
    arguments = ("-m", "tests.simulation.seeds", "--first", str(first), "--count", str(count))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=_TREE, env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    sums: dict[str, Any] = json.loads(out)
    return sums


async def all_told(count: int) -> list[dict[str, Any]]:
    """Two at a time."""
    turn = asyncio.Semaphore(2)

    async def part(first: int, seeds: int) -> dict[str, Any]:
        async with turn:
            return await told(first, seeds)

    each = min(_PART, (count + 1) // 2)
    return await asyncio.gather(*(part(first, min(each, count - first)) for first in range(0, count, each)))


def how(failure: dict[str, Any]) -> str:
    lines = "\n".join([*failure["last"], *failure["breaches"]])
    return f"{lines}\nseed {failure['seed']}; again: .venv/bin/python -m tests.simulation.seeds {failure['seed']}"


@pytest.mark.promise("R3", "R8")
async def test_once_the_faults_stop_every_job_becomes_what_its_owner_wants_and_nothing_was_ever_doubled(
    promise: Promise,
) -> None:
    count = promise.n(short=120, long=10_000)
    parts = await all_told(count)
    failures = [failure for part in parts for failure in part["failures"]]
    assert not failures, f"{len(failures)} of {count} seeds; the first: {how(failures[0])}"
    faults = sum((Counter(part["faults"]) for part in parts), Counter[str]())
    applied_keys = sum((Counter(part["wishes"]) for part in parts), Counter[str]())
    assert sum(part["told"] for part in parts) == count
    assert min(part["least"] for part in parts) >= FAULTS_EACH
    assert set(faults) <= set(KINDS)
    rare = {kind: faults[kind] for kind in KINDS if faults[kind] < count // 100}
    assert count < 1_000 or not rare, f"these kinds came too seldom: {rare}"
    jobs, slowest = sum(part["jobs"] for part in parts), max(part["slowest_s"] for part in parts)
    promise.kept(
        count,
        f"simulated seeds of >= {FAULTS_EACH} faults: {jobs} jobs, no invariant broken, each became what its owner"
        f" wanted at most {slowest:.1f} s after the last fault",
    )
    promise.saw("faults: " + ", ".join(f"{faults[kind]} {kind}" for kind in sorted(faults)))
    promise.saw("wishes: " + ", ".join(f"{applied_keys[kind]} {kind}" for kind in sorted(applied_keys)))


async def test_one_seed_is_one_story_in_whatever_process_it_is_told() -> None:
    one, two = await asyncio.gather(told(500, 12, PYTHONHASHSEED="1"), told(500, 12, PYTHONHASHSEED="2"))
    assert one == two


def test_the_checker_knows_no_code_of_the_services() -> None:
    """Nor does what it imports: else a rule and its breach could be one mistake."""
    known, left = set[str](), ["checker"]
    while left:
        tree = ast.parse((Path(__file__).parent / f"{left.pop()}.py").read_text())
        froms = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = [*froms, *(one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names)]
        left += [name.rpartition(".")[2] for name in set(names) - known if name.startswith("tests.")]
        known |= set(names)
    assert "tests.simulation.papers" in known
    assert not [name for name in known if name.split(".")[0] in {"services", "weft"}]

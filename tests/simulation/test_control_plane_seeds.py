"""The control plane under faults in any order: at most one attempt of a job runs at any time, and after the last fault
every job reaches the state that its owner wants (R3, R8).

Each seed is one run of several jobs and at least three faults, in virtual time. A checker that imports no code of the
services judges it. ``make promise R=R8`` runs 10,000 seeds with learners as processes, and 4,000 with the Kubernetes
adapter over a simulated API server; ``python -m tests.simulation.seeds 17 --cluster kubernetes`` prints one run.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.promises import Promise
from tests.simulation.faults import KINDS
from tests.simulation.pod_faults import POD_KINDS
from tests.simulation.seed_run import KUBERNETES, LOCAL, MIN_FAULTS

_TREE = Path(__file__).parents[2]
_PART = 250
"""Most seeds per process, so that two cores are busy up to the end."""


async def run_seeds(cluster: str, first: int, count: int, **environ: str) -> dict[str, Any]:
    """Runs seeds in a process of their own. Returns their sums."""
    numbers = ("--first", str(first), "--count", str(count))
    arguments = ("-m", "tests.simulation.seeds", "--cluster", cluster, *numbers)
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


async def run_in_parts(cluster: str, count: int) -> list[dict[str, Any]]:
    """Runs seeds in two processes at a time. Returns the sums of each process."""
    two_at_a_time = asyncio.Semaphore(2)

    async def part(first: int, seeds: int) -> dict[str, Any]:
        async with two_at_a_time:
            return await run_seeds(cluster, first, seeds)

    size = min(_PART, (count + 1) // 2)
    return await asyncio.gather(*(part(first, min(size, count - first)) for first in range(0, count, size)))


def describe(failure: dict[str, Any], cluster: str) -> str:
    lines = "\n".join([*failure["last"], *failure["breaches"]])
    again = f".venv/bin/python -m tests.simulation.seeds {failure['seed']} --cluster {cluster}"
    return f"{lines}\nseed {failure['seed']}; again: {again}"


@pytest.mark.promise("R3", "R8")
@pytest.mark.parametrize(
    ("cluster", "kinds", "short", "long"), [(LOCAL, KINDS, 120, 10_000), (KUBERNETES, POD_KINDS, 50, 4_000)]
)
async def test_every_job_reaches_its_owner_s_state_after_the_last_fault_without_a_breach(
    promise: Promise, cluster: str, kinds: Sequence[str], short: int, long: int
) -> None:
    count = promise.n(short=short, long=long)
    parts = await run_in_parts(cluster, count)
    failures = [failure for part in parts for failure in part["failures"]]
    assert not failures, f"{len(failures)} of {count} seeds; the first: {describe(failures[0], cluster)}"
    faults = sum((Counter(part["faults"]) for part in parts), Counter[str]())
    requests = sum((Counter(part["requests"]) for part in parts), Counter[str]())
    assert sum(part["seeds"] for part in parts) == count
    assert min(part["least_faults"] for part in parts) >= MIN_FAULTS
    assert set(faults) <= set(kinds)
    rare = {kind: faults[kind] for kind in kinds if faults[kind] < count // 100}
    assert count < 1_000 or not rare, f"these kinds occurred too seldom: {rare}"
    jobs, slowest = sum(part["jobs"] for part in parts), max(part["slowest_s"] for part in parts)
    promise.kept(
        count,
        f"simulated seeds ({cluster}) of >= {MIN_FAULTS} faults: {jobs} jobs, no invariant broken, each reached the"
        f" state that its owner wanted at most {slowest:.1f} s after the last fault",
    )
    promise.saw("faults: " + ", ".join(f"{faults[kind]} {kind}" for kind in sorted(faults)))
    promise.saw("requests: " + ", ".join(f"{requests[kind]} {kind}" for kind in sorted(requests)))


@pytest.mark.parametrize("seed", [211, 459, 655])
async def test_failing_jobs_that_wait_for_each_other_s_hardware_are_not_late_by_their_own_training(seed: int) -> None:
    sums = await run_seeds(KUBERNETES, seed, 1)
    assert not sums["failures"], describe(sums["failures"][0], KUBERNETES)


@pytest.mark.parametrize("seed", [1033, 1462])
async def test_results_are_stored_although_no_report_names_the_start_of_their_learner(seed: int) -> None:
    sums = await run_seeds(KUBERNETES, seed, 1)
    assert not sums["failures"], describe(sums["failures"][0], KUBERNETES)


@pytest.mark.parametrize(("cluster", "count"), [(LOCAL, 12), (KUBERNETES, 6)])
async def test_a_seed_gives_the_same_run_in_every_process(cluster: str, count: int) -> None:
    runs = (run_seeds(cluster, 500, count, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2"))
    first, second = await asyncio.gather(*runs)
    assert first == second


def test_the_checker_imports_no_code_of_the_services() -> None:
    """Otherwise a rule and its breach could come from the same bug."""
    imported, unread = set[str](), ["pod_checker"]
    while unread:
        tree = ast.parse((Path(__file__).parent / f"{unread.pop()}.py").read_text())
        names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        unread += [name.rpartition(".")[2] for name in names - imported if name.startswith("tests.")]
        imported |= names
    assert {"tests.simulation.checker", "tests.simulation.document_checker"} <= imported
    assert not [name for name in imported if name.split(".")[0] in {"services", "weft"}]

"""How a run of the tests is spread over worker processes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.testbed.workers import LONGEST, pytest_xdist_auto_num_workers, units

ROOT = Path(__file__).parents[2]


def test_tests_on_one_platform_or_cluster_are_one_unit_and_all_others_go_by_file() -> None:
    groups = units(
        [
            "a/test_life.py::test_one[embedded]",
            "a/test_cli.py::test_two[embedded-3]",
            "a/test_life.py::test_one[every-hint-dropped]",
            "a/test_cli.py::test_two[every-hint-dropped-3]",
            "a/test_up.py::test_three[embedded]",
            "a/test_up.py::test_four",
            "a/test_life.py::test_five",
            "tests/cluster/test_pods.py::test_six",
            "tests/cluster/test_testbed.py::test_seven",
            "tests/helm/test_rendered.py::test_eight",
        ]
    )
    assert list(groups.values()) == [
        "platform embedded",
        "platform embedded",
        "platform every-hint-dropped",
        "platform every-hint-dropped",
        "a/test_up.py",
        "a/test_up.py",
        "a/test_life.py",
        "tests/cluster",
        "tests/cluster",
        "tests/cluster",
    ]


@pytest.mark.parametrize("folder", ["tests/browser", "tests/cluster"])
def test_tests_of_a_slow_folder_are_one_unit_but_in_a_run_of_their_own(folder: str) -> None:
    slow = [f"{folder}/test_jobs.py::test_one", f"{folder}/test_live.py::test_two"]
    assert list(units(slow).values()) == [f"{folder}/test_jobs.py", f"{folder}/test_live.py"]
    assert list(units([*slow, "a/test_up.py::test_three"]).values()) == [folder] * 2 + ["a/test_up.py"]


def test_every_file_that_is_said_to_take_long_is_there() -> None:
    files = [unit for unit in LONGEST if not unit.startswith("platform ")]
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("args", "more"), [(["tests"], 1), (["tests/cluster"], 2), (["tests/cluster/", "tests/unit"], 1), ([], 1)]
)
def test_tests_that_mostly_wait_have_one_more_worker(args: list[str], more: int) -> None:
    config = SimpleNamespace(args=args, getoption=lambda _: None)
    workers = pytest_xdist_auto_num_workers(config)  # type: ignore[arg-type]
    assert workers == len(os.sched_getaffinity(0)) + more


def test_single_file_runs_without_workers() -> None:
    config = SimpleNamespace(args=["tests/unit/test_terms.py::test_one"], getoption=lambda _: None)
    assert pytest_xdist_auto_num_workers(config) == 0  # type: ignore[arg-type]

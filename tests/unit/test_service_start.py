"""A service loads no library that it does not use: imports are most of its start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from services.local.layout import PROGRAMS, Program

KUBERNETES = {"kubernetes", "aiohttp"}
"""Its client, which nothing needs where learners are no pods."""
COLOURS = {"rich", "pygments"}


def loaded_by(module: str) -> set[str]:
    """Modules that an interpreter of its own has imported after the import of ``module``."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_service_starts_without_libraries_that_it_does_not_use(program: Program) -> None:
    module = program.argv[-1]
    loaded = loaded_by(module if program.name == "worker" else f"{module}.__main__")
    assert "structlog" in loaded
    assert not loaded & KUBERNETES
    # The node's package is also that of the shim, which runs without any library.
    assert program.name == "node" or not loaded & COLOURS


@pytest.mark.slow
def test_the_supervisor_starts_without_the_servers_of_services() -> None:
    assert not loaded_by("services.local.supervisor") & {"uvicorn", "starlette", "prometheus_client", "grpc"}


@pytest.mark.slow
def test_garbage_is_collected_as_by_default_once_imports_are_over() -> None:
    code = """
import gc
usual = gc.get_threshold()
from services.core.runtime.garbage_collection import end_of_imports
assert gc.get_threshold()[0] > usual[0]
end_of_imports()
assert gc.get_threshold() == usual
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_rich_can_be_imported_after_the_services() -> None:
    assert {"structlog", "rich.console"} <= loaded_by("services.lcm, rich.console")

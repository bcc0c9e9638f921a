"""Real GPUs: `make test-gpu`, on a machine with NVIDIA's driver. No other command collects these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.testbed.platform import Platform, platform
from weft import Client

_WANTED: Final = bool(os.environ.get("WEFT_TEST_GPU"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not _WANTED and collection_path.name.startswith("test_") else None


@pytest.fixture(scope="session")
def interpreter() -> str:
    """A Python that has PyTorch with CUDA: ``WEFT_TEST_GPU_PYTHON``, else ``python3``."""
    path = shutil.which(os.environ.get("WEFT_TEST_GPU_PYTHON", "python3"))
    assert path is not None, "WEFT_TEST_GPU_PYTHON names no program"
    counted = subprocess.run(
        [path, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True, check=False
    )
    assert counted.returncode == 0 and int(counted.stdout) > 0, (  # noqa: PT018 - one message
        f"{path} sees no GPU through PyTorch; WEFT_TEST_GPU_PYTHON names another interpreter: {counted.stderr}"
    )
    return path


@pytest.fixture(scope="module", params=["sandbox", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def weft_up(isolation: str) -> Iterator[Platform]:
    """With the GPUs that the driver shows, and room for several learners beside."""
    with platform({"WEFT_NODE_ISOLATION": isolation, "WEFT_NODE_CPUS": "8", "WEFT_NODE_MEMORY": "64GiB"}) as running:
        yield running


@pytest.fixture
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as client:
        yield client

"""The chart on a test cluster of two nodes: the images of this tree, installed by helm as the operator guide says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.helm.installation import Helm, Installation, helm_program, import_images, make_volumes
from tests.testbed.kubernetes import programs
from tests.testbed.kubernetes.cluster import cluster

_ALL: Final = os.environ.get("WEFT_TEST_HELM", "") == "all" or bool(os.environ.get("WEFT_PROMISE"))
_LONG: Final = (
    "test_conformance.py",
    "test_guardian_jobs.py",
    "test_kills.py",
    "test_rolling_upgrade.py",
    "test_shards.py",
)
"""Files for `make test-helm`, which sets WEFT_TEST_HELM=all, and `make promise` only."""
Say = Callable[[str], None]
Untimed = Callable[[], AbstractContextManager[None]]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not _ALL and collection_path.name in _LONG else None


@pytest.fixture(scope="package")
def helm_binary(announce: Say, untimed: Untimed) -> Path:
    with untimed():
        return helm_program(announce)


@pytest.fixture(scope="package")
def helm(helm_binary: Path) -> Helm:
    """Without a cluster."""
    return Helm(helm_binary)


@pytest.fixture(scope="package")
def new_cluster(helm_binary: Path, announce: Say, untimed: Untimed) -> Iterator[Installation]:
    """Images and volumes are there; nothing has been installed."""
    if os.geteuid() != 0:
        pytest.skip("the test cluster needs root (namespaces, mounts, cgroups)")
    with untimed():
        programs.build(announce, simulated=False)
    with cluster(nodes=2, say=announce) as running:
        with untimed():
            import_images(running, announce)
            make_volumes(running)
        yield Installation(running, Helm(helm_binary, running.kubeconfig))


@pytest.fixture(scope="package")
def installed(new_cluster: Installation, untimed: Untimed) -> Installation:
    """The small profile, all pods ready."""
    with untimed():
        new_cluster.install()
    return new_cluster


@pytest.fixture
def trained(installed: Installation) -> Iterator[Installation]:
    """Without jobs at the end, also of a test that failed."""
    yield installed
    with installed.api() as client:
        for job in client.jobs.list():
            job.delete(kill=True)

"""The cluster of these tests: the test bed's with two nodes, or the one that WEFT_TEST_KUBECONFIG names.

What only the test bed can show (test_testbed.py) is left out of a run on another cluster.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.kubernetes.api import Api
from tests.testbed.kubernetes import programs
from tests.testbed.kubernetes.access import Access
from tests.testbed.kubernetes.accounts import Installed, install
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.control_plane import CONTEXT
from tests.testbed.kubernetes.images import TINY_IMAGE
from tests.testbed.kubernetes.kubectl import Kubectl
from tests.testbed.kubernetes.node_images import node_disk
from tests.testbed.kubernetes.options import OPTIONS
from tests.waiting import eventually

_GIVEN = os.environ.get("WEFT_TEST_KUBECONFIG", "")
_TEST_BED_ONLY = (
    "test_testbed.py",
    "test_cluster_port.py",
    "test_failures.py",
    "test_guardian_jobs.py",
    "test_crash_points.py",
    "test_life_in_pods.py",
    "test_lost_pods.py",
    "test_overload.py",
    "test_private_images.py",
    "test_walls.py",
)
"""They use images that only the test bed has, its network, or break its nodes."""
Untimed = Callable[[], AbstractContextManager[None]]
Say = Callable[[str], None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if _GIVEN and collection_path.name in _TEST_BED_ONLY else None


@pytest.fixture(scope="package")
def testbed_programs(announce: Say, untimed: Untimed) -> None:
    """Builds them, which is not the time of a test. Only root can run the test cluster."""
    if os.geteuid() != 0:
        pytest.skip("the test cluster needs root (namespaces, mounts, cgroups)")
    with untimed():
        programs.build(announce)


@pytest.fixture(scope="package")
def disk(request: pytest.FixtureRequest, testbed_programs: None, announce: Say, untimed: Untimed) -> Path:
    """With the images that these tests need, unpacked."""
    frameworks = ["jax"] if any(item.path.name == "test_digits.py" for item in request.session.items) else []
    with untimed():
        return node_disk(announce, frameworks=frameworks)


@pytest.fixture(scope="package")
def testbed_cluster(disk: Path, announce: Say) -> Iterator[Cluster]:
    """Two nodes with four fake GPUs each. A test leaves them Ready."""
    with cluster(nodes=2, disk=disk, say=announce) as running:
        yield running


@pytest.fixture(scope="package")
def accounts(testbed_cluster: Cluster) -> Installed:
    """The adapter of these tests acts under the service accounts of an installation, with their rights."""
    return install(testbed_cluster, OPTIONS)


@pytest.fixture
async def api(testbed_cluster: Cluster) -> AsyncGenerator[Api]:
    """With the rights of an administrator."""
    connected = Api(testbed_cluster.kubeconfig)
    yield connected
    await connected.close()


@pytest.fixture(scope="package")
def access(request: pytest.FixtureRequest, announce: Say) -> Access:
    if not _GIVEN:
        running: Cluster = request.getfixturevalue("testbed_cluster")
        return Access(running.kubectl, TINY_IMAGE)
    program = shutil.which("kubectl") or shutil.which("kubectl", path=str(Path(_GIVEN).with_name("bin")))
    assert program is not None, "tests on a given cluster use the kubectl of PATH, and there is none"
    kubectl = Kubectl(Path(program), Path(_GIVEN))
    context = kubectl("config", "current-context").strip()
    announce(f"tests run on the cluster {context!r} of {_GIVEN}")
    image = TINY_IMAGE if context == CONTEXT else "busybox:1.37"
    return Access(kubectl, os.environ.get("WEFT_TEST_IMAGE", image))


@pytest.fixture
def kubectl(access: Access) -> Iterator[Kubectl]:
    """In a namespace of the test's own, with Pod Security ``restricted``."""
    name = f"weft-test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    with ExitStack() as stack:
        access.kubectl.create(namespace)
        stack.callback(access.kubectl, "delete", "namespace", name, "--wait=false")
        inside = replace(access.kubectl, namespace=name)
        eventually(lambda: _has_account(inside))  # without it the API server refuses pods
        yield inside


def _has_account(kubectl: Kubectl) -> bool:
    """Whether the namespace has its service account, which a controller makes after the namespace."""
    return "default" in [account["metadata"]["name"] for account in kubectl.list("serviceaccounts")]

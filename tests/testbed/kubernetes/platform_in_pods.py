"""A platform on this machine whose learners are pods of a test cluster, as `weft up --cluster kubernetes` starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.doorway import doorway
from tests.testbed.kubernetes.helper_image import write_helper_image
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.platform import Platform, platform
from tests.testbed.server import free_port

COLLECTIONS: Final = (
    "/api/v1/pods",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/services",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/scheduling.k8s.io/v1alpha2/podgroups",
)
"""Of all kinds of which a job has objects."""


def load_helper_image(
    cluster: Cluster, say: Callable[[str], None], *, name: str = "", shell: Path | None = None
) -> str:
    """Makes the image of images/helper and gives it to each node. Returns its name. Learners run in it too.

    ``name``, ``shell``: as of ``write_helper_image``.
    """
    archive = cluster.folder / "images" / "weft-helper.tar"
    present = cluster.disk.layers if cluster.disk else ()
    name = write_helper_image(archive, say, name=name, shell=shell, without=present)
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda node: node.import_image(f"{FOLDER_INSIDE}/images/{archive.name}"), cluster.nodes))
    archive.unlink()
    return name


@contextmanager
def platform_in_pods(
    cluster: Cluster,
    helper_image: str,
    *,
    name: str,
    kubeconfig: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator[Platform]:
    """``name``: of the installation, and of its tenants' namespaces. ``kubeconfig``: None is the cluster's own."""
    port = free_port()
    with doorway(cluster.control_plane_pid, port) as host:
        own = {
            "WEFT_CLUSTER": "kubernetes",
            "WEFT_KUBERNETES_KUBECONFIG": str(kubeconfig or cluster.kubeconfig),
            "WEFT_KUBERNETES_HELPER_IMAGE": helper_image,
            "WEFT_KUBERNETES_INSTALLATION": name,
            "WEFT_KUBERNETES_NAMESPACE_PREFIX": f"{name}-",
            "WEFT_KUBERNETES_HELPER_CPUS": "0.4",  # a limit too: with less, tests wait for the start of helpers
            "WEFT_KUBERNETES_HELPER_MEMORY": "128MiB",
            "WEFT_KUBERNETES_SCRATCH": "1GiB",
            "WEFT_ADVERTISE": host,
            "WEFT_LEARNERS_HOST": "127.0.0.1",
            "WEFT_LEARNERS_PORT": str(port),
        }
        with platform({**own, **(settings or {})}) as running:
            yield running


@contextmanager
def platform_on_simulated_nodes(
    cluster: Cluster, *, name: str, settings: Mapping[str, str] | None = None, low_share: bool = False
) -> Generator[Platform]:
    """The same on simulated nodes: ``simulated_helpers`` plays the helpers and learners of all pods.

    ``low_share``: they and the control plane take little of this machine's processors (``Cluster.lower_share``).
    """
    own = {
        "WEFT_CLUSTER": "kubernetes",
        "WEFT_KUBERNETES_KUBECONFIG": str(cluster.kubeconfig),
        "WEFT_KUBERNETES_HELPER_IMAGE": "none",
        "WEFT_KUBERNETES_INSTALLATION": name,
        "WEFT_KUBERNETES_NAMESPACE_PREFIX": f"{name}-",
        "WEFT_ADVERTISE": "127.0.0.1",
        "WEFT_LEARNERS_HOST": "127.0.0.1",
        "WEFT_LEARNERS_PORT": str(free_port()),
    }
    program = [sys.executable, "-m", "tests.testbed.kubernetes.simulated_helpers"]
    with subprocess.Popen(
        [*program, str(cluster.kubeconfig), name], stdout=subprocess.DEVNULL, start_new_session=True
    ) as helpers:
        try:
            if low_share:
                cluster.lower_share(helpers.pid)
            with platform({**own, **(settings or {})}) as running:
                yield running
        finally:
            helpers.terminate()


def objects_left(cluster: Cluster) -> list[str]:
    """Objects of jobs in the cluster."""
    return [
        f"{item['kind']} {item['metadata']['name']}"
        for path in COLLECTIONS
        for item in cluster.objects(path, selector="weft.dev/job")
    ]

"""The chart on the test cluster: images of this tree on its nodes, volumes, and helm itself."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts import images
from tests.compose.stores import build_stores
from tests.testbed.docker.engine import engine
from tests.testbed.go import go_programs
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.kubectl import Kubectl, KubectlError, condition
from tests.testbed.kubernetes.programs import MODULES
from tests.waiting import eventually
from weft import Client

Say = Callable[[str], None]
ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "weft"
VALUES: Final = Path(__file__).with_name("values.yaml")
RELEASE: Final = "weft"
NAMESPACE: Final = "weft-system"
_VOLUMES: Final = 7
"""Of MongoDB, etcd, RabbitMQ, S3 and up to three shards of the metrics service."""


def helm_program(say: Say) -> Path:
    """Builds helm if there is none of these pins."""
    return go_programs("helm", MODULES / "helm", say) / "helm"


class HelmError(RuntimeError):
    """helm's own complaint."""


@dataclass(frozen=True)
class Helm:
    program: Path
    kubeconfig: Path | None = None

    def __call__(self, *arguments: str | Path, within_s: float = 900) -> str:
        """Returns the output. Raises HelmError if it fails."""
        command = [self.program, *arguments]
        if self.kubeconfig is not None:
            command += [f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}"]
        # No plugins, caches and repositories of this user.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "HELM_NO_PLUGINS": "1"},
        )
        if done.returncode:
            raise HelmError(f"helm {' '.join(map(str, arguments))}:\n{done.stdout[-4000:]}{done.stderr[-30000:]}")
        return done.stdout


def import_images(cluster: Cluster, say: Say) -> None:
    """Builds the images of this tree and of the stores, and gives them to each node."""
    folder = cluster.folder / "images"
    archives = [folder / f"weft-{name}.tar" for name in ("platform", "helper", "stores")]
    with engine(say) as running:
        names = []
        for name in ("platform", "helper"):
            image = images.Image.read(images.IMAGES / name)
            images.build(image, running)
            names.append(image.name)
        names.append(build_stores(running, say))
        for archive, name in zip(archives, names, strict=True):
            running.docker("save", f"--output={archive}", name)
    import_archives(cluster, archives)


def import_archives(cluster: Cluster, archives: Sequence[Path]) -> None:
    """Imports archives of ``cluster.folder/images`` on all nodes at the same time, and removes them."""
    with ThreadPoolExecutor() as threads:
        for archive in archives:
            inside = f"{FOLDER_INSIDE}/images/{archive.name}"
            list(threads.map(lambda node: node.import_image(inside), cluster.nodes))  # noqa: B023 - awaited here
            archive.unlink()


def make_volumes(cluster: Cluster) -> None:
    """Volumes of the nodes' own, which any claim of the chart may have."""
    documents: list[dict[str, Any]] = []
    for number in range(_VOLUMES):
        node = cluster.nodes[number % len(cluster.nodes)]
        name = f"volume-{number}"
        (node.machine.folder / name).mkdir(mode=0o755)
        place = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "2Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": f"{node.machine.inside}/{name}"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
                },
            }
        )
    cluster.kubectl.create(*documents)


@dataclass(frozen=True)
class Installation:
    """A release on the test cluster."""

    cluster: Cluster
    helm: Helm

    @property
    def kubectl(self) -> Kubectl:
        made = self.cluster.kubectl
        return Kubectl(made.program, made.kubeconfig, NAMESPACE)

    def install(self, *options: str) -> str:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.kubectl.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": labels},
            }
        )
        return self.run("install", RELEASE, CHART, f"--values={VALUES}", "--wait", "--timeout=10m", *options)

    def upgrade(self, *options: str) -> str:
        return self.run("upgrade", RELEASE, CHART, f"--values={VALUES}", "--wait", "--timeout=10m", *options)

    def run(self, *arguments: str | Path) -> str:
        """Runs helm. Its error contains the state of the pods."""
        try:
            return self.helm(*arguments)
        except HelmError as error:
            raise HelmError(f"{error}\n{self.state()}") from error

    def state(self) -> str:
        """Pods, events and logs, for the message of a failure."""
        parts = [["get", "pods", "--all-namespaces", "--output=wide"], ["get", "events", "--sort-by=.lastTimestamp"]]
        every = f"--selector=app.kubernetes.io/instance={RELEASE}"
        parts += [["logs", every, "--all-containers", "--prefix", "--tail=15", "--ignore-errors"]]
        texts: list[str] = []
        for part in parts:
            try:
                texts.append(self.kubectl(*part))
            except KubectlError as error:
                texts.append(str(error))
        return "\n".join(text[-12_000:] for text in texts)

    def objects(self, kinds: str) -> list[str]:
        """ "Kind name" of what has the release's labels."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=weft"
        listed = json.loads(self.kubectl("get", kinds, selector, "--output=json"))["items"]
        return sorted(f"{item['kind']} {item['metadata']['name']}" for item in listed)

    def made_secrets(self) -> dict[str, dict[str, str]]:
        """Name -> content of what the job `keys` has written."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/managed-by=weft-keys"
        listed = json.loads(self.kubectl("get", "secrets", selector, "--output=json"))["items"]
        return {secret["metadata"]["name"]: secret["data"] for secret in listed}

    @contextmanager
    def api(self) -> Generator[Client]:
        """A client of the administrator, through a port of this machine that leads to a pod of the api."""
        kubectl = self.kubectl
        options = [f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={NAMESPACE}"]
        key = base64.b64decode(kubectl.get("secret", f"{RELEASE}-admin-key")["data"]["key"]).decode().strip()
        with subprocess.Popen(
            [kubectl.program, *options, "port-forward", f"service/{RELEASE}-api", ":8080"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                port = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", line)
                assert port is not None, line
                with Client(f"http://127.0.0.1:{port[1]}", key) as client:
                    yield client
            finally:
                process.kill()

    def pods(self, component: str) -> dict[str, bool]:
        """uid -> ready, of the pods of a component, also of those that end."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
        listed = json.loads(self.kubectl("get", "pods", selector, "--output=json"))["items"]
        return {pod["metadata"]["uid"]: condition(pod, "Ready").get("status") == "True" for pod in listed}

    def kill_pod(self, component: str, within_s: float) -> None:
        """Kills one pod of a component without grace. Returns when its successor is ready."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
        listed = json.loads(self.kubectl("get", "pods", selector, "--output=json"))["items"]
        # One that an upgrade has left behind, and that still ends, has no successor.
        metadata = [pod["metadata"] for pod in listed if "deletionTimestamp" not in pod["metadata"]]
        before = {entry["uid"] for entry in metadata}
        self.kubectl("delete", "pod", metadata[0]["name"], "--grace-period=0", "--force", "--wait=false")

        def replaced() -> bool:
            now = self.pods(component)
            return len(now) == len(before) and all(now.values()) and now.keys() != before

        eventually(replaced, within_s)

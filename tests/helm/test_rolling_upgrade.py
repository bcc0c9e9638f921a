"""`helm upgrade` to another version and `helm rollback` under load: clients see no error, learners are not touched."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.images import version
from tests.helm.installation import NAMESPACE, RELEASE, Installation
from tests.helm.ticking import LONG_S, Ticking
from tests.waiting import eventually

CLIENT = Path(__file__).with_name("client_in_pod.py")
REPLICAS = "--set=api.replicas=2,lcm.replicas=2,guardian.replicas=2,worker.replicas=2"
NEXT = f"{version()}-next"


def _tag_images(installed: Installation) -> None:
    """Gives each node the images of "the next version": this one's under another tag."""
    for node in installed.cluster.nodes:
        for name in ("platform", "helper"):
            image = f"docker.io/weft/{name}"
            node.machine.call(
                "ctr", "--namespace=k8s.io", "images", "tag", f"{image}:{version()}", f"{image}:{NEXT}"
            )  # fmt: skip


def _start_client(installed: Installation) -> None:
    """As the pod of `helm test`, with another command."""
    (text,) = (
        text for text in installed.helm("get", "hooks", RELEASE).split("---\n") if "templates/tests/training" in text
    )
    pod = installed.kubectl("create", "--dry-run=client", "--filename=-", "--output=json", text=text)
    document = json.loads(pod)
    document["metadata"] = {"name": "client", "labels": document["metadata"]["labels"]}
    (container,) = document["spec"]["containers"]
    url = f"http://{RELEASE}-api.{NAMESPACE}.svc.cluster.local:8080"
    container["command"] = ["python", "-c", CLIENT.read_text(), url]
    installed.kubectl.create(document)
    installed.kubectl.wait_phase("Running", "client")


def _images(installed: Installation) -> set[str]:
    """Of the services' pods that are not being deleted."""
    components = "app.kubernetes.io/component in (api,lcm,guardian,worker,metrics)"
    selector = f"--selector=app.kubernetes.io/instance={RELEASE},{components}"
    listed = json.loads(installed.kubectl("get", "pods", selector, "--output=json"))["items"]
    live = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
    return {container["image"] for pod in live for container in pod["spec"]["containers"]}


def test_clients_and_learners_do_not_notice_an_upgrade_and_a_rollback(trained: Installation) -> None:
    _tag_images(trained)
    trained.upgrade(REPLICAS)
    revision = str(json.loads(trained.helm("history", RELEASE, "--output=json"))[-1]["revision"])
    jobs = Ticking(trained, 2)
    _start_client(trained)
    try:
        trained.upgrade(REPLICAS, f"--set=images.platform=weft/platform:{NEXT},images.helper=weft/helper:{NEXT}")
        eventually(lambda: _images(trained) == {f"weft/platform:{NEXT}"}, LONG_S)
        trained.run("rollback", RELEASE, revision, "--wait", "--timeout=10m")
        eventually(lambda: _images(trained) == {f"weft/platform:{version()}"}, LONG_S)
        trained.kubectl("exec", "client", "--", "touch", "/tmp/end")
        eventually(lambda: trained.kubectl.get("pod", "client")["status"]["phase"] in {"Succeeded", "Failed"}, LONG_S)
        log = trained.kubectl.log("client")
    finally:
        trained.kubectl("delete", "pod", "client", "--grace-period=0", "--force")
    jobs.end()
    observed = json.loads(log.splitlines()[-1])
    assert observed["requests"] > 50, log
    assert (observed["errors"], observed["not completed"]) == ([], {}), log

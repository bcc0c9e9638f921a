"""`helm upgrade` to the next version and `helm rollback` under load: clients see no error, learners are not touched.

The next version has another schema of the job's document (``versions``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from scripts.images import version
from tests.helm.client import client
from tests.helm.installation import CHART, RELEASE, HelmError, Installation
from tests.helm.ticking import LONG_S, Ticking
from tests.helm.versions import import_versions, tag, values
from tests.testbed.kubernetes.kubectl import KubectlError, condition
from tests.waiting import eventually

REPLICAS = "--set=api.replicas=2,lcm.replicas=2,guardian.replicas=2,worker.replicas=2"
SERVICES = ("api", "lcm", "guardian", "worker", "metrics")
STORES = ("mongodb", "etcd", "rabbitmq", "s3")
_DOCUMENTS: Final = """\
import json, pathlib
from pymongo import MongoClient
uri = pathlib.Path("/var/lib/weft/home/settings.env").read_text().partition("WEFT_JOB_STORE=")[2].split()[0]
jobs = MongoClient(uri).get_default_database()["jobs"].find()
print(json.dumps({job["_id"]: {"rev": job["rev"], "later": job["job"].get("later")} for job in jobs}))
"""


@pytest.fixture(scope="module")
def versions(
    installed: Installation,
    announce: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> None:
    """The nodes have the images of other versions."""
    with untimed():
        import_versions(installed.cluster, ("next", "unreadable"), announce)


def _pods(installed: Installation, components: tuple[str, ...]) -> list[dict[str, Any]]:
    """Those that are not being deleted."""
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component in ({','.join(components)})"
    listed = json.loads(installed.kubectl("get", "pods", f"--selector={selector}", "--output=json"))["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def _images(installed: Installation) -> set[str]:
    pods = _pods(installed, SERVICES)
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def _uids(installed: Installation, components: tuple[str, ...]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in _pods(installed, components)}


def _ready(installed: Installation, components: tuple[str, ...]) -> list[str | None]:
    """Whether each of the pods is, by its condition."""
    return [condition(pod, "Ready").get("status") for pod in _pods(installed, components)]


def _documents(installed: Installation) -> dict[str, dict[str, Any]]:
    """Job -> its revision, and the field of the next version, past the platform."""
    command = ("exec", f"deployment/{RELEASE}-lcm", "--container=lcm", "--", "python", "-c", _DOCUMENTS)

    def read() -> str:
        try:
            return installed.kubectl(*command)
        except KubectlError:  # the container that kubectl chose has just ended, or starts again
            return ""

    stored: dict[str, dict[str, Any]] = json.loads(eventually(read, LONG_S))
    return stored


def test_a_version_that_cannot_read_the_jobs_is_refused_and_no_pod_is_changed(
    trained: Installation, versions: None
) -> None:
    with trained.api() as api:
        job = api.jobs.submit({"name": "stored", "command": "true", "resources": {"cpus": 0.02, "memory": "32MiB"}})
        job.wait(LONG_S)
        before = _uids(trained, (*SERVICES, *STORES))
        with pytest.raises(HelmError, match="upgrade-check"):
            trained.upgrade(values("unreadable"))
        assert _uids(trained, (*SERVICES, *STORES)) == before
        message = trained.kubectl("logs", f"job/{RELEASE}-upgrade-check")
        assert "cannot read" in message
        # It names the first of all jobs of this installation: other tests have left some.
        assert [stored.id for stored in api.jobs.list() if stored.id in message]
        assert "Nothing was changed" in message
        job.refresh()
        assert job.status == "COMPLETED"
    trained.upgrade()


def test_a_shard_that_cannot_start_does_not_block_the_rollback(trained: Installation) -> None:
    trained.upgrade()
    revision = str(json.loads(trained.helm("history", RELEASE, "--output=json"))[-1]["revision"])
    before = _uids(trained, ("metrics",))
    trained.helm("upgrade", RELEASE, CHART, "--reuse-values", "--set=metrics.env.WEFT_METRICS_SHARDS=none")
    eventually(lambda: _uids(trained, ("metrics",)) - before, LONG_S)
    trained.run("rollback", RELEASE, revision, "--wait", "--timeout=10m")
    # Of a busy machine, a probe may be late.
    eventually(lambda: _ready(trained, ("metrics",)) == ["True", "True"], LONG_S)


def test_clients_and_learners_do_not_notice_an_upgrade_and_a_rollback(trained: Installation, versions: None) -> None:
    trained.upgrade(REPLICAS)
    revision = str(json.loads(trained.helm("history", RELEASE, "--output=json"))[-1]["revision"])
    jobs = Ticking(trained, 2)
    stores = _uids(trained, STORES)
    with client(trained) as end_client:
        trained.upgrade(REPLICAS, values("next"))
        eventually(lambda: _images(trained) == {f"weft/platform:{tag('next')}"}, LONG_S)
        # A Guardian of the next version takes the jobs over, which writes their documents.
        eventually(lambda: all(_documents(trained)[job]["later"] for job in jobs.ids), LONG_S)
        written = _documents(trained)
        trained.run("rollback", RELEASE, revision, "--wait", "--timeout=10m")
        eventually(lambda: _images(trained) == {f"weft/platform:{version()}"}, LONG_S)
        observed = end_client()
    assert _uids(trained, STORES) == stores, "a store was restarted"
    jobs.end()
    assert (observed["errors"], observed["not completed"]) == ([], {}), observed
    assert observed["requests"] > 50
    assert observed["followed"] > 10
    rewritten = _documents(trained)
    for job in jobs.ids:
        assert rewritten[job]["rev"] > written[job]["rev"]
        assert rewritten[job]["later"] == "of the next version", "the former version dropped a field"

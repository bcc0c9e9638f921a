"""What is observed of a job whose objects change while they are read."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.core.adapters.kubernetes import names, tenants
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.fences import Fences
from services.core.adapters.kubernetes.observed import StopMark
from services.core.adapters.kubernetes.places import Places
from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.status_keys import attempt_key, learner_key, stop_key
from services.core.ports.status_store import Entry
from tests.documents import NOW
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.scripted_http import Answer, Request, Scripted, json_answer
from tests.unit.test_kubernetes_api import listed, serving, status, watched
from tests.waiting import until

NAMESPACES = listed({"metadata": {"name": "weft-t"}}, version=1)


def an_owner(**annotations: str) -> dict[str, Any]:
    labels = {names.JOB: "j1", names.ATTEMPT: "1", names.TENANT: "t"}
    metadata = {"namespace": "weft-t", "name": "weft-j1-1", "resourceVersion": "1", "uid": "u1", "labels": labels}
    return {"metadata": metadata | {"annotations": {f"weft.dev/{name}": value for name, value in annotations.items()}}}


def a_pod() -> dict[str, Any]:
    """Of a learner that runs."""
    pod = an_owner()
    pod["metadata"]["labels"][names.LEARNER] = "worker-0"
    pod["metadata"]["name"] = "weft-j1-1-worker-0"
    running = [{"name": "learner", "state": {"running": {}}}]
    return {**pod, "spec": {}, "status": {"containerStatuses": running}}


def a_mark(time: int) -> str:
    return json.dumps(dump(StopMark(attempt=1, generation=1, cause="halt", grace_ms=0, time=time)))


def is_of_pods(request: Request) -> bool:
    return urlsplit(request.path).path == "/api/v1/namespaces/weft-t/pods"


def last_parameters(server: Scripted) -> set[str]:
    """The last parameters of requests for the pods of all namespaces."""
    return {
        path.rpartition("&")[2] for request in server.requests if (path := request.path).startswith("/api/v1/pods?")
    }


async def test_learner_that_reports_its_end_just_before_its_pod_is_gone_has_ended_by_itself(tmp_path: Path) -> None:
    """It counted as ended by the stop, and its results as not stored."""
    were_listed = threading.Event()

    class Reported(MemoryStatusStore):
        """With the report once the pods were listed."""

        async def list(self, prefix: str) -> Sequence[Entry]:
            return await super().list(prefix) if were_listed.is_set() else []

    def answer(request: Request, _: int) -> Answer:
        if is_of_pods(request):
            were_listed.set()
        elif "configmaps" in request.path:
            return listed(
                an_owner(stop=a_mark(NOW), removed=json.dumps({"worker-0": NOW}), activated="true"), version=1
            )
        elif request.path.startswith("/api/v1/namespaces?"):
            return NAMESPACES
        return listed(version=1)

    end, store = Exit(time=NOW - 1, code=0), Reported()
    times = {Phase.PROCESSING.value: NOW - 10}
    report = LearnerStatus(
        name="worker-0", role="worker", rank=0, attempt=1, seq=9, phase=Phase.STORED, times=times, exit=end
    )
    await store.put(learner_key("j1", "worker-0"), json.dumps(dump(report)))
    with serving(tmp_path / "k", answer):
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, store)
        [learner] = (await cluster.observe("j1")).learners
        assert (learner.exit, learner.stored) == (end, True)
        await cluster.close()


async def test_job_that_another_process_has_started_is_found_while_the_watch_is_cut_off(tmp_path: Path) -> None:
    """A Guardian that took it over saw nothing of it, and all its learners counted as lost."""
    is_cut_off = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        if request.path.startswith("/api/v1/namespaces?"):
            return NAMESPACES
        if "configmaps/" in request.path:
            return json_answer({})
        if names.of_job("j1", OPTIONS.installation) in query.get("labelSelector", []):
            return listed(*([an_owner()] if "configmaps" in request.path else []), version=1)
        if is_cut_off.is_set():
            return status(500, "overloaded")
        return watched() if "watch" in query else listed(version=1)

    with serving(tmp_path / "k", answer) as server:
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, MemoryStatusStore())
        async with aclosing(cluster.watch()) as changes:
            assert await anext(changes) == ""
            assert (await cluster.observe("j1")).attempts == [], "the watch has not shown it, and is believed"
            is_cut_off.set()
            await until(lambda: "limit=1" in last_parameters(server))
            assert (await cluster.observe("j1")).attempts == [1]
        await cluster.close()


async def test_job_that_another_process_has_started_is_found_before_the_watch_shows_its_pods(tmp_path: Path) -> None:
    """A watch may be silent for a minute before it counts as cut off. In that minute the learners counted as lost."""

    def answer(request: Request, _: int) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        if request.path.startswith("/api/v1/namespaces?"):
            return NAMESPACES
        if "configmaps/" in request.path:
            return json_answer({})
        if "configmaps" in request.path:
            return listed(an_owner(), version=1)
        return watched() if "watch" in query else listed(version=1)

    store = MemoryStatusStore()
    with serving(tmp_path / "k", answer) as server:
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, store)
        async with aclosing(cluster.watch()) as changes:
            assert await anext(changes) == ""
            assert (await cluster.observe("j1")).attempts == [], "nothing was begun for it"
            assert not any("configmaps" in request.path for request in server.requests), "which costs no search"
            await store.put(attempt_key("j1"), json.dumps({"attempt": 1, "learners": 1}))
            await Fences(store).admit("j1", 1, 1)
            assert (await cluster.observe("j1")).attempts == [1]
        await cluster.close()


async def test_copy_of_a_learners_pod_in_another_namespace_is_no_learner_of_its_job(tmp_path: Path) -> None:
    """The job was looked for there, where the platform may read no owner: its pods ran on, unobserved, for ever."""
    pod, copied = a_pod(), a_pod()
    copied["metadata"] |= {"namespace": "weft-debug", "uid": "u2"}
    begins = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        url = urlsplit(request.path)
        if url.path == "/api/v1/pods":
            events = [("MODIFIED", pod), ("MODIFIED", copied)] if begins.is_set() else []
            return watched(*events) if "watch" in url.query else listed(pod, copied, version=1)
        if "configmaps" in url.path and "/weft-t/" not in url.path:
            return status(403, 'User "weft-guardian" cannot list resource "configmaps"', "Forbidden")
        if "configmaps" in url.path:
            return listed(an_owner(activated="true"), version=1)
        if is_of_pods(request):
            return listed(pod, version=1)
        if request.path.startswith("/api/v1/namespaces?"):
            return NAMESPACES
        return watched() if "watch" in url.query else listed(version=1)

    with serving(tmp_path / "k", answer):
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, MemoryStatusStore())
        async with aclosing(cluster.watch()) as changes:
            assert await anext(changes) == ""
            assert [learner.name for learner in (await cluster.observe("j1")).learners] == ["worker-0"]
            begins.set()
            assert await anext(changes) == "j1"
            assert [learner.name for learner in (await cluster.observe("j1")).learners] == ["worker-0"]
        await cluster.close()


REFUSED = status(403, 'User "weft-guardian" cannot list resource "configmaps" in the namespace', "Forbidden")
"""Of a namespace without the guardian's RoleBinding."""


async def test_job_whose_namespace_was_deleted_by_hand_is_seen_stopped_and_torn_down(tmp_path: Path) -> None:
    """The guardian's rights were gone with it: the job could not even be killed, and held its hardware."""
    is_deleted = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        url = urlsplit(request.path)
        if url.path == "/api/v1/namespaces":
            return NAMESPACES if not is_deleted.is_set() else listed(version=1)
        if "configmaps" in url.path:
            return listed(an_owner(activated="true"), version=1) if not is_deleted.is_set() else REFUSED
        if "watch" in url.query:
            return watched()
        return listed(*([a_pod()] if not is_deleted.is_set() else []), version=1)

    store = MemoryStatusStore()
    with serving(tmp_path / "k", answer):
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, store)
        async with aclosing(cluster.watch()) as changes:
            assert await anext(changes) == ""
            assert (await cluster.observe("j1")).attempts == [1]
            is_deleted.set()
            assert (await cluster.observe("j1")).attempts == []
            await cluster.stop("j1", attempt=1, term=1, generation=1, cause="kill", grace_ms=0)
            assert await store.get(stop_key("j1")) is not None
            await cluster.teardown("j1", attempt=1, term=1)
        await cluster.close()


async def test_namespace_that_cannot_be_read_hides_no_job_of_another_tenant(tmp_path: Path) -> None:
    """Jobs of all tenants whose place a guardian did not know, e.g. after its restart, could not be torn down."""
    namespaces = listed({"metadata": {"name": "weft-half"}}, {"metadata": {"name": "weft-t"}}, version=1)

    def answer(request: Request, _: int) -> Answer:
        path = urlsplit(request.path).path
        if path == "/api/v1/namespaces":
            return namespaces
        if "/weft-half/" in path:
            return REFUSED
        return listed(*([an_owner()] if path.endswith("weft-t/configmaps") else []), version=1)

    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        places = Places(api, OPTIONS)
        assert await places.find("j1") == "weft-t"
        with pytest.raises(Unavailable, match="weft-guardian"):
            await places.find("j2")  # it may be there
        turns = [await places.without_pods((), now_s) for now_s in (0.0, 10.0, 20.0)]
        assert turns[-1] == {"j1"}
        await api.close()


async def test_namespace_that_is_being_removed_is_not_searched_for_jobs(tmp_path: Path) -> None:
    going = {"metadata": {"name": "weft-going", "deletionTimestamp": "2026-11-28T05:00:00Z"}}

    def answer(request: Request, _: int) -> Answer:
        path = urlsplit(request.path).path
        if "/weft-going/" in path:
            return REFUSED
        return listed(*([going] if path == "/api/v1/namespaces" else []), version=1)

    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        places = Places(api, OPTIONS)
        assert await places.find("j1") is None
        assert await places.jobs() == set()
        await api.close()


@pytest.mark.parametrize("state", ["gone", "being removed"])
async def test_namespace_that_was_deleted_by_hand_is_made_again_for_the_next_job(tmp_path: Path, state: str) -> None:
    """For ten minutes each attempt of a job was provisioned in vain."""
    present = tenants.namespace("t", OPTIONS)
    is_deleted = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        if request.method == "GET" and is_deleted.is_set() and state == "gone":
            return status(404, "not found", "NotFound")
        if request.method == "GET" and is_deleted.is_set():
            going = {**present["metadata"], "deletionTimestamp": "2026-11-28T05:00:00Z"}
            return json_answer({**present, "metadata": going})
        return json_answer(present)

    with serving(tmp_path / "k", answer) as server:
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, MemoryStatusStore())
        await cluster.prepare("t")
        whole = len(server.requests)
        await cluster.prepare("t")
        assert len(server.requests) == whole + 1
        is_deleted.set()
        await cluster.prepare("t")
        assert len(server.requests) >= 2 * whole
        await cluster.close()


async def test_stop_is_enforced_after_its_grace_although_an_earlier_guardians_clock_was_an_hour_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that did not end kept its hardware for that hour."""
    monkeypatch.setattr("services.core.adapters.kubernetes.removal._ENFORCE_S", 0.01)
    marked, pod = an_owner(stop=a_mark(NOW + 3_600_000)), a_pod()

    def answer(request: Request, _: int) -> Answer:
        if request.path.startswith("/api/v1/namespaces?"):
            return NAMESPACES
        if "configmaps/" in request.path or request.method == "DELETE":
            return json_answer(marked)
        return listed(marked if "configmaps" in request.path else pod, version=1)

    with serving(tmp_path / "k", answer) as server:
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, MemoryStatusStore(), now_ms=lambda: NOW)
        await cluster.stop("j1", attempt=1, term=1, generation=1, cause="halt", grace_ms=0)
        await until(lambda: any(request.method == "DELETE" for request in server.requests), timeout=20)
        await cluster.close()

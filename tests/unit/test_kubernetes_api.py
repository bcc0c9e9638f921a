"""Requests to an API server that fails in every way: errors in terms of the domain, and watches that go on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from services.core.adapters.kubernetes import tenants
from services.core.adapters.kubernetes.api import Api, Expired, collection
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.reflector import Reflector
from services.core.domain.errors import (
    AdmissionDenied,
    Duplicate,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StaleRevision,
    Unavailable,
    WeftError,
)
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.scripted_http import Answer, Request, Scripted, json_answer, scripted
from tests.waiting import HANG_S, until

PODS = "/api/v1/pods"


def write_kubeconfig(path: Path, server: str, token: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    path.write_text(json.dumps(document))


@contextmanager
def serving(kubeconfig: Path, answer: Callable[[Request, int], Answer]) -> Generator[Scripted]:
    with scripted(answer) as server:
        write_kubeconfig(kubeconfig, server.url, "t1")
        yield server


def status(code: int, message: str, reason: str = "", **headers: str) -> Answer:
    return json_answer({"kind": "Status", "code": code, "message": message, "reason": reason}, code, **headers)


ERRORS: list[tuple[Answer, type[WeftError]]] = [
    (status(404, 'pods "x" not found', "NotFound"), NotFound),
    (status(409, 'pods "x" already exists', "AlreadyExists"), Duplicate),
    (status(409, "the object has been modified", "Conflict"), StaleRevision),
    (status(410, "too old resource version", "Expired"), Expired),
    (status(422, "spec.containers[0].image: Required value", "Invalid"), InvalidRequest),
    (
        status(
            403,
            'pods "x" is forbidden: exceeded quota: weft, requested: requests.nvidia.com/gpu=8, used: '
            "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8",
            "Forbidden",
        ),
        QuotaExceeded,
    ),
    (
        status(
            403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', "Forbidden"
        ),
        AdmissionDenied,
    ),
    (status(400, 'admission webhook "policy.example" denied the request: no latest', "BadRequest"), AdmissionDenied),
    (status(422, "ValidatingAdmissionPolicy 'w' with binding 'w' denied request: no", "Invalid"), AdmissionDenied),
    (
        status(403, 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi', "Forbidden"),
        AdmissionDenied,
    ),
    (status(403, 'User "system:serviceaccount:weft:guardian" cannot create resource "pods"', "Forbidden"), Unavailable),
    (
        status(403, "unable to create new content in namespace weft-t because it is being terminated", "Forbidden"),
        Unavailable,
    ),
    (status(500, "etcdserver: leader changed", "InternalError"), Unavailable),
    (status(504, "Timeout: request did not complete within requested timeout", "Timeout"), Unavailable),
    (Answer(502, b"<html>a proxy's page</html>"), Unavailable),
    (Answer(200, b"no JSON"), Unavailable),
    (Answer(200, b'{"items": []}', cut_after=5), Unavailable),
]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "error"), ERRORS, ids=str)
async def test_every_answer_is_an_error_of_the_domain(tmp_path: Path, answer: Answer, error: type[WeftError]) -> None:
    with serving(tmp_path / "k", lambda *_: answer):
        api = Api(tmp_path / "k")
        with pytest.raises(WeftError) as raised:
            await api.get(PODS)
        assert type(raised.value) is error
        await api.close()


async def test_overloaded_server_says_when_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path / "k", lambda *_: status(429, "too many requests", "TooManyRequests", Retry_After="7")):
        api = Api(tmp_path / "k")
        with pytest.raises(Unavailable) as raised:
            await api.get(PODS)
        assert raised.value.retry_after_s == 7
        await api.close()


async def test_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    with serving(tmp_path / "k", lambda *_: json_answer({})):
        pass
    api = Api(tmp_path / "k")
    with pytest.raises(Unavailable, match="does not answer"):
        await api.get(PODS)
    await api.close()


async def test_credentials_are_read_again_when_they_are_refused(tmp_path: Path) -> None:
    def answer(request: Request, _: int) -> Answer:
        if request.headers["authorization"] == "Bearer t2":
            return json_answer({"kind": "Pod"})
        write_kubeconfig(tmp_path / "k", f"http://{request.headers['host']}", "t2")
        return status(401, "Unauthorized", "Unauthorized")

    with serving(tmp_path / "k", answer) as server:
        api = Api(tmp_path / "k")
        assert await api.get(PODS) == {"kind": "Pod"}
        assert len(server.requests) == 2
        await api.close()


async def test_deleting_what_is_gone_or_another_object_is_no_error(tmp_path: Path) -> None:
    answers = [
        status(404, "not found"),
        status(409, "the UID in the precondition does not match", "Conflict"),
        json_answer({"metadata": {"uid": "another"}}),
    ]
    with serving(tmp_path / "k", lambda _, number: answers[number]) as server:
        api = Api(tmp_path / "k")
        for _ in range(2):
            await api.delete(collection("Pod", "weft-t", "x"), grace_s=1, uid="u")
        body = json.loads(server.requests[0].body)
        assert (body["gracePeriodSeconds"], body["preconditions"]) == (1, {"uid": "u"})
        await api.close()


async def test_deletion_that_lost_a_race_with_a_change_is_repeated(tmp_path: Path) -> None:
    conflict, present = status(409, "the object has been modified", "Conflict"), json_answer({"metadata": {"uid": "u"}})
    answers = [conflict, present, conflict, present, json_answer({"kind": "Pod"})]
    with serving(tmp_path / "k", lambda _, number: answers[number]) as server:
        api = Api(tmp_path / "k")
        await api.delete(collection("Pod", "weft-t", "x"), uid="u")
        assert [request.method for request in server.requests] == ["DELETE", "GET", "DELETE", "GET", "DELETE"]
        await api.close()


async def test_deletion_of_an_object_as_it_was_read_is_not_repeated_once_it_has_changed(tmp_path: Path) -> None:
    answers = [
        status(409, "the ResourceVersion in the precondition does not match", "Conflict"),
        json_answer({"metadata": {"uid": "u", "resourceVersion": "8"}}),
    ]
    with serving(tmp_path / "k", lambda _, number: answers[number]) as server:
        api = Api(tmp_path / "k")
        with pytest.raises(StaleRevision):
            await api.delete(collection("Pod", "weft-t", "x"), uid="u", version="7")
        assert json.loads(server.requests[0].body)["preconditions"] == {"uid": "u", "resourceVersion": "7"}
        await api.close()


async def test_deletion_that_loses_every_race_is_an_error(tmp_path: Path) -> None:
    def answer(request: Request, _: int) -> Answer:
        if request.method == "GET":
            return json_answer({"metadata": {"uid": "u"}})
        return status(409, "the object has been modified", "Conflict")

    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        with pytest.raises(StaleRevision):
            await api.delete(collection("ConfigMap", "weft-t", "x"))
        await api.close()


@pytest.mark.parametrize(
    "passing",
    [
        status(429, "too many requests", "TooManyRequests", Retry_After="0"),
        status(500, "etcdserver: leader changed"),
        status(503, "the server is currently unable to handle the request"),
        status(504, "Timeout: request did not complete within requested timeout"),
        Answer(200, b'{"kind": "Pod"}', cut_after=3),
    ],
    ids=str,
)
async def test_request_that_fails_for_a_moment_is_repeated(tmp_path: Path, passing: Answer) -> None:
    answers = [passing, passing, json_answer({"kind": "Pod"})]
    with serving(tmp_path / "k", lambda _, number: answers[number]) as server:
        api = Api(tmp_path / "k")
        assert await api.create(PODS, {}) == {"kind": "Pod"}
        assert len(server.requests) == 3
        await api.close()


async def test_burst_of_requests_waits_for_its_turn_instead_of_for_a_connection(tmp_path: Path) -> None:
    """Before, the pods of a large gang that waited for a connection failed as if the server did not answer."""
    most = running = 0
    counting = threading.Lock()
    full = threading.Event()

    def answer(*_: object) -> Answer:
        nonlocal most, running
        with counting:
            running += 1
            most = max(most, running)
            if running == 24:
                full.set()
        assert full.wait(HANG_S)
        with counting:
            running -= 1
        return json_answer({"kind": "Pod"})

    with serving(tmp_path / "k", answer) as server:
        api = Api(tmp_path / "k")
        await asyncio.gather(*(api.create(PODS, {}) for _ in range(200)))
        assert (len(server.requests), most) == (200, 24)
        await api.close()


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "weft-t", "name": name, "resourceVersion": str(version)}}


def listed(*pods: dict[str, Any], version: int, rest: str = "") -> Answer:
    return json_answer({"items": list(pods), "metadata": {"resourceVersion": str(version), "continue": rest}})


def watched(*events: tuple[str, dict[str, Any]]) -> Answer:
    lines = [json.dumps({"type": kind, "object": document}) for kind, document in events]
    return Answer(200, "".join(f"{line}\n" for line in lines).encode())


async def test_long_lists_are_read_page_by_page(tmp_path: Path) -> None:
    pages = [listed(pod("a", 1), version=5, rest="more"), listed(pod("b", 2), version=5)]
    with serving(tmp_path / "k", lambda _, number: pages[number]) as server:
        api = Api(tmp_path / "k")
        items, version = await api.list(PODS, selector="x=y")
        assert ([item["metadata"]["name"] for item in items], version) == (["a", "b"], "5")
        assert parse_qs(urlsplit(server.requests[1].path).query)["continue"] == ["more"]
        await api.close()


@pytest.mark.slow
async def test_copy_follows_changes_over_ended_forgotten_and_cut_watches(tmp_path: Path) -> None:
    script = [
        listed(pod("a", 1), version=10),
        watched(("ADDED", pod("b", 11)), ("BOOKMARK", {"metadata": {"resourceVersion": "15"}})),  # the server ends it
        watched(("ERROR", {"code": 410, "message": "too old resource version"})),  # forgotten: list again
        listed(pod("b", 11), pod("c", 20), version=30),
        status(500, "overloaded"),  # fails, and so do the request after it and its repetitions: back-off
        *[status(500, "overloaded")] * 5,
        listed(pod("c", 20), pod("d", 31), version=40),
        watched(("DELETED", pod("c", 41)), ("MODIFIED", pod("d", 42))),
    ]
    last = Answer(200, b"", {}, None)
    with serving(tmp_path / "k", lambda _, number: script[number] if number < len(script) else last) as server:
        api = Api(tmp_path / "k")
        changed: list[str] = []
        lists: list[int] = []
        copy = Reflector(
            api,
            PODS,
            keep=lambda document: document["metadata"]["resourceVersion"],
            on_change=lambda document: changed.append(document["metadata"]["name"]),
            on_list=lambda: lists.append(1),
        )
        task = asyncio.create_task(copy.run())
        await until(lambda: dict(copy.objects) == {("weft-t", "d"): "42"})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        assert changed == ["b", "c", "d"]
        assert len(lists) == 3
        watches = [
            parse_qs(urlsplit(request.path).query) for request in server.requests if "watch=true" in request.path
        ]
        assert [query["resourceVersion"] for query in watches][:3] == [["10"], ["15"], ["30"]]
        assert all(query["allowWatchBookmarks"] == ["true"] for query in watches)


async def test_copy_of_a_server_that_allows_lists_and_no_watches_is_listed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the copy counted as current and stayed as it was: no end of a pod was noticed."""
    monkeypatch.setattr("services.core.adapters.kubernetes.reflector._MOST_S", 0.4)
    lists = 0

    def answer(request: Request, _: int) -> Answer:
        nonlocal lists
        if "watch=true" in request.path:
            return status(403, 'User "weft" cannot watch resource "pods"', "Forbidden")
        lists += 1
        return listed(pod(f"a{lists}", lists), version=lists)

    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        copy = Reflector(api, PODS)
        with capture_logs() as logged:
            task = asyncio.create_task(copy.run())
            await until(lambda: ("weft-t", "a6") in copy.objects)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await api.close()
        pauses_s = [entry["delay_s"] for entry in logged if entry["event"] == "kubernetes.watch_failed"]
        assert pauses_s[0] <= 0.1
        assert all(pause_s >= 0.2 for pause_s in pauses_s[2:])


async def test_copy_of_a_server_that_does_not_list_is_unavailable(tmp_path: Path) -> None:
    with serving(tmp_path / "k", lambda *_: status(500, "overloaded")):
        api = Api(tmp_path / "k")
        copy = Reflector(api, PODS)
        task = asyncio.create_task(copy.run())
        with pytest.raises(Unavailable, match="does not list"):
            await copy.synced(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def test_copy_is_listed_again_after_an_event_that_cannot_be_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy stayed as it was before this event, and counted as current until the service was started again."""
    monkeypatch.setattr("services.core.adapters.kubernetes.reflector._MOST_S", 0.05)
    script = [listed(pod("a", 1), version=10), Answer(200, b'{"type": "ADDED"}\n'), listed(pod("b", 11), version=12)]
    last = Answer(200, b"", {}, None)
    with serving(tmp_path / "k", lambda _, number: script[number] if number < len(script) else last):
        api = Api(tmp_path / "k")
        copy = Reflector(api, PODS)
        task = asyncio.create_task(copy.run())
        await until(lambda: list(copy.objects) == [("weft-t", "b")])
        assert copy.current
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def test_one_jobs_pod_of_half_a_mebibyte_hides_no_other_pod_from_the_platform(tmp_path: Path) -> None:
    """A watch that fails at a long line begins again before it, for ever: no job of any tenant would go on."""
    large = pod("large", 11) | {"spec": {"env": "x" * 2**19}}
    script = [listed(version=10), watched(("ADDED", pod("a", 10)), ("ADDED", large), ("ADDED", pod("b", 12)))]
    last = Answer(200, b"", {}, None)
    with serving(tmp_path / "k", lambda _, number: script[number] if number < len(script) else last):
        api = Api(tmp_path / "k")
        changed: list[tuple[str, int]] = []
        copy = Reflector(
            api, PODS, on_change=lambda document: changed.append((document["metadata"]["name"], len(str(document))))
        )
        task = asyncio.create_task(copy.run())
        await until(lambda: len(copy.objects) == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        assert [name for name, _ in changed] == ["a", "large", "b"]
        assert changed[1][1] > 2**19


async def test_reader_looks_at_all_jobs_before_one_although_a_pods_warning_comes_before_the_list_of_pods(
    tmp_path: Path,
) -> None:
    warning = pod("weft-j1-1-worker-0.1", 2) | {"involvedObject": {"name": "weft-j1-1-worker-0"}}
    was_read = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        if "watch=true" not in request.path:
            assert request.path.startswith("/api/v1/events") or was_read.wait(HANG_S)
            return listed(version=1)
        if not request.path.startswith("/api/v1/events"):
            return watched()
        if parse_qs(urlsplit(request.path).query)["resourceVersion"] != ["1"]:
            was_read.set()  # it goes on after the first warning
        return watched(("ADDED", warning))

    with serving(tmp_path / "k", answer):
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, MemoryStatusStore())
        async with aclosing(cluster.watch()) as changes:
            assert await anext(changes) == ""
            async with asyncio.timeout(HANG_S):
                while await anext(changes) != "j1":
                    pass
        await cluster.close()


@pytest.mark.slow
async def test_first_job_of_a_tenant_waits_until_the_api_server_knows_of_the_rights_in_the_new_namespace(
    tmp_path: Path,
) -> None:
    """A busy one refused the secret of registries for a moment, and the namespace was not prepared."""
    refusals = iter(range(3))
    secrets: list[Request] = []

    def answer(request: Request, _: int) -> Answer:
        if request.method == "GET":
            return status(404, "not found", "NotFound")
        if request.path.endswith("/secrets"):
            secrets.append(request)
            if next(refusals, None) is not None:
                return status(403, 'secrets is forbidden: User "lcm" cannot create resource "secrets"', "Forbidden")
        return json_answer(json.loads(request.body), 201)

    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        await tenants.prepare(api, "t", replace(OPTIONS, pull_secret='{"auths": {}}'))
        await api.close()
    assert len(secrets) == 4

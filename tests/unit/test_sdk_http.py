"""Requests, streams and downloads over broken connections: nothing lost, nothing repeated twice, retries that end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.testbed.scripted_http import Answer, Request, event_answer, json_answer, scripted
from weft import Client, ConnectionFailed, Internal, InvalidRequest, NotFinished, NotFound, Unavailable, WeftError
from weft._choosing import choose
from weft._client import Client as TheClient
from weft._follow import Follow
from weft._http import Http
from weft._profile import Profile
from weft._records import Artifact
from weft._times import parse_time
from weft._wire import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, FIRST_RETRY_FOR_S, RETRY_FOR_S, pause_s

JOB = {"id": "j1", "name": "digits", "status": "PROCESSING", "at_rest": False, "created": "2026-11-21T13:20:00.123Z"}
TIME = "2026-11-21T13:20:00.123Z"
PROFILE = Profile("", "http://weft.example", "k")


def client(url: str) -> TheClient:
    return Client(url, "weft_k_s")


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Sessions:
    """Makes clients on a clock of their own, and closes them."""

    def __init__(self) -> None:
        self.made: list[Http] = []

    def __call__(self, url: str, clock: Clock) -> Http:
        self.made.append(Http(Profile("", url, "k"), clock=clock, sleep=clock.sleep))
        return self.made[-1]

    def follow(self, url: str, clock: Clock, **more: Any) -> Follow:
        made = self(url, clock)
        return Follow(made, "/v1/jobs/j1/logs", {"tail": 5}, clock=clock, sleep=clock.sleep, **more)


@pytest.fixture
def http() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    for made in sessions.made:
        made.close()


def unavailable(retry_after: str = "") -> Answer:
    more = {"Retry_After": retry_after} if retry_after else {}
    return json_answer({"code": "unavailable", "detail": "a store is away"}, 503, **more)


# --- requests -----------------------------------------------------------------------


def test_request_carries_the_key_and_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with scripted(lambda _request, _n: json_answer({"user": "alice"})) as server, client(server.url) as connected:
        assert connected.whoami() == {"user": "alice"}
    assert server.requests[0].headers["authorization"] == "Bearer weft_k_s"
    assert server.requests[0].headers["user-agent"].startswith("weft-sdk/")


def test_unavailable_request_is_retried_until_it_succeeds(http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, n: unavailable() if n < 3 else json_answer({"ok": True})) as server:
        assert http(server.url, clock).json("GET", "/v1/x") == {"ok": True}
    assert len(clock.slept) == 3
    assert clock.slept == sorted(clock.slept)


def test_retry_after_header_is_respected(http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, n: unavailable("3") if n < 2 else json_answer({})) as server:
        http(server.url, clock).json("GET", "/v1/x")
    assert clock.slept == [3.0, 3.0]


def test_retries_end_after_the_limit(http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, _n: unavailable()) as server, pytest.raises(Unavailable, match="a store is away"):
        http(server.url, clock).json("GET", "/v1/x")
    assert RETRY_FOR_S / 2 < clock.now <= RETRY_FOR_S


def test_platform_that_never_answered_is_given_up_quickly(http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, _n: json_answer({})) as server:
        url = server.url
    with pytest.raises(
        ConnectionFailed, match=r"nothing answers at .* \(connection refused\); start it with `weft up`"
    ):
        http(url, clock).json("GET", "/v1/x")
    assert 0 < clock.now <= FIRST_RETRY_FOR_S


@pytest.mark.parametrize("answered", [True, False])
def test_a_request_whose_answer_timed_out_is_sent_again(*, answered: bool) -> None:
    """The time of the first try counted as time of retries, so a request that failed late had no second one."""
    clock, slow = Clock(), 1 if answered else 0

    def answer(_request: httpx2.Request) -> httpx2.Response:
        nonlocal slow
        slow -= 1
        if slow == -1:
            clock.now += ANSWER_TIMEOUT_S
            raise httpx2.ReadTimeout("")
        return httpx2.Response(200, json={"ok": True})

    with closing(Http(PROFILE, transport=httpx2.MockTransport(answer), clock=clock, sleep=clock.sleep)) as http:
        for _ in range(2):
            assert http.json("GET", "/v1/x") == {"ok": True}
    assert len(clock.slept) == 1


def test_an_address_without_an_answer_is_tried_for_one_connection_timeout_only() -> None:
    clock = Clock()

    def answer(_request: httpx2.Request) -> httpx2.Response:
        clock.now += CONNECT_TIMEOUT_S
        raise httpx2.ConnectTimeout("")

    transport = httpx2.MockTransport(answer)
    with (
        closing(Http(PROFILE, transport=transport, clock=clock, sleep=clock.sleep)) as http,
        pytest.raises(ConnectionFailed),
    ):
        http.json("GET", "/v1/x")
    assert clock.now == CONNECT_TIMEOUT_S


def missing() -> Answer:
    return json_answer({"code": "not_found", "detail": "there is no job j1"}, 404)


@pytest.mark.parametrize("lost", [unavailable(), Answer(200, b"x" * 50, cut_after=10)], ids=["503", "cut"])
@pytest.mark.parametrize("kill", [False, True])
def test_a_job_whose_deletion_lost_its_answer_is_deleted_not_missing(lost: Answer, *, kill: bool) -> None:
    with scripted(lambda _request, n: lost if n == 0 else missing()) as server, client(server.url) as connected:
        connected.jobs.delete("j1", kill=kill)
    assert [request.method for request in server.requests] == ["DELETE", "DELETE"]


def refused(error: type[WeftError], answers: list[Answer], call: Callable[[TheClient], object]) -> None:
    """The call is answered with these, and raises the error."""
    with scripted(lambda _request, n: answers[n]) as server, client(server.url) as connected, pytest.raises(error):
        call(connected)


def test_deleting_a_job_that_does_not_exist_is_an_error() -> None:
    busy = json_answer({"code": "resource_exhausted", "detail": "too fast"}, 429, Retry_After="0")
    for answers in ([missing()], [busy, missing()]):
        refused(NotFound, answers, lambda connected: connected.jobs.delete("j1"))


def test_reading_a_job_that_is_missing_after_a_lost_answer_is_an_error() -> None:
    refused(NotFound, [unavailable(), missing()], lambda connected: connected.jobs.get("j1"))


def test_each_post_is_retried_under_its_own_idempotency_key(http: Sessions) -> None:
    def answer(_request: Request, n: int) -> Answer:
        return Answer(200, b"x" * 50, cut_after=10) if n % 3 < 2 else json_answer(JOB, 202)

    with scripted(answer) as server:
        for verb in ("halt", "resume"):
            http(server.url, Clock()).json("POST", f"/v1/jobs/j1/{verb}")
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys == [keys[0]] * 3 + [keys[3]] * 3
    assert keys[0] != keys[3]


def test_a_submission_is_repeated_under_one_key_and_with_one_body(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n" * 100)

    def answer(request: Request, n: int) -> Answer:
        if "dry_run" in request.path:
            return json_answer({"code": {"stored": False}})
        return Answer(200, b"x" * 50, cut_after=10) if n < 3 else json_answer(JOB, 201)

    sent: list[tuple[int, int]] = []
    with scripted(answer) as server, client(server.url) as connected:
        job = connected.jobs.submit({"name": "x", "command": "c"}, code=tmp_path, on_upload=lambda *n: sent.append(n))
    assert job.id == "j1"
    posts = [request for request in server.requests if "dry_run" not in request.path]
    assert len(posts) == 3
    assert len({request.headers["idempotency-key"] for request in posts}) == 1
    for request in posts:
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        parts = request.body.split(b"--" + boundary)
        assert b'name="spec"' in parts[1]
        assert b'name="code"' in parts[2]
        assert b"PK\x03\x04" in parts[2]
    assert sent[-1][0] == sent[-1][1] > 0


def test_code_that_the_platform_has_is_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")

    def answer(request: Request, _n: int) -> Answer:
        return json_answer({"code": {"stored": True}} if "dry_run" in request.path else JOB)

    with scripted(answer) as server, client(server.url) as connected:
        connected.jobs.submit({"name": "x"}, code=tmp_path)
    assert "code_digest=sha256%3A" in server.requests[1].path or "code_digest=sha256:" in server.requests[1].path
    assert json.loads(server.requests[1].body) == {"name": "x"}


def test_code_removed_after_the_plan_is_uploaded(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    gone = {"code": "invalid-request", "detail": "d", "errors": [{"pointer": "/code_digest", "message": "m"}]}
    answers = iter([json_answer({"code": {"stored": True}}), json_answer(gone, 400), json_answer(JOB, 201)])
    with scripted(lambda _request, _n: next(answers)) as server, client(server.url) as connected:
        assert connected.jobs.submit({"name": "x"}, code=tmp_path).id == "j1"
    assert b"PK\x03\x04" in server.requests[2].body


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1, 2]", b"\xff"])
def test_an_answer_that_is_no_object_is_a_clear_error(body: bytes) -> None:
    refused = pytest.raises(WeftError, match="is this the address of a Weft platform")
    with scripted(lambda _request, _n: Answer(200, body)) as server, client(server.url) as connected, refused:
        connected.whoami()


def test_the_key_does_not_follow_a_redirect() -> None:
    refused = pytest.raises(InvalidRequest, match="http://elsewhere")
    there = Answer(302, headers={"Location": "http://elsewhere/"})
    with scripted(lambda _request, _n: there) as server, client(server.url) as connected, refused:
        connected.whoami()
    assert len(server.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "key"), [("http://[", "k"), ("http://x", "schlüssel"), ("x", "k"), ("http://x", "a\nb")]
)
def test_invalid_address_or_key_is_one_clear_error(url: str, key: str) -> None:
    with pytest.raises(WeftError), Client(url, key) as connected:
        connected.whoami()


def test_pages_are_fetched_lazily() -> None:
    def answer(request: Request, _n: int) -> Answer:
        start = int(request.path.partition("after=")[2].partition("&")[0] or 0)
        return json_answer({"jobs": [{"id": f"j{start + n}"} for n in range(100)], "next": str(start + 100)})

    with scripted(answer) as server, client(server.url) as connected:
        ids = [job.id for job in itertools.islice(connected.jobs.list(), 150)]
    assert ids == [f"j{n}" for n in range(150)]
    assert len(server.requests) == 2


def test_wait_times_out_and_does_not_change_the_job() -> None:
    late = pytest.raises(NotFinished, match=r"still PROCESSING after 0\.2 s")
    with scripted(lambda _request, _n: json_answer(JOB)) as server, client(server.url) as connected, late:
        connected.jobs.wait("j1", timeout=0.2)
    assert {request.method for request in server.requests} == {"GET"}


def test_wait_ends_when_the_job_has_ended_or_halted() -> None:
    with (
        scripted(lambda _request, n: json_answer({**JOB, "at_rest": n >= 3})) as server,
        client(server.url) as connected,
    ):
        assert connected.jobs.wait("j1").at_rest
    assert len(server.requests) == 4


def test_job_name_cannot_become_a_path() -> None:
    with client("http://127.0.0.1:9") as connected:
        for bad in ("", "../keys", "a/b", "j1?x"):
            with pytest.raises(NotFound):
                connected.jobs.get(bad)


def test_pauses_grow_to_a_bound() -> None:
    longest = [pause_s(attempt, jitter=lambda: 1.0) for attempt in range(50)]
    assert longest == sorted(longest)
    assert longest[-1] == 4.0
    assert pause_s(0, jitter=lambda: 0.0) > 0


# --- streams --------------------------------------------------------------------------


def line(seq: int) -> tuple[str, str, Any]:
    document = {"seq": seq, "time": TIME, "attempt": 1, "role": "worker", "rank": 0, "run": 1, "stream": "stdout"}
    return ("line", str(seq), {**document, "text": f"line {seq}\u2028still", "partial": False})


def test_cut_stream_resumes_after_the_last_line(http: Sessions) -> None:
    cuts: list[WeftError] = []
    answers = [
        event_answer(line(1), line(2)),
        Answer(200, event_answer(line(3), line(4)).body, {"Content-Type": "text/event-stream"}, cut_after=240),
        unavailable(),
        event_answer(line(4), line(5), end=True),
    ]
    clock = Clock()
    with scripted(lambda _request, n: answers[n]) as server:
        stream = http.follow(server.url, clock, on_cut=cuts.append)
        sequence = [event.data["seq"] for event in stream]
    assert sequence == [1, 2, 3, 4, 5]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "2", "3", "3"]
    assert len(cuts) == 2
    assert stream.end is not None
    assert (stream.end.status, stream.end.exit_code) == ("COMPLETED", 0)


@pytest.mark.parametrize("tail", [0, 20])
def test_a_tail_that_is_cut_before_its_first_line_loses_no_line(tail: int) -> None:
    answers = [
        json_answer(JOB),
        event_answer(("start", "7", {"seq": 7})),
        event_answer(("start", "7", {"seq": 7}), line(8), end=True),
    ]
    with scripted(lambda _request, n: answers[n]) as server, client(server.url) as connected:
        lines = list(connected.jobs.get("j1").logs(follow=True, tail=tail))
    assert [entry.seq for entry in lines] == [8]
    assert [request.headers.get("last-event-id") for request in server.requests[1:]] == [None, "7"]
    assert "start=true" in server.requests[1].path


def test_stream_without_events_ends(http: Sessions) -> None:
    with scripted(lambda _request, _n: event_answer(end=True)) as server:
        stream = http.follow(server.url, Clock())
        assert list(stream) == []
        assert stream.end is not None


def test_stream_is_given_up_after_the_retry_limit(http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, n: event_answer(line(1)) if n == 0 else unavailable()) as server:
        stream = http.follow(server.url, clock, retry_for_s=100.0)
        assert next(stream).data["seq"] == 1
        with pytest.raises(Unavailable):
            next(stream)
    assert 60 < clock.now <= 100 + RETRY_FOR_S
    assert stream.end is None


class Quiet(httpx2.SyncByteStream):
    """A stream with keep-alive comments alone that is cut after an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __iter__(self) -> Iterator[bytes]:
        yield b": \n\n"
        self._clock.now += 3600.0
        yield b": \n\n"


def test_following_a_job_that_prints_nothing_for_hours_survives_restarts_of_the_api() -> None:
    clock, requests = Clock(), 0
    cuts: list[WeftError] = []

    def answer(_request: httpx2.Request) -> httpx2.Response:
        nonlocal requests
        requests += 1
        if requests % 2 == 0:  # the api restarts
            return httpx2.Response(503, json={"code": "unavailable", "detail": "a store is away"})
        body = Quiet(clock) if requests < 6 else httpx2.ByteStream(event_answer(line(1), end=True).body)
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=body)

    with closing(Http(PROFILE, transport=httpx2.MockTransport(answer), clock=clock, sleep=clock.sleep)) as quiet:
        stream = Follow(quiet, "/v1/jobs/j1/logs", {}, clock=clock, sleep=clock.sleep, on_cut=cuts.append)
        clock.now += 3600.0
        assert [event.data["seq"] for event in stream] == [1]
    assert requests == 7
    assert len(cuts) == 3


def test_stream_that_is_cut_at_once_again_and_again_is_opened_ever_later(http: Sessions) -> None:
    clock = Clock()
    cuts: list[WeftError] = []
    with scripted(lambda _request, n: event_answer(end=n == 9)) as server:
        assert list(http.follow(server.url, clock, on_cut=cuts.append)) == []
    assert len(cuts) == 1
    assert clock.slept[-1] > 10 * clock.slept[0]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (json_answer({"code": "not-found", "detail": "no such job"}, 404), NotFound),
        (
            event_answer(("error", "", {"code": "invalid-request", "status": 400, "detail": "bad search"})),
            InvalidRequest,
        ),
        (Answer(200, b"<html>", {"Content-Type": "text/html"}), Internal),
        (Answer(200, b"event: line\ndata: {\n\n", {"Content-Type": "text/event-stream"}), Internal),
    ],
)
def test_stream_that_cannot_resume_fails_at_once(answer: Answer, kind: type[WeftError], http: Sessions) -> None:
    clock = Clock()
    with scripted(lambda _request, _n: answer) as server, pytest.raises(kind):
        list(http.follow(server.url, clock))
    assert len(server.requests) == 1


# --- downloads --------------------------------------------------------------------------


CONTENT = bytes(range(256)) * 4000


def artifact(path: str, content: bytes = CONTENT, etag: str = "v1") -> dict[str, Any]:
    return {"path": path, "size": len(content), "etag": etag, "modified": TIME}


def serve(listed: list[dict[str, Any]], cut: dict[int, int], *, etag: str = "v1") -> Any:
    """Ranged answers; the n-th fetch is cut after ``cut[n]`` bytes. ETags are quoted in headers only, as the api's."""
    fetched, quoted = itertools.count(), f'"{etag}"'

    def answer(request: Request, _n: int) -> Answer:
        if request.path.partition("?")[0].endswith("/artifacts"):
            return json_answer({"artifacts": listed, "next": None})
        wanted = request.headers.get("range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        if request.headers.get("if-range", quoted) != quoted:
            start = 0
        return Answer(206 if start else 200, CONTENT[start:], {"ETag": quoted}, cut_after=cut.get(next(fetched)))

    return answer


def test_cut_download_resumes_where_it_stopped(tmp_path: Path) -> None:
    listed = [artifact("attempts/1/results/worker-0/model.bin")]
    progress: list[tuple[int, int]] = []
    with scripted(serve(listed, {0: 100_000, 1: 1, 2: 500_000})) as server, client(server.url) as connected:
        [path] = connected.jobs.download("j1", tmp_path, on_bytes=lambda *n: progress.append(n))
    assert path == tmp_path / "worker-0" / "model.bin"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["model.bin"]
    assert [request.headers.get("range") for request in server.requests[1:]] == [
        None,
        "bytes=100000-",
        "bytes=100001-",
        "bytes=600001-",
    ]
    assert progress[-1] == (len(CONTENT), len(CONTENT))


def test_failed_download_leaves_no_partial_file_and_resumes_on_retry(tmp_path: Path) -> None:
    listed = [artifact("attempts/1/results/worker-0/model.bin")]
    always_cut = {0: 50_000, **dict.fromkeys(range(1, 20), 0)}
    with (
        scripted(serve(listed, always_cut)) as server,
        client(server.url) as connected,
        pytest.raises(ConnectionFailed),
    ):
        connected.jobs.download("j1", tmp_path)
    assert not (tmp_path / "worker-0" / "model.bin").exists()
    with scripted(serve(listed, {})) as server, client(server.url) as connected:
        [path] = connected.jobs.download("j1", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests[1].headers["range"] == "bytes=50000-"


def test_partial_download_of_another_version_is_discarded(tmp_path: Path) -> None:
    name = "attempts/1/results/worker-0/model.bin"
    cut = {0: 10, **dict.fromkeys(range(1, 20), 0)}
    with (
        scripted(serve([artifact(name)], cut)) as server,
        client(server.url) as connected,
        pytest.raises(ConnectionFailed),
    ):
        connected.jobs.download("j1", tmp_path)
    changed = serve([artifact(name, etag="v2")], {}, etag="v2")
    with scripted(changed) as server, client(server.url) as connected:
        [path] = connected.jobs.download("j1", tmp_path)
    assert path.read_bytes() == CONTENT
    assert "range" not in server.requests[1].headers


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a/\0"])
def test_download_writes_nothing_outside_its_folder(tmp_path: Path, path: str) -> None:
    listed = [artifact(f"attempts/1/results/{path}")]
    with scripted(serve(listed, {})) as server, client(server.url) as connected, pytest.raises(Internal):
        connected.jobs.download("j1", tmp_path / "in")
    assert sorted(tmp_path.rglob("*")) == []


def test_download_takes_the_newest_attempt_with_files() -> None:
    listed = [
        Artifact(path, 1, "", parse_time(TIME))
        for path in (
            "attempts/1/results/worker-0/a",
            "attempts/2/results/worker-0/b",
            "attempts/10/logs/learner-1/c",
            "code.zip",
        )
    ]
    assert [name for name, _artifact in choose(listed, "results")] == ["worker-0/b"]
    assert [name for name, _artifact in choose(listed, "logs")] == ["learner-1/c"]
    assert [name for name, _artifact in choose(listed, "code")] == ["code.zip"]
    assert choose(listed, "checkpoints") == []


def test_logs_are_downloaded_into_folders_with_the_names_of_learners_as_results_are() -> None:
    """`weft download --logs` wrote `learner-1`, and `--results` wrote `worker-0`."""
    listed = [
        Artifact("attempts/1/logs/learner-1/training-log.txt", 1, "", parse_time(TIME), "worker-0"),
        Artifact("attempts/1/logs/learner-2/own/x", 1, "", parse_time(TIME), "ps-0"),
        Artifact("attempts/1/results/worker-0/a", 1, "", parse_time(TIME), "worker-0"),
    ]
    assert [name for name, _artifact in choose(listed, "logs")] == ["worker-0/training-log.txt", "ps-0/own/x"]
    assert [name for name, _artifact in choose(listed, "results")] == ["worker-0/a"]


def test_download_of_results_that_are_on_a_claim_says_where(tmp_path: Path) -> None:
    stores = [{"id": "d", "type": "pvc", "claim": "kept"}]
    job = {**JOB, "spec": {"data_stores": stores, "outputs": {"store": "d", "path": "./team//out/"}}}

    def answer(request: Request, _number: int) -> Answer:
        return json_answer({"artifacts": []} if "artifacts" in request.path else job)

    with scripted(answer) as server, closing(client(server.url)) as made:
        with pytest.raises(NotFound, match=r"results are on the claim kept in team/out/j1/attempts: read them there"):
            made.jobs.download("j1", tmp_path)
        with pytest.raises(NotFound, match="has left no logs"):
            made.jobs.download("j1", tmp_path, what="logs")

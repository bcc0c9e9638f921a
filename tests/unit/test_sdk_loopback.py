"""Requests to a platform on this machine: connections are kept, and a lost one neither repeats nor loses a request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from tests.testbed.server import free_port
from tests.waiting import HANG_S, eventually
from weft import ConnectionFailed, InvalidRequest
from weft._loopback import Loopback, is_plain_loopback
from weft._profile import Profile
from weft._wire import NeverSent
from weft.http_exchange import Answer as Received


class Platforms:
    """Makes clients, and closes them."""

    def __init__(self) -> None:
        self.made: list[Loopback] = []

    def __call__(self, url: str, key: str = "weft_k_s") -> Loopback:
        self.made.append(Loopback(Profile("", url, key)))
        return self.made[-1]


@pytest.fixture
def platform() -> Iterator[Platforms]:
    platforms = Platforms()
    yield platforms
    for made in platforms.made:
        made.close()


def get(platform: Loopback, path: str = "/v1/jobs", **params: object) -> Received:
    return platform.request("GET", path, params=params, body=None, headers={})


def test_requests_that_follow_one_another_share_a_connection(platform: Platforms) -> None:
    with scripted(lambda request, _: json_answer(request.path)) as server:
        client = platform(server.url)
        answers = [get(client, f"/v1/jobs/{number}").body for number in range(3)]
        assert answers == [b'"/v1/jobs/0"', b'"/v1/jobs/1"', b'"/v1/jobs/2"']
        assert len({request.connection for request in server.requests}) == 1


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {}], ids=["announced", "silently"])
def test_request_after_the_platform_has_closed_a_kept_connection_is_sent_once(
    platform: Platforms, headers: dict[str, str]
) -> None:
    """As when the api restarts, or ends idle connections."""
    with scripted(lambda _, __: Answer(200, b"{}", headers, cut_after=2)) as server:
        client = platform(server.url)
        get(client)
        eventually(lambda: headers or server.closed)
        answer = client.request("POST", "/v1/jobs", params={}, body={"name": "j"}, headers={})
        assert (answer.status, answer.body) == (200, b"{}")
        assert [request.method for request in server.requests] == ["GET", "POST"]
        assert len({request.connection for request in server.requests}) == 2


def test_answer_that_is_cut_is_an_error_and_its_connection_is_not_used_again(platform: Platforms) -> None:
    def answer(_: Request, number: int) -> Answer:
        return Answer(200, b'{"id": "j1"}', cut_after=5) if number == 0 else json_answer("whole")

    with scripted(answer) as server:
        client = platform(server.url)
        with pytest.raises(ConnectionFailed, match="broke"):
            get(client)
        assert get(client).body == b'"whole"'


def test_threads_that_share_a_client_get_the_answers_to_their_own_requests(platform: Platforms) -> None:
    threads, together = 12, Barrier(12)

    def answer(request: Request, _: int) -> Answer:
        return json_answer(request.path)

    with scripted(answer) as server:
        client = platform(server.url)

        def get_ten(thread: int) -> list[bytes]:
            together.wait(HANG_S)
            return [get(client, f"/v1/{thread}/{number}").body for number in range(10)]

        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(get_ten, range(threads)))
        assert answers == [[f'"/v1/{thread}/{number}"'.encode() for number in range(10)] for thread in range(threads)]


def test_no_connection_is_left_by_a_request_that_ends_after_its_client_was_closed(platform: Platforms) -> None:
    """As when `weft train --follow` ends while its thread reads the job's progress."""
    received, closed = Event(), Event()

    def answer(_: Request, __: int) -> Answer:
        received.set()
        assert closed.wait(HANG_S)
        return json_answer("late")

    with scripted(answer) as server, ThreadPoolExecutor(1) as thread:
        client = platform(server.url)
        late = thread.submit(get, client)
        assert received.wait(HANG_S)
        client.close()
        closed.set()
        assert late.result(HANG_S).body == b'"late"'
        eventually(lambda: server.closed)


def test_without_a_platform_the_error_says_that_nothing_was_sent_and_what_to_do(platform: Platforms) -> None:
    with pytest.raises(NeverSent, match=r"connection refused\); start it with `weft up`"):
        get(platform(f"http://127.0.0.1:{free_port()}"))


def test_command_that_starts_a_platform_again_names_its_folder() -> None:
    """After `weft up --home DIR` the error said `weft up`, which starts another platform."""
    profile = Profile("other", f"http://127.0.0.1:{free_port()}", "k", "/srv/my weft")
    with pytest.raises(NeverSent, match=r"start it with `weft up --home '/srv/my weft'`"):
        get(Loopback(profile))


def test_headers_paths_and_parameters_arrive_as_they_were_given(platform: Platforms) -> None:
    with scripted(lambda _, __: json_answer({})) as server:
        client = platform(f"{server.url}/prefix/")
        client.request(
            "PATCH",
            "/v1/jobs/a b/\u00e4%2F",
            params={"q": "name=\u00e4 b", "tag": ["x", "y"]},
            body={"text": "\u00e4"},
            headers={"Idempotency-Key": "once"},
        )
        (request,) = server.requests
        assert request.path == "/prefix/v1/jobs/a%20b/%C3%A4%2F?q=name%3D%C3%A4+b&tag=x&tag=y"
        assert request.body == b'{"text": "\\u00e4"}'
        assert request.headers["authorization"] == "Bearer weft_k_s"
        assert request.headers["idempotency-key"] == "once"


def test_key_that_cannot_be_a_header_is_refused_before_anything_is_sent(platform: Platforms) -> None:
    with pytest.raises(InvalidRequest, match="has characters that no key has"):
        platform("http://127.0.0.1:1", "weft_k\r\nX-Other: 1")


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1", "http://10.0.0.1", "http://user@127.0.0.1", "http://127.0.0.1:99999", "http://127.0.0.1/?a"],
)
def test_addresses_that_need_more_are_left_to_the_complete_client(url: str) -> None:
    assert not is_plain_loopback(url)
    assert is_plain_loopback("http://127.0.0.1:8080/prefix")

"""`AsyncClient` is `Client` with `await`: the same methods, docstrings, retries and errors."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.testbed.scripted_http import Answer, Request, event_answer, json_answer, scripted
from tests.waiting import HANG_S
from weft._aio._follow import AsyncFollow
from weft._aio._jobs import AsyncJobs
from weft._archive import Archive, make_archive
from weft._follow import Follow
from weft._jobs import Jobs
from weft._upload import UploadArchive

ROOT = Path(__file__).parents[2]
JOB = {"id": "j1", "name": "digits", "status": "PROCESSING", "at_rest": False, "created": "2026-11-21T13:20:00.123Z"}
PAIRS = [(weft.AsyncClient, weft.Client), (weft.AsyncJob, weft.Job), (AsyncJobs, Jobs), (AsyncFollow, Follow)]


def test_synchronous_modules_are_generated_from_the_asynchronous_ones() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "sdk.py", "--check"], check=False)
    assert done.returncode == 0, "run `make sdk`"


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_") or name == "__init__"}


def plain(text: str) -> str:
    """Returns the text without the words of the asynchronous form."""
    text = re.sub(r"\b(await|async) ", "", text.replace("Tasks of one event loop", "Threads"))
    return re.sub(r"\bAsync(?=[A-Z])", "", text)


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods_signatures_and_docstrings(asynchronous: type, synchronous: type) -> None:
    theirs, ours = public(synchronous), public(asynchronous)
    assert list(ours) == list(theirs)
    assert ours
    assert plain(asynchronous.__doc__ or "") == synchronous.__doc__
    for name, ours_member in ours.items():
        theirs_member = theirs[name]
        assert plain(inspect.getdoc(ours_member) or "") == (inspect.getdoc(theirs_member) or ""), name
        if not inspect.isfunction(ours_member):
            assert type(ours_member) is type(theirs_member), name
            continue
        our_signature, their_signature = inspect.signature(ours_member), inspect.signature(theirs_member)
        assert list(our_signature.parameters) == list(their_signature.parameters), name
        for parameter, same in zip(our_signature.parameters.values(), their_signature.parameters.values(), strict=True):
            assert parameter.kind is same.kind, (name, parameter)
            if parameter.name not in {"sleep", "on_wait", "on_cut", "on_bytes"}:
                assert parameter.default == same.default, (name, parameter)
        our_return = re.sub(r"Awaitable\[(.*)\]", r"\1", plain(str(our_signature.return_annotation)))
        assert our_return == str(their_signature.return_annotation).replace(
            "AbstractContextManager", "ContextManager"
        ), name
        assert (
            inspect.iscoroutinefunction(ours_member)
            or inspect.isasyncgenfunction(ours_member)
            or not _waits(ours_member)
        ), name


def _waits(function: Any) -> bool:
    return "await" in inspect.getsource(function)


def test_asynchronous_modules_are_loaded_on_first_use_only() -> None:
    code = "import sys, weft; weft.Client; print([name for name in sys.modules if name.startswith('weft._aio')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_submission_is_repeated_under_one_key_and_with_one_body(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n" * 100)

    def answer(request: Request, n: int) -> Answer:
        if "dry_run" in request.path:
            return json_answer({"code": {"stored": False}})
        return Answer(200, b"x" * 50, cut_after=10) if n < 3 else json_answer(JOB, 201)

    with scripted(answer) as server:
        async with weft.AsyncClient(server.url, "weft_k_s") as client:
            job = await client.jobs.submit({"name": "x", "command": "c"}, code=tmp_path)
    assert job.id == "j1"
    posts = [request for request in server.requests if "dry_run" not in request.path]
    assert len(posts) == 3
    assert len({request.headers["idempotency-key"] for request in posts}) == 1
    assert len({request.body.count(b"PK\x03\x04") for request in posts}) == 1


async def test_other_tasks_run_while_a_submit_zips_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    begun, other_ran = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(code: Path) -> Archive:
        loop.call_soon_threadsafe(begun.set)
        assert other_ran.wait(HANG_S), "the event loop was blocked"
        return make_archive(code)

    async def other() -> None:
        await begun.wait()
        other_ran.set()

    monkeypatch.setattr("weft._archive.make_archive", slow)
    with scripted(lambda _request, _n: json_answer(JOB, 201)) as server:
        async with weft.AsyncClient(server.url, "weft_k_s") as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(other())
            submit = tasks.create_task(client.jobs.submit({"name": "x", "command": "c"}, code=tmp_path))
    assert submit.result().id == "j1"


def test_an_archive_that_is_ready_after_its_submit_was_cancelled_is_removed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with UploadArchive() as upload:
        used = upload.make(tmp_path)
        assert used.path.exists()
    late = upload.make(tmp_path)
    assert [archive.path.exists() for archive in (used, late)] == [False, False]


async def test_cut_stream_resumes_after_the_last_id(tmp_path: Path) -> None:
    line = {"time": JOB["created"], "attempt": 1, "role": "worker", "rank": 0, "run": 1, "stream": "stdout"}

    def answer(request: Request, n: int) -> Answer:
        if n == 0:
            return json_answer(JOB)
        if n == 1:
            return event_answer(*(("line", str(seq), {**line, "seq": seq, "text": f"{seq}"}) for seq in (1, 2)))
        assert request.headers["last-event-id"] == "2"
        return event_answer(("line", "3", {**line, "seq": 3, "text": "3"}), end=True)

    with scripted(answer) as server:
        async with weft.AsyncClient(server.url, "weft_k_s") as client:
            job = await client.jobs.get("j1")
            texts = [line.text async for line in job.logs(follow=True)]
    assert texts == ["1", "2", "3"]


async def test_cut_download_resumes_where_it_stopped(tmp_path: Path) -> None:
    body = bytes(range(256)) * 40
    listed = {"path": "attempts/1/results/worker-0/m.bin", "size": len(body), "etag": "e", "modified": JOB["created"]}

    def answer(request: Request, _n: int) -> Answer:
        if request.path.partition("?")[0].endswith("/artifacts"):
            return json_answer({"artifacts": [listed], "next": None})
        if "range" not in request.headers:
            return Answer(200, body, cut_after=1000)
        start = int(request.headers["range"].removeprefix("bytes=").rstrip("-"))
        assert request.headers["if-range"] == '"e"'
        return Answer(206, body[start:])

    with scripted(answer) as server:
        async with weft.AsyncClient(server.url, "weft_k_s") as client:
            [path] = await client.jobs.download("j1", tmp_path)
    assert path.read_bytes() == body
    assert path == tmp_path / "worker-0" / "m.bin"


@pytest.mark.slow
async def test_async_client_raises_the_same_errors(tmp_path: Path) -> None:
    problem = {"code": "not-found", "detail": "there is no job j1", "errors": []}
    with scripted(lambda _request, _n: json_answer(problem, 404)) as server:
        async with weft.AsyncClient(server.url, "weft_k_s") as client:
            with pytest.raises(weft.NotFound, match="there is no job j1"):
                await client.jobs.get("j1")
    async with weft.AsyncClient(server.url, "weft_k_s") as client:
        with pytest.raises(weft.ConnectionFailed, match="nothing answers at http:"):
            await client.whoami()

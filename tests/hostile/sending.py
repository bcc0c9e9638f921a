"""Sends the attacker's raw requests, and checks that the answers are permitted ones."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from tests.hostile.arena import BOUNDS, Arena, end
from tests.hostile.trick import judge
from weft._job import Job

ANSWER_S: Final = 60.0
ANY_END: Final = frozenset({"COMPLETED", "FAILED"})


def request(
    arena: Arena, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """A request as it stands: no client puts the path in order first. Returns (status, body); (0, b"") if it is cut."""
    parts = urlsplit(arena.weft.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    with closing(connection):
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            given = {
                "Authorization": f"Bearer {arena.attacker_key}",
                "Content-Length": str(len(body)),
                **(headers or {}),
            }
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read(1_000_000)
        except (OSError, http.client.HTTPException):
            return 0, b""


def submit(arena: Arena, document: object) -> tuple[int, dict[str, Any]]:
    body = json.dumps(document).encode("utf-8", "surrogatepass")
    return submit_text(arena, body, "application/json")


def submit_text(arena: Arena, body: bytes, kind: str) -> tuple[int, dict[str, Any]]:
    status, answer = request(arena, "POST", "/v1/jobs", body, {"Content-Type": kind})
    try:
        return status, dict(json.loads(answer))
    except ValueError:
        return status, {}


def refused_or_ended(arena: Arena, documents: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Submits each; what is accepted is killed and must end."""
    for name, document in documents:
        status, answer = submit(arena, document)
        if status == 201:
            yield from ended(arena, arena.attacker.jobs.get(str(answer["id"])))
        elif not is_refusal(status):
            yield f"{name}: {status} {str(answer)[:200]}"


def ended(arena: Arena, job: Job) -> Iterator[str]:
    arena.jobs.add(job.id)
    end(job)
    yield from judge(arena, job, ends={"KILLED", "COMPLETED", "FAILED"}, reads=False)


def spec_with(**fields: object) -> dict[str, object]:
    return {"name": "hostile", "command": "echo hello", **BOUNDS, **fields}


def is_refusal(status: int) -> bool:
    """True for an answer that says that the request is wrong."""
    return 400 <= status < 500

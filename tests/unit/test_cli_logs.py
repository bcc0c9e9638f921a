"""`weft logs`: learners that the job does not have."""

from __future__ import annotations

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, signed_in
from weft._cli.main import run

JOB = f"j{'a' * 22}"
ROLES = {"ps": {"count": 1}, "worker": {"count": 2}}


def answer(request: Request, _number: int) -> Answer:
    if "/logs" in request.path:
        return json_answer({"lines": [], "next": 0, "more": False})
    return json_answer({"id": JOB, "name": "digits", "status": "COMPLETED", "learners": 3, "spec": {"roles": ROLES}})


@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["stored", "followed"])
def test_a_role_that_the_job_does_not_have_is_an_error_that_names_its_roles(
    capsys: pytest.CaptureFixture[str], follow: list[str]
) -> None:
    """It looked like a job that prints nothing; followed, it was silent to the job's end."""
    with signed_in(answer) as server:
        assert run(["logs", JOB, "--role", "wroker", *follow]) == 2
        assert run(["logs", JOB, "--role", "worker"]) == 0
    assert "there is no role 'wroker': this job has ps, worker" in capsys.readouterr().err
    assert [request.path for request in server.requests if "wroker" in request.path] == []

"""Building and parsing of the status store's keys."""

from __future__ import annotations

import pytest

from services.core.domain import status_keys
from services.core.domain.status_keys import JobKey, parse_job_key


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        (status_keys.attempt_key("j1"), JobKey("j1", "attempt", "")),
        (status_keys.guardian_key("j1"), JobKey("j1", "guardian", "")),
        (status_keys.plan_key("j1", 3), JobKey("j1", "plan", "03")),
        (status_keys.learner_key("j1", "worker-0"), JobKey("j1", "learners", "worker-0")),
        ("/jobs/j1", JobKey("j1", "", "")),
        ("/jobs/j1/new/thing/x", JobKey("j1", "new", "thing/x")),
    ],
)
def test_a_job_s_key_is_parsed_into_its_parts(key: str, parsed: JobKey) -> None:
    assert parse_job_key(key) == parsed
    assert (parsed.is_attempt, parsed.is_learner) == (parsed.kind == "attempt", parsed.kind == "learners")
    assert key.startswith(status_keys.job_prefix("j1").rstrip("/"))


def test_members_of_a_service_share_its_prefix() -> None:
    assert status_keys.member_key("lcm", "m1").startswith(status_keys.member_key("lcm", ""))

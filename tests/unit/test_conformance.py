"""`weft conformance`: what it concludes, without an installation. tests/helm runs it on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.settings import Settings
from services.local.commands import Platform
from services.local.conformance import CHECKS, Check, Subject, examine
from tests.testbed.server import free_port

CLOSED = f"http://127.0.0.1:{free_port()}"


def _subject(**settings: str) -> Subject:
    return Subject(Settings.model_validate(settings), CLOSED, "weft_k_s", within_s=1)


@pytest.mark.slow
def test_a_check_that_cannot_be_made_fails_with_advice_and_the_others_go_on() -> None:
    skip = [name for name in CHECKS if name not in {"versions", "rights", "policies", "gang"}]
    checks = examine(_subject(cluster="local"), skip=skip, report=lambda name: None)
    made = [check for check in checks if check.detail != "left out"]
    assert [(check.check, check.verdict) for check in made] == [
        ("versions", "fail"),
        ("rights", "not applicable"),
        ("policies", "not applicable"),
        ("gang", "not applicable"),
    ]
    assert made[0].fix
    assert Check("gpu", "not applicable", "left out") in checks


def test_an_unknown_check_is_refused_with_the_known_ones() -> None:
    with pytest.raises(WeftError, match="there is no check gpus; there are: versions, "):
        examine(_subject(), skip=["gpus"], report=lambda name: None)


def test_outside_of_an_installation_it_says_where_to_run_it(tmp_path: Path) -> None:
    """On the machine of an operator of docker-compose.yml it advised `weft up`."""
    with pytest.raises(Unavailable, match="docker compose exec lcm weft conformance"):
        Platform().conformance(str(tmp_path))

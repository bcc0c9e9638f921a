"""`weft user remove`: every key of the user is revoked, also if the user's own is used for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, signed_in
from weft._cli.main import run


class Platform:
    """Answers as long as the key ``used`` works."""

    def __init__(self, ids: list[str], used: str) -> None:
        self.works = dict.fromkeys(ids, True)
        self._used = used

    def answer(self, request: Request, _number: int) -> Answer:
        if not self.works[self._used]:
            return json_answer({"code": "unauthenticated", "detail": "unknown key"}, 401)
        if request.method == "DELETE":
            self.works[request.path.rpartition("/")[2]] = False
            return Answer(204)
        if request.path == "/v1/whoami":
            return json_answer({"user": "ada", "tenant": "t", "scope": "user", "key_id": self._used})
        keys: list[dict[str, Any]] = [
            {"id": id_, "name": id_, "user": "ada", "tenant": "t", "revoked": None if works else "2026-11-01T00:00:00Z"}
            for id_, works in self.works.items()
        ]
        return json_answer({"keys": keys})


@pytest.mark.parametrize("tenant", [[], ["--tenant", "t"]], ids=["own", "given"])
def test_the_key_in_use_is_revoked_after_the_others(capsys: pytest.CaptureFixture[str], tenant: list[str]) -> None:
    """It came first, and the others worked on: the platform refused to revoke them."""
    platform = Platform(["k1", "k2", "k3"], used="k1")
    with signed_in(platform.answer):
        assert run(["user", "remove", "ada", "--yes", *tenant]) == 0
    assert not any(platform.works.values())
    assert "removed ada: 3 keys revoked" in capsys.readouterr().out

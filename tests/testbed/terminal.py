"""Commands as a user types them, against an api in this process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.testbed.api import Api
from weft._cli.main import run


@dataclass
class Output:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """Runs `weft` in a thread: the api answers meanwhile in the loop of the test."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        monkeypatch.setenv("WEFT_URL", api.url)
        monkeypatch.setenv("WEFT_KEY", api.admin_key)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(api.settings.home / "config"))
        monkeypatch.setenv("COLUMNS", "80")

    async def __call__(self, *words: object) -> Output:
        code = await asyncio.to_thread(run, [str(word) for word in words])
        output = self._capsys.readouterr()
        return Output(code, output.out, output.err)

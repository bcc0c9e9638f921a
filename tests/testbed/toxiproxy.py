"""Toxiproxy: a process between a platform and its servers, whose network fails on demand.

    line = toxiproxy.to(mongo.address)      # a port that leads there
    line.cut()                              # connections break, new ones are refused
    line.delay(0.5)                         # each answer is delayed by so many seconds
    line.silence()                          # nothing is answered, and no connection breaks
    line.lose_answers()                     # requests arrive; at the answer the connection breaks
    line.limit_answers(1000)                # ... after so many bytes of answers, per connection
    line.mend()                             # ends all faults of the line

Unlike proxy.py it needs no event loop of the test's: real services are led through it.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.testbed.go import SERVERS, GoBuilt
from tests.testbed.server import Server, free_port, running
from tests.waiting import HANG_S

_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Line:
    """One port that leads to one server."""

    def __init__(self, toxiproxy: Toxiproxy, name: str, listen: str) -> None:
        self.address = listen
        self._toxiproxy, self._path = toxiproxy, f"/proxies/{name}"

    def cut(self) -> None:
        self._toxiproxy.ask("POST", self._path, {"enabled": False})

    def delay(self, seconds: float, *, jitter: float = 0) -> None:
        """Delays answers, not requests."""
        self._add("latency", latency=round(seconds * 1000), jitter=round(jitter * 1000))

    def silence(self) -> None:
        self._add("timeout", timeout=0)

    def lose_answers(self) -> None:
        self.limit_answers(0)

    def limit_answers(self, count: int) -> None:
        self._add("limit_data", bytes=count)

    def _add(self, kind: str, **attributes: int) -> None:
        self._toxiproxy.ask(
            "POST", f"{self._path}/toxics", {"type": kind, "stream": "downstream", "attributes": attributes}
        )

    def mend(self) -> None:
        """Ends all faults. Old connections stay open without the bytes held back; call ``cut`` first to close them."""
        for toxic in self._toxiproxy.ask("GET", self._path)["toxics"]:
            self._toxiproxy.ask("DELETE", f"{self._path}/toxics/{toxic['name']}")
        self._toxiproxy.ask("POST", self._path, {"enabled": True})


class Toxiproxy(Server):
    """``kill`` breaks and removes all its lines."""

    def __init__(self, program: Path, folder: Path) -> None:
        super().__init__(folder / "toxiproxy.log")
        self._program, self._made = program, 0

    def start(self) -> None:
        self._process = self._spawn([self._program, "-host", "127.0.0.1", "-port", str(self.port)])

    def serves(self) -> bool:
        self.ask("GET", "/version")
        return True

    def to(self, upstream: str) -> Line:
        """Returns a line from a new port to ``host:port``.

        While the line is cut, nothing listens at its port: no outgoing connection may take it meanwhile.
        """
        self._made += 1
        name = f"line-{self._made}"
        made = self.ask("POST", "/proxies", {"name": name, "listen": f"127.0.0.1:{free_port()}", "upstream": upstream})
        return Line(self, name, made["listen"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Calls its HTTP API. Raises HTTPError with its message if it refuses."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        with _direct.open(request, timeout=HANG_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@pytest.fixture(scope="session")
def toxiproxy(go_built: GoBuilt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    """One server for all tests; each test makes its own lines."""
    program = go_built("toxiproxy", SERVERS / "toxiproxy")
    with running(Toxiproxy(program, tmp_path_factory.mktemp("toxiproxy"))) as server:
        yield server

"""MongoDB's wire protocol on loopback: one server for the session (a database for each test), or one to be killed.

The server is a stand-in (mongo-server/Main.java), built once by Maven and the JDK. What it cannot show is in
docs/limits.md. With ``WEFT_TEST_MONGO_URI`` the tests use a real MongoDB instead, but for those that kill it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.testbed.built import built, need_debian, run
from tests.testbed.server import free_port
from tests.waiting import HANG_S

_PINS = Path(__file__).with_name("mongo-server")
_RESOLVE = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")


class Mongo:
    """Keeps its port and its file over restarts. Acknowledged writes survive ``kill``."""

    def __init__(self, program: Path, folder: Path, *, fault: str = "") -> None:
        """``fault``: one of the faults in Main.java; empty: none."""
        self.port = free_port()
        self._fault = fault
        self._classpath = f"{program / 'classes'}:{program / 'jars' / '*'}"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        return f"mongodb://{self.address}/"

    def start(self) -> None:
        """Starts on its existing file; returns once it serves."""
        with (self._folder / "mongo.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_JAVA, "-cp", self._classpath, "Main", str(self._folder / "mongo.db"), str(self.port), self._fault],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        ready_line = self._process.stdout.readline()
        assert ready_line.startswith("ready "), (self._folder / "mongo.log").read_text()
        self.port = int(ready_line.split()[1])

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def mongo_build(say: Callable[[str], None]) -> Path:
    """Returns the folder of the stand-in; builds it if needed."""

    def build(folder: Path) -> None:
        say("building the MongoDB stand-in (once, about 15 s)")
        need_debian(("mvn", "javac", "java"), ("maven", "default-jdk-headless"), say)
        jars = folder / "jars"
        run("mvn", "-q", "-B", "-f", _PINS / "pom.xml", _RESOLVE, f"-DoutputDirectory={jars}")
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.iterdir()}
        lines = (_PINS / "jars.sha256").read_text().splitlines()
        pinned = {name: digest for digest, name in (line.split() for line in lines)}
        if digests != pinned:
            raise RuntimeError(f"these differ from jars.sha256: {sorted(dict(digests.items() ^ pinned.items()))}")
        run("javac", "-d", folder / "classes", "-cp", f"{jars}/*", _PINS / "Main.java")

    return built("mongo", sorted(_PINS.iterdir()), build)


@pytest.fixture(scope="session")
def mongo_program(announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]) -> Path:
    """The folder of the stand-in."""
    with untimed():
        return mongo_build(announce)


@pytest.fixture(scope="session")
def mongo_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of the server for all tests; ``mongo_uri`` gives each test its own database."""
    given = os.environ.get("WEFT_TEST_MONGO_URI")
    if given:
        yield given
        return
    server = Mongo(request.getfixturevalue("mongo_program"), tmp_path_factory.mktemp("mongo"))
    server.start()
    try:
        yield server.uri
    finally:
        server.kill()


@pytest.fixture
def mongo_uri(mongo_server: str) -> Iterator[str]:
    """URI of an empty database for one test."""
    from pymongo import MongoClient  # noqa: PLC0415 - a third of a second that most tests need not pay

    name = f"weft_test_{uuid.uuid4().hex[:12]}"
    yield at_database(mongo_server, name)
    with MongoClient[dict[str, object]](mongo_server) as client:
        client.drop_database(name)


@pytest.fixture
def long_mongo_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of this process wait for a server that works as long as a busy machine needs."""
    for module in ("connection", "documents"):
        monkeypatch.setattr(f"services.core.adapters.mongo.{module}.TIMEOUT_S", HANG_S)


@contextmanager
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Within it; the server of a busy machine may be slow before and afterwards."""
    with monkeypatch.context() as shortened:
        for module in ("connection", "documents"):
            shortened.setattr(f"services.core.adapters.mongo.{module}.TIMEOUT_S", 0.7)
        yield


@pytest.fixture
def own_mongo(mongo_program: Path, tmp_path: Path) -> Iterator[Mongo]:
    """A running server that the test may kill."""
    server = Mongo(mongo_program, tmp_path)
    server.start()
    yield server
    server.kill()


def at_database(uri: str, name: str) -> str:
    """Returns the URI with another database. The authentication database stays that of the URI."""
    parts = urlsplit(uri)
    query = parts.query
    if "@" in parts.netloc and "authSource=" not in query:
        query = "&".join(filter(None, [query, f"authSource={parts.path.strip('/') or 'admin'}"]))
    return parts._replace(path=f"/{name}", query=query).geturl()

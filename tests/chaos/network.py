"""The servers of a run, and the network lines to them that can be cut or made silent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from services.core.runtime.address import TLS, UNIX
from tests.testbed.go import SERVERS, go_build
from tests.testbed.mongo import Mongo, at_database, mongo_build
from tests.testbed.rabbitmq import RabbitMQ, serving
from tests.testbed.s3 import S3
from tests.testbed.server import running
from tests.testbed.toxiproxy import Line, Toxiproxy

_NAME: Final = "weft-chaos"


class Network:
    """Lines through a proxy. ``lines``: victim of a fault -> the lines that the fault breaks."""

    def __init__(self, proxy: Toxiproxy) -> None:
        self.lines: dict[str, list[Line]] = {}
        self._proxy = proxy

    def through(self, victim: str, address: str) -> str:
        """Makes a line to the address and returns the line's address.

        ``tls:host:port`` stays of that form; a socket has no line and is returned as it is.
        """
        if address.startswith(UNIX):
            return address
        line = self._proxy.to(address.removeprefix(TLS))
        self.lines.setdefault(victim, []).append(line)
        return f"{TLS if address.startswith(TLS) else ''}{line.address}"


class Servers:
    """The servers of a run: MongoDB's protocol, S3 and RabbitMQ."""

    def __init__(self, mongo: Mongo, s3: S3, rabbitmq: RabbitMQ) -> None:
        self.job_store = at_database(mongo.uri, _NAME)
        self._mongo, self._s3, self._rabbitmq = mongo, s3, rabbitmq

    def settings(self, reach: Callable[[str, str], str]) -> Mapping[str, str]:
        """Returns the settings of a machine. ``reach`` maps (victim, address) to the address to use."""
        s3 = self._s3
        return {
            **s3.settings(_NAME),
            "WEFT_S3_ENDPOINT": f"http://{reach('objects', f'127.0.0.1:{s3.port}')}",
            "WEFT_JOB_STORE": self.job_store.replace(self._mongo.address, reach("jobs", self._mongo.address)),
            "WEFT_BROKER_URL": self._rabbitmq.url_at(reach("broker", self._rabbitmq.address)),
        }


@contextmanager
def network(root: Path, say: Callable[[str], None]) -> Generator[Network]:
    """Runs a proxy; its log is in ``root``."""
    with running(Toxiproxy(go_build("toxiproxy", SERVERS / "toxiproxy", say), root)) as proxy:
        yield Network(proxy)


@contextmanager
def servers(root: Path, say: Callable[[str], None]) -> Generator[Servers]:
    """Runs the servers and ends them afterwards."""
    with ExitStack() as stack:
        mongo = Mongo(mongo_build(say), _folder(root / "mongo"))
        stack.callback(mongo.kill)
        mongo.start()
        s3 = stack.enter_context(running(S3(go_build("versitygw", SERVERS / "versitygw", say), root / "s3")))
        yield Servers(mongo, s3, stack.enter_context(serving(root / "rabbitmq", say)))


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path

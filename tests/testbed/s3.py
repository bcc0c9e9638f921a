"""A real S3 server on loopback: versitygw on a folder, with its own credentials, that can be killed and paused."""

from __future__ import annotations

import itertools
import os
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.adapters.s3.bucket import Bucket, Credentials, bucket
from tests.testbed.go import SERVERS, GoBuilt
from tests.testbed.server import Server, running
from tests.waiting import in_thread

REGION = "eu-north-1"
BUCKET = "weft"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_names = itertools.count(1)


class S3(Server):
    """Keeps its port, its credentials and its folder over restarts."""

    def __init__(self, binary: Path, folder: Path, *, volume_mib: int = 0) -> None:
        """``volume_mib``: size of a separate volume for its data, which is removed with the process; 0: none."""
        super().__init__(folder / "s3.log")
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.credentials = Credentials(secrets.token_hex(8), secrets.token_hex(20))
        self.data, self._binary = folder / "data", binary
        self.data.mkdir(parents=True, exist_ok=True)
        self._volume_mib = volume_mib

    def start(self) -> None:
        """Starts on its existing data; returns once it serves."""
        environment = {
            "PATH": os.environ["PATH"],
            "ROOT_ACCESS_KEY": self.credentials.access_key,
            "ROOT_SECRET_KEY": self.credentials.secret_key,
        }
        command: list[str | Path] = [
            self._binary,
            "--port",
            f"127.0.0.1:{self.port}",
            "--region",
            REGION,
            "--health",
            "/health",
            "--keep-alive",
            "--quiet",
            "posix",
            self.data,
        ]
        if self._volume_mib:
            mount = f'mount -t tmpfs -o size={self._volume_mib}m tmpfs "{self.data}" && mkdir "{self.data}/{BUCKET}"'
            alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
            command = [*alone, "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
        self._process = self._spawn(command, env=environment)
        in_thread(self.ready)

    def serves(self) -> bool:
        with _direct.open(f"{self.endpoint}/health", timeout=10):
            return True

    def bucket(self, name: str = BUCKET, prefix: str = "") -> Bucket:
        """Returns a bucket, made if it does not exist: the server takes every folder for a bucket."""
        (self.data / name).mkdir(exist_ok=True)
        return bucket(f"s3://{name}/{prefix}", endpoint=self.endpoint, region=REGION, credentials=self.credentials)

    def settings(self, name: str) -> dict[str, str]:
        """Makes the bucket. Returns the platform's settings for it."""
        self.bucket(name)
        return {
            "WEFT_OBJECT_STORE": f"s3://{name}",
            "WEFT_S3_ENDPOINT": self.endpoint,
            "WEFT_S3_REGION": REGION,
            "WEFT_S3_ACCESS_KEY": self.credentials.access_key,
            "WEFT_S3_SECRET_KEY": self.credentials.secret_key,
        }


@pytest.fixture(scope="session")
def s3_binary(go_built: GoBuilt) -> Path:
    return go_built("versitygw", SERVERS / "versitygw")


@pytest.fixture(scope="session")
def s3(s3_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One server for all tests; ``s3_bucket`` gives each test its own bucket."""
    with running(S3(s3_binary, tmp_path_factory.mktemp("s3"))) as server:
        yield server


@pytest.fixture
def s3_bucket(s3: S3) -> Bucket:
    """An empty bucket for one test."""
    return s3.bucket(f"test-{next(_names)}")


@pytest.fixture
def own_s3(s3_binary: Path, tmp_path: Path) -> Iterator[S3]:
    """A running server that the test may kill."""
    with running(S3(s3_binary, tmp_path / "s3")) as server:
        yield server

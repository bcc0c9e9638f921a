"""The kinds of platform that every trick is tried on: isolation, user of the platform, and store of its jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hostile.clusters.kind import Learners
from tests.hostile.clusters.one_machine import OneMachine, sweep
from tests.hostile.clusters.pods import running_pods
from tests.testbed.platform import Platform, platform

ROOT: Final = Path(__file__).parents[2]
Say = Callable[[str], None]
_USER_FIRST: Final = 63_000
_USERS: Final = 900
_UIDS_FIRST: Final = 1_000_000
_UIDS: Final = 100


@dataclass(frozen=True, slots=True)
class Combination:
    isolation: str
    """process | sandbox | pod."""
    user: str
    """root, or user: an ordinary user without rights."""
    store: str
    """sqlite | mongo."""

    def __str__(self) -> str:
        return f"{self.isolation}-{self.user}-{self.store}"


_PLATFORMS: Final = (("sandbox", "root"), ("process", "root"), ("sandbox", "user"))
ALL: Final = (
    *(Combination(*kind, store) for store in ("sqlite", "mongo") for kind in _PLATFORMS),
    Combination("pod", "root", "sqlite"),
)
QUICK: Final = ALL[0]
"""What `make test` tries."""


def possible() -> tuple[Combination, ...]:
    """The combinations that the user of this process can start: only root can start all."""
    return ALL if os.geteuid() == 0 else tuple(entry for entry in ALL if entry.user == "user")


class _UsersPlatform(Platform):
    """A platform that an ordinary user has started, from this process of root."""

    def __init__(self, root: Path, environment: Mapping[str, str], user: int) -> None:
        super().__init__(root, environment)
        self._user = user
        self._base = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def up(self) -> None:
        answer = json.loads(self._run("up"))
        self.url, self.key = answer["url"], answer["key"]

    def down(self) -> None:
        self._run("down", ", now=True")

    def _run(self, verb: str, options: str = "") -> str:
        code = (
            "import json; from services.local.commands import PLATFORM as platform;"
            f" print(json.dumps(platform.{verb}({str(self.home.root)!r}, report=lambda _: None{options})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**self._base, **self._environment},
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            user=self._user,
            group=self._user,
            extra_groups=[],
        )
        assert done.returncode == 0, f"can the user {self._user} read {ROOT}? {done.stderr}"
        return done.stdout


@contextmanager
def running(combination: Combination, settings: Mapping[str, str], say: Say) -> Generator[tuple[Platform, Learners]]:
    """The platform of the combination and the cluster of its learners; nothing of both is left afterwards."""
    if combination.isolation == "pod":
        with running_pods(settings, say) as started:
            yield started
        return
    user, uids = _own_uids(combination)
    own = {
        "WEFT_NODE_ISOLATION": combination.isolation,
        "WEFT_NODE_CPUS": "16",
        "WEFT_NODE_MEMORY": "8GiB",
        "WEFT_NODE_UID_FIRST": str(uids.start if user == 0 else 70_000),
        "WEFT_NODE_UID_COUNT": "100",
        **settings,
    }
    try:
        with _started(user, own) as weft:
            yield weft, OneMachine(weft, uids)
    finally:
        if user != os.geteuid() or user == 0:  # not where learners have the user id of this process
            sweep(uids)


@contextmanager
def _started(user: int, settings: Mapping[str, str]) -> Generator[Platform]:
    if user == os.geteuid():
        with platform(settings) as weft:
            yield weft
        return
    place = Path(tempfile.mkdtemp(prefix="weft-test-"))
    weft = _UsersPlatform(place / "home", settings, user)
    os.chown(place, user, user)
    try:
        weft.up()
        yield weft
    finally:
        weft.down()
        subprocess.run(["rm", "-rf", str(place)], check=True)


def _own_uids(combination: Combination) -> tuple[int, range]:
    """The platform's user, and the users of learners: no other run on this machine has the same at the same time."""
    number = os.getpid()
    if combination.user == "user":
        user = _USER_FIRST + number % _USERS if os.geteuid() == 0 else os.geteuid()
        return user, range(user, user + 1)
    first = _UIDS_FIRST + number % 4_000 * _UIDS
    return 0, range(first, first + _UIDS)


def store_settings(combination: Combination, mongo: Callable[[], str]) -> dict[str, str]:
    """``mongo``: returns the URI of an empty database."""
    return {"WEFT_JOB_STORE": mongo()} if combination.store == "mongo" else {}

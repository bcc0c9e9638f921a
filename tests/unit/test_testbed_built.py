"""What the test bed builds is built once, and is whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.testbed.built import built, cache, need_debian, no_service_starts
from tests.testbed.go import compiled_packages, remove_compiled
from tests.testbed.mongo import at_database
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pin = tmp_path / "pom.xml"
    pin.write_text("one")
    return pin


def test_who_comes_while_another_builds_waits_and_finds_it(pin: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "server").touch()

    with ThreadPoolExecutor(4) as threads:
        places = set(threads.map(lambda _: built("mongo", [pin], build), range(4)))
    (place,) = places
    assert (len(builds), (place / "server").exists()) == (1, True)
    pin.write_text("two")
    assert built("mongo", [pin], build) != place


def test_a_build_that_fails_leaves_nothing_and_may_be_tried_again(pin: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        built("mongo", [pin], fail)
    place = built("mongo", [pin], lambda folder: (folder / "whole").touch())
    assert [path.name for path in place.iterdir()] == ["whole"]
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == ["mongo"]


def test_what_a_killed_build_left_stayed_on_the_disk(pin: Path) -> None:
    place = built("mongo", [pin], lambda folder: (folder / "whole").touch())
    left = place.rename(place.parent / ".mongo-ab_12xyz")
    (place.parent / ".mongo-jars-ab_12xyz").mkdir()  # of another build, which may run
    assert built("mongo", [pin], lambda folder: (folder / "whole").touch()) == place
    assert not left.exists()
    assert (place.parent / ".mongo-jars-ab_12xyz").exists()


@pytest.mark.usefixtures("pin")
def test_compiled_packages_stay_while_a_program_is_built_and_go_afterwards() -> None:
    package = cache() / "go-build" / "package"
    package.parent.mkdir(parents=True)
    package.touch()
    with compiled_packages(), compiled_packages():
        remove_compiled()
        assert package.exists()
    remove_compiled()
    assert not package.exists()


def test_policy_of_a_killed_installation_was_taken_for_the_machines(tmp_path: Path) -> None:
    """And stayed for ever: no package that was installed later started its service."""
    policy = tmp_path / "policy-rc.d"
    with no_service_starts(policy):
        left = policy.read_text()
    policy.write_text(left)
    with no_service_starts(policy):
        assert policy.exists()
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 101\n")
    with no_service_starts(policy):
        pass
    assert policy.exists()
    assert repr(left.removeprefix("#!/bin/sh"))[1:-3] in (ROOT / "scripts" / "test-packages.sh").read_text()


INTERRUPTED = """
import os, sys, time
from pathlib import Path
from tests.testbed.built import run
from tests.testbed.prepare import ending, run_all

def children():
    return [pid for of in Path("/proc/self/task").glob("*/children") for pid in of.read_text().split()]

def interrupted():
    while b"sleep" not in [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\\0")[0] for pid in children()]:
        time.sleep(0.01)
    os.kill(os.getpid(), int(sys.argv[2]))
    ending.wait(60)

run_all({"one": lambda: run("sleep", "600"), "two": interrupted, "three": Path(sys.argv[1]).touch})
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_builds_ran_on_and_were_begun_one_after_the_other_after_ctrl_c(by: signal.Signals, tmp_path: Path) -> None:
    command = ["env", "--default-signal=INT", sys.executable, "-c", INTERRUPTED, str(tmp_path / "begun"), str(int(by))]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=HANG_S)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert not (tmp_path / "begun").exists()


def test_a_missing_program_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match=r"no no-such-program here; .* apt-get install maven"):
        need_debian(["sh", "no-such-program"], ["maven"], lambda _: None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mongodb://127.0.0.1:1/", "mongodb://127.0.0.1:1/x"),
        ("mongodb://a:1,b:2/?replicaSet=r", "mongodb://a:1,b:2/x?replicaSet=r"),
        ("mongodb://u:p@a/", "mongodb://u:p@a/x?authSource=admin"),
        ("mongodb://u:p@a/db?tls=true", "mongodb://u:p@a/x?tls=true&authSource=db"),
        ("mongodb://u:p@a/db?authSource=users", "mongodb://u:p@a/x?authSource=users"),
    ],
)
def test_a_test_s_own_database_is_on_the_given_server(given: str, expected: str) -> None:
    assert at_database(given, "x") == expected

"""The tree itself: its locks, its generated code, its scripts."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.core.gen.weft.etcd import rpc_pb2

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]


def pinned(lock: Path) -> dict[str, set[str]]:
    """The versions that a lock allows, by package (more than one where Pythons differ)."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_address_and_hashes_every_package(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_all_locks_agree_on_the_version_of_what_they_share() -> None:
    dev = pinned(ROOT / "requirements" / "dev.txt")
    for lock in LOCKS:
        for name, versions in pinned(lock).items():
            assert versions <= dev[name], f"{lock.name}: {name}"


def test_the_sdk_needs_few_and_small_packages() -> None:
    needed = set(pinned(ROOT / "requirements" / "sdk.txt"))
    assert not needed & {"fastapi", "grpcio", "pydantic", "pymongo", "celery", "kubernetes", "numpy"}


def test_the_generated_stubs_are_what_the_protos_and_etcd3_give() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/proto.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stubs_of_etcd_leave_its_file_names_to_other_packages() -> None:
    assert rpc_pb2.DESCRIPTOR.name == "weft/etcd/rpc.proto"
    assert [file.name for file in rpc_pb2.DESCRIPTOR.dependencies] == ["weft/etcd/kv.proto", "weft/etcd/auth.proto"]
    # What travels is etcd's own.
    assert "etcdserverpb.KV" in {service.full_name for service in rpc_pb2.DESCRIPTOR.services_by_name.values()}


def test_the_oldest_grpc_that_may_be_installed_runs_the_stubs() -> None:
    stubs = "\n".join(path.read_text() for path in (ROOT / "services/core/gen").rglob("*_pb2_grpc.py"))
    generated = set(re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'", stubs, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for version in generated:
        assert f"grpcio>={version}" in project["dependencies"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_executable_and_parses(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_make_says_what_it_can_do() -> None:
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "check", "bench", "fmt", "lock", "proto", "clean"):
        assert f"make {target} " in said
    assert max(map(len, said.splitlines())) <= 80

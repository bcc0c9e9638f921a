"""The repository: lock files, generated code, scripts, make targets."""

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
    """Returns package -> pinned versions (more than one where Python versions differ)."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE):
        versions.setdefault(name, set()).add(version)
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_has_no_url_and_a_hash_for_every_package(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_all_lock_files_pin_the_same_versions() -> None:
    dev = pinned(ROOT / "requirements" / "dev.txt")
    for lock in LOCKS:
        for name, versions in pinned(lock).items():
            assert versions <= dev[name], f"{lock.name}: {name}"


def test_the_sdk_depends_on_no_large_package() -> None:
    packages = set(pinned(ROOT / "requirements" / "sdk.txt"))
    assert not packages & {"fastapi", "grpcio", "pydantic", "pymongo", "celery", "kubernetes", "numpy"}


def test_the_committed_stubs_are_those_generated_from_the_protos_and_etcd3() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/proto.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stubs_of_etcd_leave_its_file_names_to_other_packages() -> None:
    assert rpc_pb2.DESCRIPTOR.name == "weft/etcd/rpc.proto"
    assert [file.name for file in rpc_pb2.DESCRIPTOR.dependencies] == ["weft/etcd/kv.proto", "weft/etcd/auth.proto"]
    # The names on the wire are etcd's own.
    assert "etcdserverpb.KV" in {service.full_name for service in rpc_pb2.DESCRIPTOR.services_by_name.values()}


def test_the_lowest_allowed_grpc_version_is_that_of_the_stubs() -> None:
    stubs = "\n".join(path.read_text() for path in (ROOT / "services/core/gen").rglob("*_pb2_grpc.py"))
    generated = set(re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'", stubs, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for version in generated:
        assert f"grpcio>={version}" in project["dependencies"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_executable_and_parses(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_make_lists_its_targets() -> None:
    output = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "check", "bench", "fmt", "lock", "proto", "clean"):
        assert f"make {target} " in output
    assert max(map(len, output.splitlines())) <= 80


def _files(*suffixes: str) -> list[Path]:
    """The committed files and those about to be, without generated code."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *(f"*{s}" for s in suffixes)]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [
        ROOT / name for name in names if name and not name.startswith("services/core/gen/") and (ROOT / name).exists()
    ]


@pytest.mark.parametrize("most", [600])
def test_a_module_fits_into_one_reading(most: int) -> None:
    long = {str(path): lines for path in _files(".py") if (lines := path.read_bytes().count(b"\n")) > most}
    assert long == {}


def test_code_has_the_formatters_own_form() -> None:
    exempt = re.compile(r"# fmt: (skip|off)$", re.MULTILINE)
    assert [str(path) for path in _files(".py") if exempt.search(path.read_text())] == []


@pytest.mark.parametrize("folder", ["tests/simulation/mutations", "tests/helm/versions"])
def test_every_planted_bug_and_other_version_applies_to_the_code(folder: str) -> None:
    patches = sorted((ROOT / folder).glob("*.patch"))
    assert patches
    subprocess.run(["git", "apply", "--check", *patches], cwd=ROOT, check=True)

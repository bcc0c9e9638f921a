"""Environments are built under a user without rights, and learners can read but not change them."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.domain.startup import Fetching, Step
from services.helper.fetch.environment import EnvironmentSpec, find_interpreter, prepare
from services.helper.fetch.progress import FetchProgress

BUILDER = 69_999


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A cache that other users can pass through, and an index of one package."""
    root = Path(tempfile.mkdtemp(prefix="weft-env-"))
    root.chmod(0o755)
    links = root / "wheels"
    links.mkdir()
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(links / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("HOME", "/root")
    yield root / "cache"
    shutil.rmtree(root)


def spec() -> EnvironmentSpec:
    return EnvironmentSpec(find_interpreter(), "", "tiny==1.0", "tiny")


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def expected_user() -> int:
    return BUILDER if os.geteuid() == 0 else os.geteuid()


def test_as_root_an_environment_is_built_under_a_user_without_rights(cache: Path) -> None:
    place = prepare(spec(), cache, FetchProgress())
    assert owners(place / "venv") == {expected_user()}
    assert (cache / "uv").stat().st_uid == expected_user()
    (module,) = place.glob("venv/lib/python*/site-packages/tiny.py")
    assert module.stat().st_mode & 0o777 == 0o644
    assert list(module.parent.glob("__pycache__/tiny.*.pyc"))


def test_a_package_cache_that_root_has_made_is_replaced(cache: Path) -> None:
    (cache / "uv").mkdir(parents=True)
    (cache / "uv/old").touch()
    prepare(spec(), cache, FetchProgress())
    assert owners(cache / "uv") == {expected_user()}
    assert (cache / "uv/old").exists() == (os.geteuid() != 0)


def test_where_the_user_cannot_reach_the_cache_the_platforms_user_builds(cache: Path) -> None:
    cache.mkdir()
    cache.parent.chmod(0o700)
    place = prepare(spec(), cache, FetchProgress())
    assert owners(place / "venv") == {os.geteuid()}


def test_using_an_environment_again_marks_it_as_used(cache: Path) -> None:
    place = prepare(spec(), cache, FetchProgress())
    os.utime(place / ".ok", (1, 1))
    assert prepare(spec(), cache, FetchProgress()) == place
    assert (place / ".ok").stat().st_mtime > 1


def test_the_bytes_of_an_environment_are_counted_while_it_is_built(cache: Path) -> None:
    recorded: list[Fetching] = []

    class Recorded(FetchProgress):
        def report_bytes(self, done: int, total: int | None) -> None:
            super().report_bytes(done, total)
            assert self.fetching is not None
            recorded.append(self.fetching)

    progress = Recorded()
    with progress.step(Step.ENVIRONMENT, "looking for it"):
        prepare(replace(spec(), size=10_000), cache, progress)
    written = [fetching.done or 0 for fetching in recorded]
    assert written == sorted(written)
    assert {fetching.total for fetching in recorded} == {10_000 if os.geteuid() == 0 else 20_000}
    assert progress.steps["environment"].ended is not None

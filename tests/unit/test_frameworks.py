"""The framework library: lookup by name and version, and its lock files."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from services.core import frameworks
from services.core.frameworks import find, library, names, parse
from services.core.frameworks.images import LibraryImages, image_name

ENTRY = 'name = "{name}"\nversion = "{version}"\npython = ">=3.11"\nsize_mb = 1\ndescription = "x"\n'


def entry(name: str, version: str, more: str = "") -> str:
    return "[[framework]]\n" + ENTRY.format(name=name, version=version) + more


def test_a_name_alone_finds_the_newest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = parse(entry("a", "0.9") + entry("a", "0.10.2") + entry("b", "1"))
    monkeypatch.setattr(frameworks, "library", lambda: entries)

    assert [framework.version for framework in entries] == ["0.10.2", "0.9", "1"]
    for version, newest in [(None, "0.10.2"), ("", "0.10.2"), ("0.9", "0.9"), ("0", "0.10.2")]:
        framework = find("a", version)
        assert framework is not None
        assert framework.version == newest


@pytest.mark.parametrize("version", ["0.10", "0.10.2", "0", None])
def test_a_version_is_matched_by_whole_components(version: str | None) -> None:
    framework = find("jax", version)

    assert framework is not None
    assert framework.version == "0.10.2"


@pytest.mark.parametrize("version", ["0.1", "0.10.", "0.10.2.1", "1", "latest", " 0.10"])
def test_an_unknown_version_is_not_found(version: str) -> None:
    assert find("jax", version) is None


def test_names_and_aliases_are_found_in_any_case() -> None:
    assert find("PyTorch") is find("torch") is not None
    assert find("jaxx") is None
    assert {"jax", "numpy", "python", "pytorch", "torch", "tensorflow", "tf", "sklearn-xgboost"} <= set(names())
    assert find("scikit-learn") is find("xgboost", "3") is find("sklearn") is not None
    assert list(names()) == sorted(names())


def test_the_python_entry_has_no_lock_file() -> None:
    python = find("python", "3.11")

    assert python is not None
    assert (python.lock, python.lock_text()) == (None, "")


def test_every_entry_s_version_is_the_one_its_lock_pins() -> None:
    for framework in library():
        pins = re.findall(rf"^{re.escape(framework.package or '')}==(\S+)", framework.lock_text(), re.MULTILINE)
        assert framework.lock is None or framework.version in pins, framework.name


def test_every_lock_file_has_hashes_and_no_url() -> None:
    for framework in library():
        text = framework.lock_text()
        assert "://" not in text
        assert "--index" not in text
        pins = re.findall(r"^\S+==.*$", text, re.MULTILINE)
        assert all(pin.endswith("\\") for pin in pins)  # continued by its hashes
        assert bool(pins) == (framework.lock is not None)


def test_every_lock_file_has_a_source_and_an_entry() -> None:
    files = {path.name for path in resources.files(frameworks).iterdir()}
    locks = {framework.lock for framework in library() if framework.lock}

    assert {name for name in files if name.endswith(".txt")} == locks
    assert {name for name in files if name.endswith(".in")} == {f"{lock[:-4]}.in" for lock in locks}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (entry("a", "1.x"), "'a': version '1.x'"),
        (entry("a", "1", "colour = 1\n"), "'a':.*colour"),
        ('[[framework]]\nname = "a"\n', "'a':.*version"),
        (entry("a", "1") + entry("a", "1"), "a 1 is in the library twice"),
        (entry("a", "1") + entry("b", "1", 'aliases = ["a"]\n'), "a 1 is in the library twice"),
    ],
)
def test_a_malformed_library_is_refused_and_the_error_names_the_entry(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text)


def test_a_changed_lock_gives_another_image() -> None:
    numpy = find("numpy")
    assert numpy is not None
    assert image_name(numpy) == f"weft/numpy:{numpy.version}-{numpy.lock_digest[7:15]}"
    assert len({image_name(framework) for framework in library()}) == len(library())


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (LibraryImages(), ""),
        (LibraryImages(registry=""), "weft/jax:"),
        (LibraryImages(registry="registry.example/team/"), "registry.example/team/weft/jax:"),
        (LibraryImages(named={"jax-0.10": "mine/jax:1"}), "mine/jax:1"),
        (LibraryImages(named={"jax-0.10.2": "mine/jax:2", "jax-0.10": "mine/jax:1"}), "mine/jax:2"),
        (LibraryImages(named={"jax-0.1": "mine/jax:0", "jax-1": "x", "numpy-0.10": "x", "jax-": "x"}), ""),
        (LibraryImages(registry="r", named={"jax-0": "mine/jax:1"}), "mine/jax:1"),
    ],
)
def test_an_entry_has_the_image_that_the_operator_names_or_else_the_registry_s(
    images: LibraryImages, expected: str
) -> None:
    jax = find("jax")
    assert jax is not None
    name = images.of(jax)
    assert name == images.of_id(f"jax-{jax.version}")
    assert name.startswith(expected)
    assert bool(name) == bool(expected)


@pytest.mark.parametrize("framework", ["jax", "jax-9", "-1", ""])
def test_a_framework_that_the_library_does_not_have_has_no_image(framework: str) -> None:
    assert LibraryImages(registry="r").of_id(framework) == ""

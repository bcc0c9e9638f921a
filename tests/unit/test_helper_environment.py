"""The environment that a job needs, before anything is built."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from services.core.domain.outages import Outage
from services.helper.fetch import environment
from services.helper.fetch.environment import (
    EnvironmentSpec,
    mirror_of_pip,
    required_environment,
    uv_names_index,
    with_system_authorities,
)
from services.helper.fetch.progress import FetchFailed


def environment_of(folder: Path, text: str | bytes, framework: str = "") -> EnvironmentSpec | None:
    """For code with this requirements.txt."""
    (folder / "requirements.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return required_environment(framework, folder)


def test_job_without_requirements_needs_no_environment(tmp_path: Path) -> None:
    assert required_environment("", tmp_path) is None
    assert environment_of(tmp_path, "# nothing\n\n") is None


def test_same_requirements_have_the_same_digest(tmp_path: Path) -> None:
    first = environment_of(tmp_path, "rich>=13\ntqdm\n", "numpy-2.4.6")
    same = environment_of(tmp_path, "\ufeffrich >= 13   # for colours\r\ntqdm", "numpy-2.4.6")
    assert first
    assert same
    assert first.digest == same.digest
    others = [
        environment_of(tmp_path, "rich>=14\ntqdm", "numpy-2.4.6"),
        environment_of(tmp_path, "rich>=13\ntqdm"),
        required_environment("numpy-2.4.6", tmp_path / "x"),
    ]
    assert len({first.digest, *(other.digest for other in others if other)}) == 4


def test_hashes_and_continued_lines_of_pip_are_read(tmp_path: Path) -> None:
    spec = environment_of(
        tmp_path, 'six==1.17.0 ; python_version >= "3" \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n'
    )
    assert spec
    assert spec.requirements.replace(" ", "") == 'six==1.17.0;python_version>="3"'


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "-r /etc/shadow",
        "--index-url http://169.254.169.254/",
        "--extra-index-url=http://x",
        "--find-links /",
        "./local",
        "/etc",
        "x.whl",
        "git+https://host/x",
        "pkg @ https://host/pkg.whl",
        "pkg @ file:///etc",
        "https://host/x.whl",
        "a b",
        "name==1 --config-settings x=y",
        "\x1b[2J",
        "é",
        "-",
        "rich>=",
        "%s",
        "a" * 256,
    ],
)
def test_requirement_that_is_no_name_and_version_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(FetchFailed) as refused:
        environment_of(tmp_path, f"rich\n{line}\n")
    assert refused.value.reason == "EnvironmentFailed"
    assert "line 2" in refused.value.message
    assert "\x1b" not in refused.value.message


def test_requirement_that_excludes_the_frameworks_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"numpy 2\.4\.6 fixes NumPy 2\.\d\.\d, and .* wants NumPy==1\.26\.4: remove"):
        environment_of(tmp_path, "rich\nNumPy==1.26.4\n", "numpy-2.4.6")
    for allowed in ("numpy>=2", "numpy", "numpy==1.26.4; python_version < '3'"):
        assert environment_of(tmp_path, allowed, "numpy-2.4.6")
    assert environment_of(tmp_path, "numpy==1.26.4")


def test_huge_requirements_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="larger than"):
        environment_of(tmp_path, b"a\n" * 300_000)


def test_unknown_framework_or_python_version_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchFailed, match="weft frameworks"):
        required_environment("numpy-1.0", tmp_path)
    monkeypatch.setattr(platform, "python_version", lambda: "3.16.0")
    with pytest.raises(FetchFailed, match="needs Python"):
        required_environment("tensorflow-2.21.0", tmp_path)


def test_constraints_are_the_pins_of_the_lock_without_hashes() -> None:
    hashes = "    --hash=sha256:00 \\\n    --hash=sha256:01\n    # via x\n"
    lock = f"# made by uv\nnumpy==2.4.6 ; python_full_version < '3.12' \\\n{hashes}six==1 \\\n{hashes}"
    assert environment._constraints(lock) == "numpy==2.4.6 ; python_full_version < '3.12'\nsix==1"


def test_authorities_of_the_system_count_for_packages(tmp_path: Path) -> None:
    bundle, empty = tmp_path / "company.crt", tmp_path / "empty.crt"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    empty.touch()
    assert with_system_authorities({"A": "1"}, [empty, bundle]) == {"A": "1", "UV_SYSTEM_CERTS": "true"}
    assert with_system_authorities({"UV_SYSTEM_CERTS": "false"}, [bundle]) == {"UV_SYSTEM_CERTS": "false"}
    assert with_system_authorities({}, [empty, tmp_path / "missing"]) == {}


def test_packages_come_from_no_other_index_when_the_settings_of_pip_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, packages were taken from the public index instead of the company's."""
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    pip = tmp_path / "python"

    def answers(*lines: str) -> str:
        pip.write_text("\n".join(("#!/bin/sh", *lines, "")))
        pip.chmod(0o755)
        return str(pip)

    assert mirror_of_pip(answers("echo global:", "echo '  /etc/pip.conf, exists: False'")) == ""
    assert mirror_of_pip(answers("echo 'python: No module named pip' >&2", "exit 1")) == ""
    for lines in (["echo 'Configuration file could not be loaded.' >&2", "exit 2"], ["kill -9 $$"]):
        with pytest.raises(FetchFailed, match="UV_DEFAULT_INDEX") as failed:
            mirror_of_pip(answers(*lines))
        assert failed.value.reason == Outage.MACHINE_FAULT
    hangs = answers("exec sleep 1000")
    for python, timeout_s in ((hangs, 0.1), (str(tmp_path / "missing"), 60)):
        with pytest.raises(FetchFailed, match="UV_DEFAULT_INDEX") as failed:
            mirror_of_pip(python, timeout_s)
        assert failed.value.reason == Outage.MACHINE_FAULT
    monkeypatch.setenv("PIP_INDEX_URL", "https://given.example/simple")
    assert mirror_of_pip(hangs, 0.1) == "https://given.example/simple"


def test_packages_come_from_the_index_that_pip_has_for_the_whole_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the user's own settings of pip counted: with /etc/pip.conf, packages came from the public index."""
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)

    def settings(name: str, index: str) -> Path:
        path = tmp_path / name / "pip/pip.conf"
        path.parent.mkdir(parents=True)
        path.write_text(f"[global]\ntimeout = 60\nindex-url = {index}\n")
        return path

    settings("machine", "https://machine.example/simple")
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "machine"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mirror_of_pip() == "https://machine.example/simple"
    settings("user", "https://user.example/simple")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    assert mirror_of_pip() == "https://user.example/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings("file", "https://file.example/simple")))
    assert mirror_of_pip() == "https://file.example/simple"


def test_index_of_uvs_own_settings_counts_before_that_of_pip(tmp_path: Path) -> None:
    settings = tmp_path / "uv" / "uv.toml"
    settings.parent.mkdir()
    for text, names in (
        ('native-tls = true\n[pip]\nonly-binary = [":all:"]', False),
        ('index-url = "https://a.example/simple"', True),
        ('[[index]]\nurl = "https://a.example/simple"', True),
        ('[pip]\nindex-url = "https://a.example/simple"', True),
        ("index-url = ", False),  # uv refuses these files
        ("pip = 1", False),
    ):
        settings.write_text(text)
        assert uv_names_index({"UV_CONFIG_FILE": str(settings)}) == names, text
        assert uv_names_index({"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nowhere"}) == names, text
    assert uv_names_index({"UV_DEFAULT_INDEX": "https://a.example/simple", "UV_CONFIG_FILE": "/nowhere"})
    assert not uv_names_index({"UV_CONFIG_FILE": "/nowhere"})

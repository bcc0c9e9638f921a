"""Which environment a job gets, before anything is built."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from services.helper import environment
from services.helper.environment import Wanted, wanted
from services.helper.fetch.watched import Cannot


def asked(folder: Path, text: str | bytes, framework: str = "") -> Wanted | None:
    (folder / "requirements.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return wanted(framework, folder)


def test_a_job_that_asks_for_nothing_gets_the_machines_own_tools(tmp_path: Path) -> None:
    assert wanted("", tmp_path) is None
    assert asked(tmp_path, "# nothing\n\n") is None


def test_the_same_wishes_have_the_same_digest_and_others_another(tmp_path: Path) -> None:
    first = asked(tmp_path, "rich>=13\ntqdm\n", "numpy-2.4.6")
    same = asked(tmp_path, "\ufeffrich >= 13   # for colours\r\ntqdm", "numpy-2.4.6")
    assert first
    assert same
    assert first.digest == same.digest
    others = [
        asked(tmp_path, "rich>=14\ntqdm", "numpy-2.4.6"),
        asked(tmp_path, "rich>=13\ntqdm"),
        wanted("numpy-2.4.6", tmp_path / "x"),
    ]
    assert len({first.digest, *(one.digest for one in others if one)}) == 4


def test_hashes_and_continued_lines_are_read_as_pip_writes_them(tmp_path: Path) -> None:
    found = asked(tmp_path, 'six==1.17.0 ; python_version >= "3" \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n')
    assert found
    assert found.requirements.replace(" ", "") == 'six==1.17.0;python_version>="3"'


@pytest.mark.parametrize(
    "line",
    [
        "-e .", "-r /etc/shadow", "--index-url http://169.254.169.254/", "--extra-index-url=http://x", "--find-links /",
        "./local", "/etc", "x.whl", "git+https://host/x", "pkg @ https://host/pkg.whl", "pkg @ file:///etc", "https://host/x.whl",
        "a b", "name==1 --config-settings x=y", "\x1b[2J", "é", "-", "rich>=", "%s",
    ],
)  # fmt: skip
def test_anything_but_names_and_versions_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(Cannot) as refused:
        asked(tmp_path, f"rich\n{line}\n")
    assert refused.value.reason == "EnvironmentFailed"
    assert "line 2" in refused.value.message
    assert "\x1b" not in refused.value.message


def test_a_huge_requirements_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Cannot, match="larger than"):
        asked(tmp_path, b"a\n" * 300_000)


def test_an_unknown_framework_and_a_wrong_python_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Cannot, match="weft frameworks"):
        wanted("numpy-1.0", tmp_path)
    monkeypatch.setattr(platform, "python_version", lambda: "3.16.0")
    with pytest.raises(Cannot, match="needs Python"):
        wanted("tensorflow-2.21.0", tmp_path)


def test_constraints_are_the_locks_pins_without_hashes() -> None:
    hashes = "    --hash=sha256:00 \\\n    --hash=sha256:01\n    # via x\n"
    lock = f"# made by uv\nnumpy==2.4.6 ; python_full_version < '3.12' \\\n{hashes}six==1 \\\n{hashes}"
    assert environment._constraints(lock) == "numpy==2.4.6 ; python_full_version < '3.12'\nsix==1"

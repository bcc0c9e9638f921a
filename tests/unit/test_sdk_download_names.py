"""Where a download puts files with strange names. Names are the learner's: one of them must not fail the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft._choosing import inside, part_file
from weft._errors import Internal


@pytest.mark.parametrize("name", ["caf\\xe9", "a\\b/c", "\U0001f9f5" * 60, "n" * 255, "d" * 1_000 + "/x", "é" * 900])
def test_a_result_with_a_strange_name_can_be_downloaded(tmp_path: Path, name: str) -> None:
    target = inside(tmp_path, f"worker-0/{name}")
    assert target.is_relative_to(tmp_path / "worker-0")
    target.parent.mkdir(parents=True)
    part = part_file(target, "0123456789ab")
    part.write_text("x")
    part.replace(target)
    assert target.read_text() == "x"


def test_long_names_that_differ_at_their_end_are_different_files(tmp_path: Path) -> None:
    assert inside(tmp_path, "n" * 300 + "a") != inside(tmp_path, "n" * 300 + "b")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Internal, match="leads outside"):
        inside(tmp_path, name)

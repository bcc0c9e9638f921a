"""Data of this machine that is copied for a learner, whose user cannot read it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.domain.outages import Outage
from services.core.domain.plan import Input
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.local_data import fetch_local
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.versions import DataVersions
from services.helper.settings import HelperSettings
from tests.documents import an_assignment


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's learners have users of their own")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_copy_that_would_fill_the_machines_disk_is_an_outage_and_copies_nothing(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    source.mkdir(mode=0o700)
    (source / "x").write_bytes(bytes(1000))
    (source / "x").chmod(0o600)
    disk = os.statvfs(tmp_path)
    assignment = an_assignment(uid=70_001, gid=70_001, data_keep_free=disk.f_blocks * disk.f_frsize)
    entry = Input(mount="d", type="local", location=str(source), path="x" if kind == "file" else "")
    settings, versions = HelperSettings(data_paths=(source,)), DataVersions(tmp_path / "versions")

    def fetch(assignment: Assignment) -> None:
        target = tmp_path / "target"
        fetch_local(entry, target, assignment, settings=settings, versions=versions, progress=FetchProgress())

    with pytest.raises(FetchFailed) as refused:
        fetch(assignment)
    assert refused.value.reason == Outage.NO_SPACE
    assert not (tmp_path / "target").exists()
    fetch(replace(assignment, data_keep_free=1))
    copied = tmp_path / "target" if kind == "file" else tmp_path / "target" / "x"
    assert copied.stat().st_size == 1000

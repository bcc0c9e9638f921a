"""Deletion on the whole platform: what the user deletes is gone from the disk, and nothing else."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.testbed.platform import Platform, platform
from tests.waiting import eventually
from weft import Client, NotFound

DONE_S = 120
SPEC = {
    "name": "leaves",
    "command": "echo hello; echo result > $RESULT_DIR/model",
    "code": ".",
    "resources": {"cpus": 0.1, "memory": "64MiB"},
}


@pytest.fixture(scope="module")
def erasing() -> Generator[Platform]:
    """A platform that erases the data of deleted jobs at once."""
    with platform({"WEFT_DELETED_KEEP_S": "0"}) as running:
        yield running


def test_the_data_of_a_deleted_job_leaves_the_disk_and_other_jobs_keep_theirs(
    erasing: Platform, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    with Client(erasing.url, erasing.key) as client:
        kept, deleted = [client.jobs.submit(SPEC, code=tmp_path) for _ in range(2)]
        for job in (kept, deleted):
            job.wait(DONE_S)

        def folders(job_id: str) -> list[str]:
            root = erasing.home.root
            places = (root / "objects" / "tenants" / "default" / "jobs" / job_id, root / "metrics" / job_id)
            return [str(path) for path in places if path.exists()]

        assert len(folders(deleted.id)) == 2
        assert len(folders(kept.id)) == 2
        deleted.delete()
        eventually(lambda: not folders(deleted.id))
        eventually(lambda: erasing.counter("lcm", "weft_deleted_jobs_total") == 1)
        with pytest.raises(NotFound):
            client.jobs.get(deleted.id)
        assert len(folders(kept.id)) == 2
        assert [line.text for line in kept.logs()] == ["hello"]
        assert len(list((erasing.home.root / "objects").rglob("code/*"))) == 1

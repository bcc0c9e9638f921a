"""Which stores a platform used last: known without passwords, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.core.runtime.settings import Settings
from services.local.used_stores import changed_stores, refuse_changed_stores, save_stores

MONGO = "mongodb://me:p%40ss@db:27017/weft?appName=a"


def test_password_of_a_store_is_not_saved(tmp_path: Path) -> None:
    save_stores(Settings(home=tmp_path, job_store=MONGO, object_store="s3://bucket/weft"))
    assert "p%40ss" not in (tmp_path / "stores.json").read_text()
    assert changed_stores(Settings(home=tmp_path)) == {
        "WEFT_JOB_STORE": ("mongodb://db:27017/weft?appName=a", "sqlite"),
        "WEFT_OBJECT_STORE": ("s3://bucket/weft", "folder"),
    }


def test_another_password_is_no_other_store(tmp_path: Path) -> None:
    save_stores(Settings(home=tmp_path, job_store=MONGO))
    assert changed_stores(Settings(home=tmp_path, job_store=MONGO.replace("p%40ss", "new"))) == {}


@pytest.mark.parametrize("content", [None, "", "[]", '{"stores": []}', '{"stores": {"WEFT_JOB_STORE": {}}'])
def test_unknown_or_damaged_record_refuses_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "stores.json").write_text(content)
    refuse_changed_stores(Settings(home=tmp_path))


def test_record_that_cannot_be_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_stores(Settings(home=tmp_path, job_store=MONGO))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.local.used_stores.write_json", fail)
    save_stores(Settings(home=tmp_path))
    refuse_changed_stores(Settings(home=tmp_path, job_store=MONGO))

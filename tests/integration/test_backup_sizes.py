"""However large a part of a platform is, its backup can be restored, or says what it lacks."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.errors import InvalidRequest
from services.core.domain.job import Event
from services.core.domain.status import Status
from services.core.ports.metric_store import Batch, LogLine, SourceId
from services.core.ports.record_store import Record
from services.local.backup.archive import Entry, Reader, Writer
from services.local.backup.keys import key_file
from services.local.backup.stores import Stores
from services.local.commands import PLATFORM
from tests.documents import NOW, a_job
from tests.testbed.backups import EMBEDDED, backup, kinds, restore, snapshot
from tests.testbed.filled_stores import fill, with_stores


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A platform with some of everything in it."""
    with_stores(tmp_path / "home", EMBEDDED, fill, writing=True)
    return tmp_path / "home"


SOURCE = SourceId(1, "worker", 0, 1, "stdout")
PRINTED = {
    "one line of 75 MiB": lambda number: "x" * 2**14,
    "4,800 lines of 5 kB that hardly compress": lambda number: b64encode(os.urandom(3_750)).decode(),
}


@pytest.fixture
def printed(tmp_path: Path) -> Callable[[str], Path]:
    """A function that makes a platform with two jobs, one of which has printed this."""

    def make(what: str) -> Path:
        async def fill_one(stores: Stores) -> None:
            job, other = await stores.jobs.insert(a_job()), await stores.jobs.insert(a_job())
            for at in range(0, 4_800, 600):
                lines = [LogLine(n, n, PRINTED[what](n), partial=True) for n in range(at, at + 600)]
                await stores.metrics.append(job.id, [Batch(SOURCE, at, at + 600, lines)])
            await stores.metrics.append(other.id, [Batch(SOURCE, 0, 1, [LogLine(0, 0, "short")])])

        with_stores(tmp_path / "home", EMBEDDED, fill_one, writing=True)
        return tmp_path / "home"

    return make


@pytest.mark.parametrize("what", PRINTED)
def test_backup_is_restored_whatever_a_job_printed(printed: Callable[[str], Path], tmp_path: Path, what: str) -> None:
    """A page of lines was one entry. The whole file was refused for one of more than 64 MiB, or 16 MiB packed."""
    home = printed(what)
    assert backup(home, tmp_path / "b")["warnings"] == []
    with tarfile.open(tmp_path / "b") as tar:
        assert max(member.size for member in tar) < 4 * 2**20
    assert PLATFORM.verify_backup(str(tmp_path / "b"))["warnings"] == []
    restore(tmp_path / "other", tmp_path / "b")
    assert kinds(snapshot(tmp_path / "other"), "line") == kinds(snapshot(home), "line")


@pytest.mark.parametrize("what", PRINTED)
def test_backup_of_an_earlier_version_with_a_huge_entry_is_restored(
    printed: Callable[[str], Path], tmp_path: Path, what: str
) -> None:
    home = printed(what)
    backup(home, tmp_path / "b")
    as_format_1(tmp_path / "b")
    with tarfile.open(tmp_path / "b") as tar:
        largest = max(member.size for member in tar)
    assert (largest > 2**24) == (what != "one line of 75 MiB")  # that is small as it is packed
    assert PLATFORM.verify_backup(str(tmp_path / "b"))["warnings"] == []
    restore(tmp_path / "other", tmp_path / "b")
    assert kinds(snapshot(tmp_path / "other"), "line") == kinds(snapshot(home), "line")


def as_format_1(path: Path) -> None:
    """Rewrites a backup as the first format had it: each job's metrics, of 5,000 lines at most, in one entry."""
    metrics: dict[str, dict[str, list[Any]]] = {}
    content = path.read_bytes()
    with path.open("wb") as file:
        reader, writer = Reader(io.BytesIO(content)), Writer(file)
        for entry in reader:
            assert isinstance(entry, Entry)
            data = b"".join(entry.chunks())
            folder, _, name = entry.name.partition("/")
            if folder != "metrics":
                writer.put(entry.name, data.replace(b'"format": 2', b'"format": 1'))
                continue
            job = metrics.setdefault(name.partition("/")[0], {"sources": [], "lines": [], "points": []})
            for key, items in [
                pair for text in gzip.decompress(data).splitlines() for pair in json.loads(text).items()
            ]:
                job[key] += items
        for job_id, lists in metrics.items():
            text = "".join(json.dumps({key: items}, separators=(",", ":")) + "\n" for key, items in lists.items())
            writer.put(f"metrics/{job_id}/000001.jsonl.gz", gzip.compress(text.encode(), 3), read_whole=False)
        writer.finish(reader.end["counts"], key_file(path.with_name(path.name + ".key")).mac)


def test_history_of_any_length_is_restored(home: Path, tmp_path: Path) -> None:
    events = [
        Event(seq=seq, time=NOW, actor="lcm", generation=1, from_status=None, to=Status.QUEUED, message="m" * 600)
        for seq in range(2, 6_000)
    ]

    async def live_long(stores: Stores) -> None:
        job = await stores.jobs.insert(a_job(history_seq=5_999))
        await stores.jobs.append_history(job.id, job.tenant, events)

    with_stores(home, EMBEDDED, live_long, writing=True)
    backup(home, tmp_path / "b")
    with tarfile.open(tmp_path / "b") as tar:
        assert "jobs/000002.jsonl.gz" in tar.getnames()
    restore(tmp_path / "other", tmp_path / "b")
    assert kinds(snapshot(home), "event").items() <= kinds(snapshot(tmp_path / "other"), "event").items()


def test_job_with_very_many_log_files_is_restored(home: Path, tmp_path: Path) -> None:
    async def log_to_files(stores: Stores) -> None:
        job = await stores.jobs.insert(a_job())
        sources = [SourceId(1, "worker", 0, 1, f"logs/{'long-' * 40}{number}") for number in range(12_000)]
        await stores.metrics.append(job.id, [Batch(source, 0, 1, [LogLine(0, 0, "x")]) for source in sources])

    with_stores(home, EMBEDDED, log_to_files, writing=True)
    backup(home, tmp_path / "b")
    restore(tmp_path / "other", tmp_path / "b")
    same = ("sources", "line")
    assert kinds(snapshot(tmp_path / "other"), *same) == kinds(snapshot(home), *same)


def test_what_no_restore_would_read_is_named_and_everything_else_is_backed_up(home: Path, tmp_path: Path) -> None:
    before = snapshot(home)

    async def add(stores: Stores) -> None:
        large, huge = b64encode(os.urandom(20 * 2**20)).decode(), "x" * (64 * 2**20)
        for name, text in (("large", large), ("huge", huge)):
            await stores.records.insert(Record(kind="keys", id=name, body={"text": text}, index={}))
        await (await stores.secrets()).put("vast", bytes(9 * 2**20))

    with_stores(home, EMBEDDED, add, writing=True)
    record, secret = backup(home, tmp_path / "b")["warnings"]
    assert record.startswith("not in the backup: record huge of keys has")
    assert secret.startswith("not in the backup: secret vast: ")
    restore(tmp_path / "other", tmp_path / "b")
    same = ("sources", "line", "point", "record", "secret", "file")
    restored = kinds(snapshot(tmp_path / "other"), *same)
    assert len(restored.pop("record keys large")[0]["text"]) > 20 * 2**20
    assert restored == kinds(before, *same)


def test_document_that_cannot_be_restored_is_refused_before_any_change(home: Path, tmp_path: Path) -> None:
    """It was read only when the platform had been emptied."""
    backup(home, tmp_path / "b")
    before, key = snapshot(home), key_file(tmp_path / "b.key")
    for folder, document in (("jobs", {"job": {"id": "j1"}, "history": []}), ("records", {"kind": "keys"})):
        with (tmp_path / "b").open("rb") as file, (tmp_path / folder).open("wb") as other:
            reader, writer = Reader(file), Writer(other)
            for entry in reader:
                assert isinstance(entry, Entry)
                content = b"".join(entry.chunks())
                if entry.name.startswith(f"{folder}/"):
                    content = gzip.compress(json.dumps(document).encode())
                writer.put(entry.name, content)
            writer.finish(reader.end["counts"], key.mac)
        with pytest.raises(InvalidRequest, match=f"entry {folder}/000001"):
            restore(home, tmp_path / folder, key=str(tmp_path / "b.key"), replace=True)
        assert snapshot(home) == before

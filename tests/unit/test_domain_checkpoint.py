"""Indexes and manifests of stored checkpoints, and the versions that a new attempt restores."""

from __future__ import annotations

import json
import math

import pytest

from services.core.domain.checkpoint import (
    Index,
    SavedFile,
    SnapshotRecord,
    cut_of,
    dump_index,
    dump_manifest,
    files_at,
    parse_index,
    parse_manifest,
    records_for,
)


def record(
    seq: int, time: int, *, until: int | None = None, final: bool = False, complete: bool = True
) -> SnapshotRecord:
    return SnapshotRecord(
        seq=seq, time=time, until=time if until is None else until, final=final, complete=complete, files=1, size=1
    )


def saved(path: str, changed: int) -> SavedFile:
    return SavedFile(path, 1, f"{path}@{changed}", changed)


def restored(index: Index, cut: float, files: dict[int, list[SavedFile]]) -> list[str]:
    snapshots = [(entry, files[entry.seq]) for entry in records_for(index, cut)]
    return sorted(file.sha256 for _, file in files_at(snapshots, cut))


def test_documents_are_read_as_they_were_written() -> None:
    records = (record(3, 5), record(4, 7, until=9, final=True, complete=False))
    files = (SavedFile("a/b", 4, "d", 6, 5),)
    assert parse_index(dump_index(records)) == Index(records)
    assert parse_manifest(dump_manifest(records[0], files)) == files


def test_manifest_of_the_first_schema_is_a_final_snapshot() -> None:
    files = [{"path": "s/1", "size": 4, "sha256": "d"}]
    index = parse_index(json.dumps({"schema": 1, "files": files, "time": 5}).encode())
    assert index.first_schema == (SavedFile("s/1", 4, "d"),)
    assert [(entry.seq, entry.time, entry.final) for entry in index.records] == [(0, 5, True)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"schema":2}',
        b'{"schema":"2"}',
        b'{"schema":1,"files":{}}',
        b'{"files":[{"path":1}]}',
        b'{"files":[],"time":"x"}',
        b'{"schema":2,"snapshots":[1]}',
        b"[" * 100_000,
        dump_index([record(2, 1), record(1, 1)]),
        dump_index([record(0, 1)]),
    ],
)
def test_damaged_index_is_refused(content: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_index(content)


def test_incomplete_snapshot_is_shown_only_where_there_is_no_other() -> None:
    whole, part = record(1, 1), record(2, 2, final=True, complete=False)
    assert Index((whole, part)).shown == whole
    assert Index((part,)).shown == part
    assert Index((part,)).restorable == ()
    assert Index().shown is None


def test_halted_gang_is_restored_from_the_newest_snapshots_of_all() -> None:
    indexes = [Index((record(1, 10), record(2, 30, final=True))), Index((record(1, 20, final=True),)), Index()]
    assert cut_of(indexes) == math.inf
    assert restored(indexes[0], math.inf, {2: [saved("w", 29)]}) == ["w@29"]


def test_shards_of_a_gang_are_from_one_moment() -> None:
    """Rank 0 stored step 2 and its marker; rank 1's machine was lost after it had stored step 1."""
    step_1 = [saved("step-1/0", 10), saved("latest", 12)]
    step_2 = [saved("step-1/0", 10), saved("step-2/0", 20), saved("latest", 22)]
    rank_0 = Index((record(1, 15), record(2, 25), record(3, 40, final=True)))
    rank_1 = Index((record(1, 14, until=18),))
    cut = cut_of([rank_0, rank_1])
    assert cut == 18
    assert restored(rank_0, cut, {1: step_1, 2: step_2, 3: step_2}) == ["latest@12", "step-1/0@10"]


def test_version_that_existed_at_the_cut_counts_though_it_was_stored_later() -> None:
    """Rank 0's shard of step 2 was written when rank 1 stored its own, and stored later."""
    rank_0 = Index((record(1, 15), record(2, 40)))
    files = {
        1: [saved("step-1", 10), saved("log", 14)],
        2: [saved("step-2/a", 20), saved("step-2/b", 21), saved("log", 39)],
    }
    assert restored(rank_0, 25, files) == ["log@14", "step-1@10", "step-2/a@20", "step-2/b@21"]
    assert restored(rank_0, 20, files) == ["log@14", "step-1@10"], "a folder is never taken in part"


def test_snapshots_before_the_last_one_at_the_cut_are_not_read() -> None:
    index = Index((record(1, 10), record(2, 20), record(3, 30), record(4, 40, complete=False)))
    assert [entry.seq for entry in records_for(index, 25)] == [3, 2]
    assert [entry.seq for entry in records_for(index, math.inf)] == [3]
    assert [entry.seq for entry in records_for(index, 5)] == [3, 2, 1]

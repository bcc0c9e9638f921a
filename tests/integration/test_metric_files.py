"""The metric store's files after disk errors and process deaths."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import apsw
import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.domain.errors import Conflict, Quarantined, Unavailable
from services.core.ports.metric_store import Batch, Column, LineQuery, LogLine, Point, SourceId
from services.core.runtime.quarantine import METRICS, Quarantine
from services.metrics.damaged_files import check_damaged_files
from tests.testbed.open_files import open_files

ROOT = Path(__file__).parents[2]
JOB, OTHER = "j0000000001", "j0000000002"
OUT = SourceId(1, "worker", 0, 1, "stdout")
WIDTH = 100


def piece(start: int, end: int) -> Batch:
    """A batch of lines and points with the numbers from ``start`` to ``end``."""
    lines = [LogLine(at * WIDTH, at, f"line {at}") for at in range(start, end)]
    points = [Point(at * WIDTH, at, "n", at, at) for at in range(start, end)]
    return Batch(OUT, start * WIDTH, end * WIDTH, lines, points)


async def stored(store: SqliteMetricStore, job: str = JOB) -> list[str]:
    return [entry.line.text for entry in await store.lines(job, LineQuery())]


def numbered(end: int) -> list[str]:
    return [f"line {at}" for at in range(end)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteMetricStore]:
    opened = await SqliteMetricStore.open(tmp_path)
    yield opened
    await opened.close()


async def written(root: Path, *, lines: int = 10) -> None:
    """A store with lines of two jobs, closed."""
    store = await SqliteMetricStore.open(root)
    for job in (JOB, OTHER):
        await store.append(job, [piece(0, lines)])
    await store.close()


async def test_uncommitted_bytes_are_removed_at_start(tmp_path: Path) -> None:
    await written(tmp_path)
    segment = tmp_path / JOB / "lines-00000001.seg"
    length = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"half a block" * 1000)
    (tmp_path / JOB / "lines-00000002.seg").write_bytes(b"begun")
    store = await SqliteMetricStore.open(tmp_path)
    assert await store.append(JOB, [piece(10, 12)]) == [1200]
    assert segment.stat().st_size < length + 200
    assert not (tmp_path / JOB / "lines-00000002.seg").exists()
    assert await stored(store) == numbered(12)
    await store.close()


async def test_lines_are_read_across_segments(tmp_path: Path) -> None:
    for life in range(3):
        store = await SqliteMetricStore.open(tmp_path, segment_bytes=300)
        for at in range(20 * life, 20 * life + 20, 4):
            await store.append(JOB, [piece(at, at + 4)])
        await store.close()
    assert len(list((tmp_path / JOB).glob("lines-*.seg"))) > 2
    store = await SqliteMetricStore.open(tmp_path)
    assert await stored(store) == numbered(60)
    assert [entry.line.text for entry in await store.lines(JOB, LineQuery(tail=30))] == numbered(60)[30:]
    await store.close()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("harm", ["index", "index gone", "index empty", "table gone", "segment cut", "segment gone"])
async def test_damaged_job_is_quarantined_and_others_work(tmp_path: Path, harm: str) -> None:
    await written(tmp_path)
    index, segment = tmp_path / JOB / "index.sqlite", tmp_path / JOB / "lines-00000001.seg"
    match harm:
        case "index":
            overwrite(index, 0, b"no database" * 400)
        case "index gone":
            index.unlink()
        case "index empty":
            os.truncate(index, 0)
        case "table gone":
            with apsw.Connection(str(index)) as db:
                db.execute("DROP TABLE sources")
            db.close()
        case "segment cut":
            os.truncate(segment, segment.stat().st_size - 1)
        case _:
            segment.unlink()
    store = await SqliteMetricStore.open(tmp_path)
    for _ in range(2):
        with pytest.raises(Quarantined, match=f"job {JOB} are damaged"):
            await store.append(JOB, [piece(10, 11)])
        with pytest.raises(Quarantined) as refused:
            await store.counts(JOB)
        assert str(tmp_path) not in refused.value.message
    await store.recheck(JOB)
    assert list(store.damaged()) == [JOB]
    assert str(tmp_path / JOB) in store.damaged()[JOB]  # for administrators
    assert await store.append(OTHER, [piece(10, 11)]) == [1100]
    assert await stored(store, OTHER) == numbered(11)
    await store.delete(JOB)
    assert await stored(store) == []
    assert not (tmp_path / JOB).exists()
    assert store.damaged() == {}
    await store.close()


async def test_an_error_of_the_disk_shows_users_no_path_of_the_platform(tmp_path: Path) -> None:
    """Errors named the file of the platform that could not be used."""
    await written(tmp_path)
    segment = tmp_path / JOB / "lines-00000001.seg"
    segment.unlink()
    segment.symlink_to(segment)
    store = await SqliteMetricStore.open(tmp_path)
    with structlog.testing.capture_logs() as logs, pytest.raises(Unavailable) as failed:
        await store.lines(JOB, LineQuery())
    assert "cannot be used now" in failed.value.message
    assert str(tmp_path) not in failed.value.message
    assert str(segment) in [entry.get("path") for entry in logs]
    await store.close()


async def test_repaired_job_leaves_quarantine_by_itself(tmp_path: Path) -> None:
    await written(tmp_path)
    index = tmp_path / JOB / "index.sqlite"
    sound = index.read_bytes()
    overwrite(index, 0, b"no database" * 400)
    store = await SqliteMetricStore.open(tmp_path)
    quarantine = Quarantine(lambda: 7, CollectorRegistry())
    await check_damaged_files(store, quarantine)
    assert quarantine.entries() == []  # it was not read yet
    with pytest.raises(Quarantined):
        await store.lines(JOB, LineQuery())
    await check_damaged_files(store, quarantine)
    assert [(entry.kind, entry.place, entry.since) for entry in quarantine.entries()] == [(METRICS, JOB, 7)]
    for leftover in tmp_path.glob(f"{JOB}/index.sqlite-*"):
        leftover.unlink()
    index.write_bytes(sound)
    await check_damaged_files(store, quarantine)
    assert quarantine.entries() == []
    assert await store.append(JOB, [piece(10, 11)]) == [1100]
    assert await stored(store) == numbered(11)
    await store.close()


async def test_block_with_a_wrong_checksum_is_not_shown(tmp_path: Path) -> None:
    await written(tmp_path)
    overwrite(tmp_path / JOB / "lines-00000001.seg", 60, b"\xff")
    store = await SqliteMetricStore.open(tmp_path)
    with pytest.raises(Quarantined, match="checksum"):
        await store.lines(JOB, LineQuery())
    assert await stored(store, OTHER) == numbered(10)
    await store.close()


async def test_job_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    await written(tmp_path)
    with apsw.Connection(str(tmp_path / JOB / "index.sqlite")) as db:
        db.pragma("user_version", 2)
    db.close()
    store = await SqliteMetricStore.open(tmp_path)
    with pytest.raises(Conflict, match="newer Weft"):
        await store.append(JOB, [piece(10, 11)])
    await store.close()


async def test_only_recently_used_jobs_are_kept_open(tmp_path: Path) -> None:
    store = await SqliteMetricStore.open(tmp_path, open_jobs=3)
    jobs = [f"j{at}" for at in range(40)]
    for round_ in range(2):
        await asyncio.gather(*(store.append(job, [piece(round_ * 2, round_ * 2 + 2)]) for job in jobs))
        await asyncio.gather(*(store.lines(job, LineQuery()) for job in jobs))
    assert len(open_files(tmp_path)) <= 3 * 6
    for job in jobs:
        assert await stored(store, job) == numbered(4)
    await store.close()


async def test_statistics_of_many_jobs_keep_none_of_their_files_open(tmp_path: Path) -> None:
    """A comparison of a thousand jobs opened and closed the files of each, twice for each chart: ten seconds."""
    await written(tmp_path)
    store = await SqliteMetricStore.open(tmp_path)
    before = open_files(tmp_path)
    whole = Column(list(range(10)), [float(at) for at in range(10)])
    assert await store.whole_columns(JOB, ["n"], None, most=20) == {"n": whole}
    assert await store.columns(JOB, {"n": [3]}, None) == {"n": Column([3], [3.0])}
    assert open_files(tmp_path) == before
    await store.append(JOB, [piece(10, 11)])
    assert await store.whole_columns(JOB, ["n"], None, most=5) == {"n": Column([0, 2, 5, 8, 10], (), 11)}
    (tmp_path / OTHER / "index.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(Quarantined):
        await store.whole_columns(OTHER, ["n"], None, most=5)
    await store.close()


async def test_second_process_cannot_open_the_store(store: SqliteMetricStore, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="another process"):
        await SqliteMetricStore.open(tmp_path)


async def test_appends_before_close_are_written(tmp_path: Path) -> None:
    store = await SqliteMetricStore.open(tmp_path)
    appending = [asyncio.create_task(store.append(JOB, [piece(at, at + 1)])) for at in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert [end for (end,) in await asyncio.gather(*appending)] == [(at + 1) * WIDTH for at in range(50)]
    with pytest.raises(Unavailable, match="closed"):
        await store.append(JOB, [piece(50, 51)])
    again = await SqliteMetricStore.open(tmp_path)
    assert await stored(again) == numbered(50)
    await again.close()


FILLER = """
import asyncio, sys
from tests.integration.test_metric_files import *
from services.core.domain.errors import NoSpace
from services.core.ports.metric_store import PointQuery

async def main(root):
    store = await SqliteMetricStore.open(Path(root))
    ballast = Path(root) / "ballast"
    ballast.write_bytes(bytes(600_000))
    at, full = 0, 0
    while full < 3:
        try:
            await store.append(JOB, [piece(at, at + 50)])
            at += 50
        except NoSpace:
            full += 1
    assert [entry.line.text for entry in await store.lines(JOB, LineQuery(), limit=100_000)] == numbered(at)
    ballast.unlink()
    assert await store.append(JOB, [piece(at, at + 50)]) == [(at + 50) * WIDTH]
    await store.close()
    store = await SqliteMetricStore.open(Path(root))
    assert [entry.line.text for entry in await store.lines(JOB, LineQuery(), limit=100_000)] == numbered(at + 50)
    points = await store.points(JOB, PointQuery(), limit=100_000)
    assert [entry.point.value for entry in points] == list(range(at + 50))
    await store.close()
    print("filled at", at)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("kib", [1500, 1700, 1900])
def test_full_disk_refuses_appends_and_loses_nothing(tmp_path: Path, kib: int) -> None:
    """On small file systems of several sizes, so that each of the files is the one that fails in some case."""
    mount = f"mount -t tmpfs -o size={kib}k tmpfs {tmp_path}"
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if subprocess.run([*namespace, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow to mount a small file system")
    done = subprocess.run(
        [*namespace, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FILLER, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "filled at" in done.stdout

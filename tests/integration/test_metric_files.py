"""The metric store's files when disks and processes misbehave."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import apsw
import pytest
from prometheus_client import CollectorRegistry

from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.domain.errors import Conflict, Quarantined, Unavailable
from services.core.ports.metric_store import Batch, LineQuery, LogLine, Point, SourceId
from services.core.runtime.quarantine import METRICS, Quarantine
from services.metrics.damaged_files import check_damaged_files

ROOT = Path(__file__).parents[2]
JOB, OTHER = "j0000000001", "j0000000002"
OUT = SourceId(1, "worker", 0, 1, "stdout")
WIDTH = 100


def piece(start: int, end: int) -> Batch:
    """Lines and points number ``start`` to ``end``."""
    lines = [LogLine(at * WIDTH, at, f"line {at}") for at in range(start, end)]
    points = [Point(at * WIDTH, at, "n", at, at) for at in range(start, end)]
    return Batch(OUT, start * WIDTH, end * WIDTH, lines, points)


async def stored(store: SqliteMetricStore, job: str = JOB) -> list[str]:
    return [one.line.text for one in await store.lines(job, LineQuery())]


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


async def test_bytes_that_were_written_but_never_committed_are_cut_off(tmp_path: Path) -> None:
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


async def test_segments_are_begun_anew_when_they_have_grown_and_read_across(tmp_path: Path) -> None:
    for life in range(3):
        store = await SqliteMetricStore.open(tmp_path, segment_bytes=300)
        for at in range(20 * life, 20 * life + 20, 4):
            await store.append(JOB, [piece(at, at + 4)])
        await store.close()
    assert len(list((tmp_path / JOB).glob("lines-*.seg"))) > 2
    store = await SqliteMetricStore.open(tmp_path)
    assert await stored(store) == numbered(60)
    assert [one.line.text for one in await store.lines(JOB, LineQuery(tail=30))] == numbered(60)[30:]
    await store.close()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("harm", ["index", "index gone", "index empty", "table gone", "segment cut", "segment gone"])
async def test_a_damaged_job_says_so_and_harms_no_other(tmp_path: Path, harm: str) -> None:
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
        with pytest.raises(Quarantined, match=str(tmp_path / JOB)):
            await store.counts(JOB)
    await store.recheck(JOB)
    assert list(store.damaged()) == [JOB]
    assert await store.append(OTHER, [piece(10, 11)]) == [1100]
    assert await stored(store, OTHER) == numbered(11)
    await store.delete(JOB)
    assert await stored(store) == []
    assert not (tmp_path / JOB).exists()
    assert store.damaged() == {}
    await store.close()


async def test_a_damaged_job_that_was_mended_goes_on_by_itself(tmp_path: Path) -> None:
    await written(tmp_path)
    index = tmp_path / JOB / "index.sqlite"
    sound = index.read_bytes()
    overwrite(index, 0, b"no database" * 400)
    store = await SqliteMetricStore.open(tmp_path)
    quarantine = Quarantine(lambda: 7, CollectorRegistry())
    await check_damaged_files(store, quarantine)
    assert quarantine.entries() == []  # nobody has asked for it yet
    with pytest.raises(Quarantined):
        await store.lines(JOB, LineQuery())
    await check_damaged_files(store, quarantine)
    assert [(one.kind, one.place, one.since) for one in quarantine.entries()] == [(METRICS, JOB, 7)]
    for leftover in tmp_path.glob(f"{JOB}/index.sqlite-*"):
        leftover.unlink()
    index.write_bytes(sound)
    await check_damaged_files(store, quarantine)
    assert quarantine.entries() == []
    assert await store.append(JOB, [piece(10, 11)]) == [1100]
    assert await stored(store) == numbered(11)
    await store.close()


async def test_a_block_with_a_flipped_bit_is_not_shown_as_if_it_were_the_log(tmp_path: Path) -> None:
    await written(tmp_path)
    overwrite(tmp_path / JOB / "lines-00000001.seg", 60, b"\xff")
    store = await SqliteMetricStore.open(tmp_path)
    with pytest.raises(Quarantined, match="checksum"):
        await store.lines(JOB, LineQuery())
    assert await stored(store, OTHER) == numbered(10)
    await store.close()


async def test_a_job_written_by_a_newer_weft_is_left_alone(tmp_path: Path) -> None:
    await written(tmp_path)
    with apsw.Connection(str(tmp_path / JOB / "index.sqlite")) as db:
        db.pragma("user_version", 2)
    db.close()
    store = await SqliteMetricStore.open(tmp_path)
    with pytest.raises(Conflict, match="newer Weft"):
        await store.append(JOB, [piece(10, 11)])
    await store.close()


async def test_only_the_most_recently_used_jobs_are_kept_open(tmp_path: Path) -> None:
    store = await SqliteMetricStore.open(tmp_path, open_jobs=3)
    jobs = [f"j{at}" for at in range(40)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for round_ in range(2):
        await asyncio.gather(*(store.append(job, [piece(round_ * 2, round_ * 2 + 2)]) for job in jobs))
        await asyncio.gather(*(store.lines(job, LineQuery()) for job in jobs))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 3 * 6
    for job in jobs:
        assert await stored(store, job) == numbered(4)
    await store.close()


async def test_a_second_process_cannot_open_the_store(store: SqliteMetricStore, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="another process"):
        await SqliteMetricStore.open(tmp_path)


async def test_what_was_appended_before_the_close_is_written(tmp_path: Path) -> None:
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
    assert [one.line.text for one in await store.lines(JOB, LineQuery(), limit=100_000)] == numbered(at)
    ballast.unlink()
    assert await store.append(JOB, [piece(at, at + 50)]) == [(at + 50) * WIDTH]
    await store.close()
    store = await SqliteMetricStore.open(Path(root))
    assert [one.line.text for one in await store.lines(JOB, LineQuery(), limit=100_000)] == numbered(at + 50)
    points = await store.points(JOB, PointQuery(), limit=100_000)
    assert [one.point.value for one in points] == list(range(at + 50))
    await store.close()
    print("filled at", at)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("kib", [1500, 1700, 1900])
def test_a_full_disk_refuses_appends_and_loses_nothing(tmp_path: Path, kib: int) -> None:
    """On small file systems of its own, of several sizes, so that now the one file fails and now the other."""
    mount = f"mount -t tmpfs -o size={kib}k tmpfs {tmp_path}"
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if subprocess.run([*namespace, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    done = subprocess.run(
        [*namespace, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FILLER, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "filled at" in done.stdout

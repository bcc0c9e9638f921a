"""One tailed file and a metrics service: each line arrives once, also when either of them or the helper fails."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.core.domain.errors import NoSpace
from services.core.domain.text import storable
from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.core.runtime.durable_files import write_json
from services.helper.ship.source import SourceFile, TailedSource
from services.helper.ship.times import TimeIndex
from services.helper.spool import SourceState, Spool


class Memory:
    """The metrics service's state of one source, by generation."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.final: set[int] = set()
        self.lines: dict[int, list[tuple[int, int, str]]] = {}

    def append(self, batch: SourceBatch) -> int:
        generation = batch.source.generation
        committed = self.committed.setdefault(generation, 0)
        if batch.start == committed and generation not in self.final:
            taken = [(line.offset, line.time_ms, line.text) for line in batch.lines]
            self.lines.setdefault(generation, []).extend(taken)
            self.committed[generation] = batch.end
            if batch.final:
                self.final.add(generation)
        return self.committed[generation]

    @property
    def texts(self) -> list[str]:
        return [text for generation in sorted(self.lines) for _, _, text in self.lines[generation]]


class Tail:
    """A source of a helper that can be killed and started again."""

    def __init__(self, root: Path, memory: Memory, *, is_closed: bool = False) -> None:
        self.root, self.memory, self.now = root, memory, 1000
        self.ended = False
        self._is_closed = is_closed
        self.begin()

    def begin(self) -> None:
        file = SourceFile(name="out", run=1, root=self.root, parts=("job", "out"), text=True, is_closed=self._is_closed)
        self.source = TailedSource(
            file,
            Source(source="out"),
            os.geteuid(),
            Spool(self.root / "spool"),
            clock=lambda: self.now,
            on_report=lambda _: None,
        )
        for generation, committed in self.memory.committed.items():
            self.source.resume(generation, committed, final=generation in self.memory.final)

    def refresh(self) -> None:
        self.now += 100
        self.source._path_check_at = 0
        if self.ended:
            self.source.finish()
        else:
            self.source.refresh()

    def ship(self, *, lines: int = 1000, answered: bool = True) -> bool:
        """One batch; ``answered``: the answer comes back."""
        batch = self.source.next_batch(2**20, lines)
        if batch is None:
            return False
        committed = self.memory.append(batch)
        if answered:
            self.source.accept(batch, committed)
        return True

    def ship_all(self) -> None:
        self.refresh()
        while self.ship():
            self.refresh()


@contextmanager
def tailed(*, is_closed: bool = False) -> Generator[Tail]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "job").mkdir()
        tail = Tail(root, Memory(), is_closed=is_closed)
        yield tail
        tail.source.close()


@pytest.fixture
def tail() -> Generator[Tail]:
    with tailed() as made:
        yield made


def test_growing_file_gives_complete_lines_and_the_rest_at_the_end(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    tail.ship_all()
    file.write_text("one\ntw")
    tail.ship_all()
    assert tail.memory.texts == ["one"]
    with file.open("a") as out:
        out.write("o\nthree")
    tail.ship_all()
    assert tail.memory.texts == ["one", "two"]
    tail.ended = True
    tail.ship_all()
    assert tail.memory.texts == ["one", "two", "three"]
    assert tail.source.is_done


def test_truncated_file_starts_a_new_generation(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    file.write_text("first of many\n")
    tail.ship_all()
    file.write_text("again\n")
    tail.ship_all()
    tail.ship_all()
    assert tail.memory.texts == ["first of many", "again"]
    assert tail.memory.final == {0}


class FullDisk:
    """The disk of the spool: while it is full, nothing can be written there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._open = os.open
        monkeypatch.setattr("services.helper.spool.write_json", self._write_json)
        monkeypatch.setattr("services.helper.ship.times.os.open", self._opened)

    def _write_json(self, path: Path, document: Mapping[str, Any], **options: bool) -> None:
        if self.is_full:
            raise NoSpace("no space left on the disk")
        write_json(path, document, **options)

    def _opened(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        if self.is_full and flags & os.O_CREAT and not Path(path).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._open(path, flags, *args, **options)


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_output_that_is_truncated_twice_while_the_spools_disk_is_full_is_shipped(
    tail: Tail, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    file, disk = tail.root / "job" / "out", FullDisk(monkeypatch)

    def write(text: str) -> None:
        if how == "replaced":
            file.rename(file.with_name("former"))
        file.write_text(text)

    file.write_text("the first output\n")
    tail.ship_all()
    disk.is_full = True
    write("the second\n")
    with pytest.raises(NoSpace):
        tail.ship_all()
    other_files = [os.open(tail.root, os.O_TMPFILE | os.O_RDWR) for _ in range(8)]
    for _ in range(3):
        with contextlib.suppress(NoSpace):
            tail.ship_all()
    write("third\n")
    for _ in range(3):
        with contextlib.suppress(NoSpace):
            tail.ship_all()
    disk.is_full = False
    write("4\n")
    tail.ship_all()
    tail.ended = True
    for _ in range(3):
        tail.ship_all()
    assert tail.memory.texts == ["the first output", "the second", "third", "4"]
    assert tail.source.is_done
    assert [os.fstat(fd).st_size for fd in other_files] == [0] * 8
    for fd in other_files:
        os.close(fd)  # nothing else has closed it


def test_state_that_a_full_disk_refused_is_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, spool = FullDisk(monkeypatch), Spool(tmp_path)
    state = SourceState(generation=2, inode=3)
    disk.is_full = True
    with pytest.raises(NoSpace):
        spool.save_source("out", state)
    assert spool.source("out") == state
    disk.is_full = False
    spool.save_source("out", state)
    assert Spool(tmp_path).source("out") == state


@pytest.mark.parametrize("how", ["truncated", "replaced", "truncated while no helper runs"])
def test_learner_that_truncates_its_output_in_a_loop_leaves_one_file_of_times(tail: Tail, how: str) -> None:
    file = tail.root / "job" / "out"
    for number in range(20):
        if how == "replaced":
            file.unlink(missing_ok=True)
        file.write_text("long\n" if number % 2 else "longer\n")
        if how == "truncated while no helper runs":
            tail.source.close()
            tail.begin()
        tail.ship_all()
        tail.ship_all()
    assert len(list((tail.root / "spool").glob("*.times"))) == 1
    assert len(tail.memory.committed) > 5


def test_replaced_file_is_read_to_its_end_first(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    file.write_text("old\n")
    tail.ship_all()
    with file.open("a") as out:
        out.write("rest of old")
    file.rename(tail.root / "job" / "out.1")
    file.write_text("new\n")
    tail.ship_all()
    tail.ship_all()
    assert tail.memory.texts == ["old", "rest of old", "new"]
    assert tail.memory.final == {0}


def test_file_replaced_while_no_helper_runs_is_another_generation(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    file.write_text("old and long\n")
    tail.ship_all()
    file.rename(tail.root / "job" / "out.1")
    file.write_text("new and longer than that\n")
    tail.begin()
    tail.ship_all()
    tail.ended = True
    tail.ship_all()
    assert tail.memory.texts == ["old and long", "new and longer than that"]
    assert tail.memory.final == {0, 1}


def test_progress_bar_is_the_unfinished_line_that_is_drawn_again(tail: Tail) -> None:
    drawn: list[str] = []
    for text in ("", "plain\n", "no bar yet", "\n\r 10%", "\r 20%", "\r 30%\x1b[K\r", "\r" * 5000 + " 99%", "\ndone\n"):
        with (tail.root / "job" / "out").open("ab") as file:
            file.write(text.encode())
        tail.refresh()
        drawn.append(tail.source.bar())
    assert drawn == ["", "", "", " 10%", " 20%", " 30%\x1b[K", " 99%", ""]


def test_final_source_is_not_sent_again_after_a_restart(tail: Tail) -> None:
    (tail.root / "job" / "out").write_text("only\n")
    tail.ended = True
    tail.ship_all()
    tail.begin()
    tail.ship_all()
    assert tail.source.is_done
    assert tail.memory.texts == ["only"]


def test_link_or_pipe_or_folder_is_never_read(tail: Tail) -> None:
    out = tail.root / "job" / "out"
    out.symlink_to("/etc/hostname")
    tail.ship_all()
    out.unlink()
    os.mkfifo(out)
    tail.ship_all()
    out.unlink()
    out.mkdir()
    tail.ship_all()
    assert tail.memory.committed == {}
    out.rmdir()
    (tail.root / "job").rename(tail.root / "elsewhere")
    (tail.root / "job").symlink_to("elsewhere")
    (tail.root / "elsewhere" / "out").write_text("secret\n")
    tail.ship_all()
    assert tail.memory.committed == {}


def test_missing_file_is_done_at_the_end(tail: Tail) -> None:
    tail.ended = True
    tail.ship_all()
    assert tail.source.is_done


def test_memory_is_bounded_for_a_file_of_newlines(tail: Tail) -> None:
    (tail.root / "job" / "out").write_bytes(b"\n" * 3_000_000)
    tail.refresh()
    tail.ship()
    assert len(tail.source._pieces) <= 1000


def test_line_sent_again_keeps_its_time(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    with file.open("a") as out:
        for number in range(20):
            out.write(f"{number}\n")
            out.flush()
            tail.refresh()
    tail.ship(answered=False)
    times = [time for _, time, _ in tail.memory.lines[0]]
    assert times == sorted(set(times)), "each line was seen at another moment"
    tail.memory.lines.clear()
    tail.memory.committed.clear()
    tail.begin()
    tail.ship_all()
    assert [time for _, time, _ in tail.memory.lines[0]] == times


def test_the_time_index_survives_a_clock_that_is_set_back(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "times")
    for size, now in ((10, 5000), (20, 3000), (30, 6000)):
        index.record(size, now)
    index.close()
    again = TimeIndex(tmp_path / "times")
    assert [again.time_at(end) for end in (1, 10, 11, 20, 21, 30, 31)] == [5000, 5000, 5000, 5000, 6000, 6000, 6000]
    again.close()


class EachLineOnce(RuleBasedStateMachine):
    """Writes, restarts, lost answers, a service that loses data, in any order: every line arrives once, in order."""

    @initialize()
    def start(self) -> None:
        self.context = tailed(is_closed=True)
        self.tail = self.context.__enter__()
        self.written = b""
        self.file = self.tail.root / "job" / "out"

    @rule(data=st.lists(st.sampled_from([b"a", b"bc\n", b"\n", "ü\n".encode(), b"\xff"]), max_size=6).map(b"".join))
    def write(self, data: bytes) -> None:
        self.written += data
        with self.file.open("ab") as out:
            out.write(data)

    @rule()
    def refresh(self) -> None:
        self.tail.refresh()

    @rule(lines=st.integers(1, 3), answered=st.booleans())
    def ship(self, lines: int, answered: bool) -> None:  # noqa: FBT001
        self.tail.ship(lines=lines, answered=answered)

    @rule()
    def kill_helper(self) -> None:
        self.tail.source.close()
        self.tail.begin()

    @rule()
    def forget(self) -> None:
        """The service comes back from a backup, with less than it had acknowledged."""
        if self.tail.memory.lines.get(0) and not self.tail.memory.final:
            offset, _, _ = self.tail.memory.lines[0].pop()
            self.tail.memory.committed[0] = offset

    @invariant()
    def no_line_twice(self) -> None:
        offsets = [offset for offset, _, _ in self.tail.memory.lines.get(0, [])]
        assert offsets == sorted(set(offsets))

    def teardown(self) -> None:
        if hasattr(self, "tail"):
            self.tail.ended = True
            for _ in range(3):
                self.tail.ship_all()
            lines = self.written.split(b"\n")
            expected = lines if lines[-1] else lines[:-1]
            assert self.tail.memory.texts == [storable(line.decode("utf-8", "surrogateescape")) for line in expected]
            assert self.tail.source.is_done
            self.context.__exit__(None, None, None)


TestEachLineOnce = EachLineOnce.TestCase
TestEachLineOnce.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

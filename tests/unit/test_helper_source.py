"""One tailed file and what a metrics service has of it: each line once, whatever happens to either or the helper."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.helper.ship.source import Place, TailedSource
from services.helper.ship.times import TimeIndex
from services.helper.spool import Spool


class Memory:
    """What the metrics service keeps of one source, by generation."""

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
    """A helper's source that can die and come back."""

    def __init__(self, root: Path, memory: Memory, *, ours: bool = False) -> None:
        self.root, self.memory, self.now = root, memory, 1000
        self.ended = False
        self._ours = ours
        self.begin()

    def begin(self) -> None:
        place = Place(name="out", run=1, root=self.root, parts=("job", "out"), text=True, ours=self._ours)
        self.source = TailedSource(
            place, Source(source="out"), os.geteuid(), Spool(self.root / "spool"), clock=lambda: self.now,
            reported=lambda _: None,
        )  # fmt: skip
        for generation, committed in self.memory.committed.items():
            self.source.resume(generation, committed, final=generation in self.memory.final)

    def look(self) -> None:
        self.now += 100
        self.source._path_due = 0
        if self.ended:
            self.source.end()
        else:
            self.source.look()

    def ship(self, *, lines: int = 1000, answered: bool = True) -> bool:
        """One batch; ``answered``: the answer comes back."""
        batch = self.source.batch(2**20, lines)
        if batch is None:
            return False
        committed = self.memory.append(batch)
        if answered:
            self.source.accept(batch, committed)
        return True

    def ship_all(self) -> None:
        self.look()
        while self.ship():
            self.look()


@contextmanager
def tailed(*, ours: bool = False) -> Generator[Tail]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "job").mkdir()
        tail = Tail(root, Memory(), ours=ours)
        yield tail
        tail.source.close()


@pytest.fixture
def tail() -> Generator[Tail]:
    with tailed() as made:
        yield made


def test_a_growing_file_gives_complete_lines_and_the_rest_at_the_end(tail: Tail) -> None:
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
    assert tail.source.done


def test_a_file_cut_back_begins_a_new_generation_and_ends_the_old_one(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    file.write_text("first of many\n")
    tail.ship_all()
    file.write_text("again\n")
    tail.ship_all()
    tail.ship_all()
    assert tail.memory.texts == ["first of many", "again"]
    assert tail.memory.final == {0}


def test_a_replaced_file_is_read_to_its_end_first(tail: Tail) -> None:
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


def test_a_file_replaced_while_no_helper_lived_is_another_generation(tail: Tail) -> None:
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


def test_what_was_final_is_not_sent_again_by_a_later_helper(tail: Tail) -> None:
    (tail.root / "job" / "out").write_text("only\n")
    tail.ended = True
    tail.ship_all()
    tail.begin()
    tail.ship_all()
    assert tail.source.done
    assert tail.memory.texts == ["only"]


def test_a_link_or_a_pipe_or_a_folder_is_never_read(tail: Tail) -> None:
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


def test_a_file_that_never_was_leaves_nothing_to_wait_for(tail: Tail) -> None:
    tail.ended = True
    tail.ship_all()
    assert tail.source.done


def test_memory_is_bounded_whatever_the_learner_writes(tail: Tail) -> None:
    (tail.root / "job" / "out").write_bytes(b"\n" * 3_000_000)
    tail.look()
    tail.ship()
    assert len(tail.source._pieces) <= 1000


def test_a_line_sent_again_has_the_time_it_had(tail: Tail) -> None:
    file = tail.root / "job" / "out"
    with file.open("a") as out:
        for number in range(20):
            out.write(f"{number}\n")
            out.flush()
            tail.look()
    tail.ship(answered=False)
    times = [time for _, time, _ in tail.memory.lines[0]]
    assert times == sorted(set(times)), "each was seen at another moment"
    tail.memory.lines.clear()
    tail.memory.committed.clear()
    tail.begin()
    tail.ship_all()
    assert [time for _, time, _ in tail.memory.lines[0]] == times


def test_the_time_index_survives_a_clock_that_is_set_back(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "times")
    for size, now in ((10, 5000), (20, 3000), (30, 6000)):
        index.saw(size, now)
    index.close()
    again = TimeIndex(tmp_path / "times")
    assert [again.at(end) for end in (1, 10, 11, 20, 21, 30, 31)] == [5000, 5000, 5000, 5000, 6000, 6000, 6000]
    again.close()


class EachLineOnce(RuleBasedStateMachine):
    """Writes, restarts, lost answers, a service that forgets, in any order: every line arrives once, in its place."""

    @initialize()
    def start(self) -> None:
        self.context = tailed(ours=True)
        self.tail = self.context.__enter__()
        self.written = b""
        self.file = self.tail.root / "job" / "out"

    @rule(data=st.lists(st.sampled_from([b"a", b"bc\n", b"\n", "ü\n".encode(), b"\xff"]), max_size=6).map(b"".join))
    def write(self, data: bytes) -> None:
        self.written += data
        with self.file.open("ab") as out:
            out.write(data)

    @rule()
    def look(self) -> None:
        self.tail.look()

    @rule(lines=st.integers(1, 3), answered=st.booleans())
    def ship(self, lines: int, answered: bool) -> None:  # noqa: FBT001
        self.tail.ship(lines=lines, answered=answered)

    @rule()
    def kill_helper(self) -> None:
        self.tail.source.close()
        self.tail.begin()

    @rule()
    def forget(self) -> None:
        """The service comes back from a backup: it has less than it said it had."""
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
            assert self.tail.memory.texts == [line.decode("utf-8", "replace").replace("�", "?") for line in expected]
            assert self.tail.source.done
            self.context.__exit__(None, None, None)


TestEachLineOnce = EachLineOnce.TestCase
TestEachLineOnce.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

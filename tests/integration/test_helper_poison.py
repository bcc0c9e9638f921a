"""A helper with damaged files of its own, or without a metrics service: its learner ends normally."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.testbed.intake import Intake
from tests.testbed.learner import Learner
from tests.testbed.server import free_address
from tests.waiting import until

DRAIN_S = 1
GARBAGE = {
    "torn": b'{"name": "worker-0", "ro',
    "other types": b'{"name": 3, "stdout": 7, "metrics.jsonl": {"generation": "x"}}',
    "another's": b'{"name": "ps-1", "role": "ps", "rank": 1, "attempt": 9, "seq": 4, "phase": "STORED"}',
    "beyond": b'{"name": "worker-0", "role": "worker", "rank": 0, "attempt": 1, "seq": Infinity, "phase": "READY"}',
}


@pytest.fixture
async def intake() -> AsyncGenerator[Intake]:
    server = Intake(free_address())
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def learner(intake: Intake) -> AsyncGenerator[Learner]:
    made = Learner(job="j0", metrics=intake.address, environment={"WEFT_HELPER_DRAIN_S": str(DRAIN_S)})
    yield made
    made.remove()


def damage(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.damaged")
    beside.write_bytes(content)
    beside.replace(path)


async def test_end_does_not_wait_for_an_unavailable_metrics_service(learner: Learner, intake: Intake) -> None:
    learner.reserve(
        "echo first; echo kept > $RESULT_DIR/out.txt; while [ ! -e $JOB_STATE_DIR/on ]; do sleep 0.05; done; echo last"
    )
    learner.start()
    await until(lambda: "first" in intake.text())
    await intake.stop()
    (learner.folder / "job" / "on").touch()
    await until((learner.folder / "stored").exists)
    stored = json.loads((learner.folder / "stored").read_text())
    assert (stored["phase"], stored["reason"]) == ("STORED", "")
    assert "its stored logs" in stored["message"]
    assert learner.objects("results") == {"worker-0/out.txt": b"kept\n"}
    assert learner.objects("logs")["learner-1/training-log.txt"] == b"first\nlast\n"
    assert learner.helper is not None
    assert learner.helper.poll() is None, "the helper stays to send the lines once the service is back"
    await intake.start()
    await learner.until_stored()
    assert intake.text() == ["first", "last"]
    assert intake.last is not None
    assert (intake.last.phase.value, intake.last.exit and intake.last.exit.code) == ("STORED", 0)


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
async def test_helper_with_a_damaged_spool_reports_everything_once(
    learner: Learner, intake: Intake, content: bytes
) -> None:
    learner.reserve("echo 1; echo 2; while [ ! -e $JOB_STATE_DIR/on ]; do sleep 0.05; done; echo 3")
    learner.start()
    await until(lambda: intake.text() == ["1", "2"] and intake.phases[-1:] == ["PROCESSING"])
    learner.kill_helper()
    for name in ("report.json", "sources.json"):
        damage(learner.folder / "spool" / name, content)
    learner.start_helper()
    (learner.folder / "job" / "on").touch()
    await learner.until_stored()
    assert intake.text() == ["1", "2", "3"]
    seqs = [report.seq for report in intake.reports]
    assert seqs == sorted(set(seqs))
    assert intake.last is not None
    assert (intake.last.phase.value, intake.last.exit and intake.last.exit.code) == ("STORED", 0)


async def test_unreadable_exit_record_counts_as_a_lost_learner(learner: Learner, intake: Intake) -> None:
    learner.reserve("echo 1; while [ ! -e $JOB_STATE_DIR/on ]; do sleep 0.05; done")
    learner.start()
    await until(lambda: intake.text() == ["1"])
    learner.kill_helper()
    (learner.folder / "job" / "on").touch()
    await until((learner.folder / "runs/1/exit.json").exists)
    damage(learner.folder / "runs/1/exit.json", b'{"ti')
    damage(learner.folder / "shim.json", b"{}")
    damage(learner.folder / "runs/1/start.json", b"\xff\xfe")
    learner.start_helper()
    await learner.until_stored()
    assert intake.last is not None
    assert intake.last.exit is not None
    assert intake.last.exit.lost

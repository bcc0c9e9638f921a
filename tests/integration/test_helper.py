"""The helper as a process, with the real shim and a test server in place of the metrics service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TextIO

import pytest

from services.core.domain.errors import NoSpace
from services.core.domain.learner import LearnerStatus
from services.core.domain.plan import Input
from services.core.domain.status import Phase
from services.core.runtime.learner_folder import LearnerFolder, StopMark
from services.helper.main import Helper
from services.helper.metrics_client import IntakeClient, Progress
from services.helper.reporter import Reporter
from services.helper.shim import ShimWatch
from services.helper.ship.shipper import Shipper
from services.helper.spool import Spool
from tests.testbed.intake import Intake
from tests.testbed.learner import TENANT, ReportingLearner
from tests.testbed.server import free_address
from tests.waiting import until

JOB = "j0"


class HelperTest(ReportingLearner):
    """With a folder of data that it may fetch."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake, job=JOB)
        self._environment = {"WEFT_DATA_PATHS": str(self.home / "allowed")}


@pytest.fixture
async def learner() -> AsyncGenerator[HelperTest]:
    intake = Intake(free_address())
    await intake.start()
    made = HelperTest(intake)
    yield made
    made.remove()
    await intake.stop()


async def test_lines_results_and_logs_of_a_shell_command_are_stored(learner: HelperTest) -> None:
    learner.reserve(
        "echo hello; echo oops >&2; echo kept > $RESULT_DIR/out.txt; mkdir $RESULT_DIR/d; echo x > $RESULT_DIR/d/y;"
        " echo more > $LOG_DIR/own.log; printf unfinished"
    )
    learner.start()
    last = await learner.ended()
    assert (last.exit and last.exit.code, last.reason, last.message) == (0, "", "")
    assert list(last.times) == ["WAITING", "DOWNLOADING", "READY", "PROCESSING", "STORING", "STORED"]
    # A report carries the whole state: on a busy machine a short phase may pass between two reports.
    assert learner.intake.phases == [phase for phase in last.times if phase in learner.intake.phases]
    assert learner.intake.phases[-1] == "STORED"
    assert learner.intake.text() == ["hello", "unfinished"]
    assert learner.intake.text("stderr") == ["oops"]
    assert {key[4] for key in learner.intake.final} == {"stdout", "stderr", "usage"}
    assert learner.objects("results") == {"worker-0/d/y": b"x\n", "worker-0/out.txt": b"kept\n"}
    logs = learner.objects("logs")
    assert sorted(logs) == [f"learner-1/{name}" for name in ("own.log", "stderr.1", "stdout.1", "training-log.txt")]
    assert sorted(logs["learner-1/training-log.txt"].split()) == [b"hello", b"oops", b"unfinished"]


async def test_code_is_in_the_working_folder_and_belongs_to_the_learner(learner: HelperTest) -> None:
    digest = learner.code(train_sh="echo I run; touch made-beside")
    learner.reserve("sh train.sh; stat -c %U:%a train.sh", code_digest=digest)
    learner.start()
    last = await learner.ended()
    assert (last.exit and last.exit.code) == 0, learner.intake.text("stderr")
    assert learner.intake.text()[0] == "I run"


async def test_code_that_is_no_archive_fails_the_learner_with_a_reason(learner: HelperTest) -> None:
    learner.reserve("true", code_digest=learner.upload(b"not a zip at all"))
    learner.start()
    last = await learner.ended()
    assert (last.phase.value, last.reason, last.exit) == ("STORED", "CodeInvalid", None)
    assert "not a zip" in last.message
    assert not (learner.folder / "go").exists()


async def test_each_of_ten_thousand_lines_is_shipped_once_while_the_helper_is_killed(learner: HelperTest) -> None:
    learner.reserve("i=0; while [ $i -lt 10000 ]; do echo line $i; i=$((i+1)); done; sleep 0.3; echo end")
    learner.start()
    for at in (500, 3000, 6000, 9000):
        await until(lambda at=at: len(learner.intake.lines) >= at)  # type: ignore[misc]
        learner.kill_helper()
        learner.start_helper()
    await learner.ended()
    assert learner.intake.text() == [*(f"line {number}" for number in range(10_000)), "end"]
    offsets = [line.offset for key, line in learner.intake.lines if key[4] == "stdout"]
    assert offsets == sorted(set(offsets))
    seqs = [report.seq for report in learner.intake.reports]
    assert seqs == sorted(set(seqs))


async def test_no_line_is_lost_when_the_metrics_service_restarts_at_another_address(
    learner: HelperTest,
) -> None:
    go_on = "until [ -e $JOB_STATE_DIR/go-on ]; do sleep 0.01; done"
    learner.reserve(f"for i in $(seq 0 19); do echo $i; done; {go_on}; for i in $(seq 20 39); do echo $i; done")
    learner.start()
    await until(lambda: len(learner.intake.lines) == 20)
    await learner.intake.stop()
    first_ms = learner.intake.lines[0][1].time_ms
    await until(lambda: time.time_ns() // 1_000_000 - first_ms > 500)
    (learner.folder / "job" / "go-on").touch()
    await until((learner.folder / "runs/1/exit.json").exists)
    learner.intake.address = free_address()
    learner.metrics_at(learner.intake.address)
    await learner.intake.start()
    await learner.ended()
    assert learner.intake.text() == [str(number) for number in range(40)]
    times = [line.time_ms for _, line in learner.intake.lines]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 500, "lines keep the time at which they were written"


@pytest.mark.parametrize(("held", "away"), [("Report", "Append"), ("Append", "Report")])
async def test_helper_ends_and_no_line_is_lost_when_the_metrics_service_moves_during_a_call(
    learner: HelperTest, held: str, away: str
) -> None:
    # The user saw: the learner was stored, the helper's last log line was append.recovered, and it never ended.
    learner.reserve("echo x; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.01; done; echo y")
    learner.start()
    await until(lambda: learner.intake.text() == ["x"])
    former, learner.intake = learner.intake, learner.intake.moved(free_address())
    await learner.intake.start()
    try:
        former.hold, former.away = {held}, {away}
        (learner.folder / "job" / "end").touch()
        await until(lambda: former.held)
        learner.metrics_at(learner.intake.address)
        await until(lambda: learner.intake.appends + learner.intake.sent)
        await former.stop()
        last = await learner.ended()
    finally:
        await learner.intake.stop()
    assert (last.phase.value, last.message) == ("STORED", "")
    assert learner.intake.text() == ["x", "y"]


async def test_helper_whose_reporting_fails_ends_so_that_the_next_one_continues(learner: HelperTest) -> None:
    class FailingWatch(ShimWatch):
        async def follow_control(self, intake: IntakeClient, reporter: Reporter) -> None:
            def fail(mark: StopMark) -> None:
                raise ValueError(mark.cause)

            reporter.on_stop = fail

    learner.intake.stop_learner("halt", 1000)
    learner.reserve("true")
    folder = LearnerFolder(learner.folder)
    with pytest.raises(RuntimeError, match="reporting has ended"):
        await Helper(folder, FailingWatch(folder)).run()


async def test_points_and_progress_are_read_from_reports_and_from_json_on_stdout(learner: HelperTest) -> None:
    report = json.dumps({"time_ms": 5, "step": 1, "values": {"loss": 0.5, "bad": "NaN"}, "context": {"subset": "val"}})
    progress = json.dumps({"time_ms": 6, "step": None, "values": {}, "progress": {"fraction": 0.25, "eta_s": 2}})
    learner.reserve(
        f"echo '{report}' >> $JOB_STATE_DIR/metrics.jsonl; echo '{progress}' >> $JOB_STATE_DIR/metrics.jsonl;"
        """ echo '{"step": 2, "accuracy": 0.9}'; echo '{"step": "nonsense"'; mkdir $LOG_DIR/m;"""
        """ echo '{"metrics": {"f1": 1}, "step": 3}' > $LOG_DIR/m/x.jsonl;"""
        " until [ -e $JOB_STATE_DIR/end ]; do sleep 0.05; done",
        metrics_files=("m/x.jsonl",),
    )
    learner.start()
    await until(lambda: learner.intake.progress and learner.intake.progress[-1] == (0.25, 2000))
    (learner.folder / "job" / "end").touch()
    await learner.ended()
    assert learner.intake.values("loss") == [(1, 0.5)]
    assert learner.intake.values("accuracy") == [(2, 0.9)]
    assert learner.intake.values("f1") == [(3, 1.0)]
    (loss,) = [point for _, point in learner.intake.points if point.name == "loss"]
    assert (loss.time_ms, dict(loss.context)) == (5, {"subset": "val"})
    assert learner.intake.text() == ['{"step": 2, "accuracy": 0.9}', '{"step": "nonsense"']


@pytest.mark.parametrize(("count", "pause_s"), [(200, 0.01), (40, 0.07)])
async def test_lines_that_no_client_follows_are_sent_in_few_requests(
    learner: HelperTest, count: int, pause_s: float
) -> None:
    """A request per line would cost a training with ten steps a second more than all else that its helper does."""
    learner.intake.gather_ms = 60_000
    learner.reserve(f"for i in $(seq {count}); do echo line $i; sleep {pause_s}; done")
    learner.start()
    await learner.ended()
    assert learner.intake.text() == [f"line {number}" for number in range(1, count + 1)]
    assert learner.intake.appends < 25


async def test_learner_waits_for_the_others_and_can_be_stopped_meanwhile(learner: HelperTest) -> None:
    learner.intake.go = False
    learner.reserve("echo never")
    learner.start()
    await until(lambda: learner.intake.last and learner.intake.last.phase == "READY")
    assert not (learner.folder / "go").exists()
    learner.stop("halt", 1000)
    last = await learner.ended()
    assert (last.exit and last.exit.stop_cause) == "halt"
    assert learner.intake.lines == []


async def test_learner_of_a_superseded_attempt_never_starts(learner: HelperTest) -> None:
    learner.intake.current = False
    learner.reserve("echo never")
    learner.start()
    await until(lambda: learner.intake.sent >= 3)
    assert not (learner.folder / "go").exists()


async def test_killed_learner_reports_its_end_and_stores_nothing(learner: HelperTest) -> None:
    learner.reserve("echo x > $RESULT_DIR/x; echo started; sleep 60")
    learner.start()
    await until(lambda: learner.intake.text() == ["started"])
    learner.stop("kill", 0)
    last = await learner.ended()
    assert last.exit
    assert (last.exit.signal, last.exit.stop_cause) == (9, "kill")
    assert learner.objects("results") == {}


async def test_second_helper_of_a_learner_exits_at_once(learner: HelperTest) -> None:
    learner.reserve("until [ -e $JOB_STATE_DIR/end ]; do sleep 0.05; done")
    learner.start()
    await until((learner.folder / "helper.json").exists)
    first = learner.helper
    learner.start_helper()
    second = learner.helper
    assert second
    await until(lambda: second.poll() is not None)
    assert second.returncode == 75
    learner.helper = first
    (learner.folder / "job" / "end").touch()
    await learner.ended()


async def test_only_plain_files_of_the_learner_are_stored(learner: HelperTest) -> None:
    learner.reserve(
        "cd $RESULT_DIR; ln -s /etc/passwd link; ln -s / root; mkfifo pipe; truncate -s 5T holes; echo fine > fine;"
        " printf x > 'new\nline'; rm -r $LOG_DIR; ln -s /etc $LOG_DIR; rm $JOB_STATE_DIR/metrics.jsonl 2>&1;"
        " ln -s /etc/hostname $JOB_STATE_DIR/metrics.jsonl; true"
    )
    learner.start()
    last = await learner.ended()
    assert learner.objects("results") == {"worker-0/fine": b"fine\n", "worker-0/new\\x0aline": b"x"}
    assert sorted(learner.objects("logs")) == [f"learner-1/{n}" for n in ("stderr.1", "stdout.1", "training-log.txt")]
    assert "left out" in last.message
    assert last.exit
    assert last.exit.code == 0


async def test_full_disk_of_the_metrics_service_does_not_delay_the_end(
    learner: HelperTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner.intake.refuse = NoSpace("the disk is full", retry_after_s=0.1)
    learner.reserve("echo x; echo kept > $RESULT_DIR/out")
    learner.start()
    await until((learner.folder / "runs/1/exit.json").exists)
    learner.intake.refuse = None
    await learner.ended()
    assert learner.intake.text() == ["x"]


async def test_lines_refused_by_a_full_disk_are_sent_after_a_restart_of_the_service(learner: HelperTest) -> None:
    # The user saw: the last lines of completed jobs were only in their stored logs.
    learner.reserve("true")
    folder = LearnerFolder(learner.folder)
    assignment = folder.assignment()
    stdout = learner.folder / "runs" / "1" / "stdout"
    stdout.parent.mkdir(parents=True, exist_ok=True)
    stdout.write_text("x\n")
    os.chown(stdout, assignment.learner_uid, -1)
    intake = IntakeClient(Path(assignment.addresses_file), assignment.learner.token)
    shipper = Shipper(folder, assignment, Spool(folder.root / "spool"), intake)
    learner.intake.refuse = NoSpace("the disk is full", retry_after_s=0.1)
    shipping = asyncio.create_task(shipper.run())
    try:
        await until(lambda: shipper.refused_since is not None)
        await learner.intake.stop()
        await until(lambda: shipper.refused_since is None)
        assert shipper.stuck_since is not None
        learner.intake.refuse = None
        await learner.intake.start()
        await until(lambda: learner.intake.text() == ["x"])
    finally:
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        await intake.close()


@pytest.fixture
async def shipped(learner: HelperTest, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[TextIO]:
    """Stdout of a learner whose lines and heartbeats are sent often."""
    monkeypatch.setattr("services.helper.reporter.BEAT_S", 0.2)
    learner.reserve("true")
    folder = LearnerFolder(learner.folder)
    assignment = folder.assignment()
    stdout = learner.folder / "runs" / "1" / "stdout"
    stdout.parent.mkdir(parents=True, exist_ok=True)
    stdout.touch()
    os.chown(stdout, assignment.learner_uid, -1)
    intake = IntakeClient(Path(assignment.addresses_file), assignment.learner.token)
    spool = Spool(folder.root / "spool")
    status = LearnerStatus(name="worker-0", role="worker", rank=0, attempt=1, seq=0, phase=Phase.PROCESSING)
    reporter = Reporter(intake, spool, status, lambda: Progress(fraction=0.5))
    shipper = Shipper(folder, assignment, spool, intake, heartbeats=reporter)
    tasks = [asyncio.create_task(task) for task in (shipper.run(), reporter.run())]
    try:
        with stdout.open("a", buffering=1) as file:
            yield file
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await intake.close()


async def write_until(file: TextIO, condition: Callable[[], bool]) -> None:
    """Writes a line each time the condition is looked at."""

    def write_and_look() -> bool:
        file.write("line\n")
        return condition()

    await until(write_and_look)


async def test_heartbeats_of_a_learner_that_writes_travel_with_its_lines(learner: HelperTest, shipped: TextIO) -> None:
    await write_until(shipped, lambda: learner.intake.appends > 1)
    beats, progress = learner.intake.beats, len(learner.intake.progress)
    await write_until(shipped, lambda: len(learner.intake.progress) >= progress + 20)
    assert learner.intake.beats - beats <= 3  # a busy machine may delay a line
    await until(lambda: learner.intake.beats >= beats + 5)  # without lines each is a call again
    assert set(learner.intake.progress) == {(0.5, -1)}


async def test_heartbeats_reach_a_service_that_does_not_take_them_with_lines(
    learner: HelperTest, shipped: TextIO
) -> None:
    learner.intake.takes_beats = False
    await write_until(shipped, lambda: learner.intake.beats >= 5)


async def test_refused_batch_does_not_block_later_lines(learner: HelperTest) -> None:
    learner.intake.poison = "poison"
    # The later line is not in the batch of the one that is refused: that batch is replaced by a notice as a whole.
    learner.reserve("echo poison; echo fine >&2; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.05; done; echo after")
    learner.start()
    await until(learner.intake.text)
    (learner.folder / "job" / "end").touch()
    await learner.ended()
    assert learner.intake.text("stderr") == ["fine"]
    assert learner.intake.text()[-1] == "after"
    assert "could not be shown" in learner.intake.text()[0]


async def test_checkpoints_of_an_attempt_are_restored_in_the_next(
    learner: HelperTest,
) -> None:
    learner.reserve("mkdir $CHECKPOINT_DIR/s; echo one > $CHECKPOINT_DIR/s/1")
    learner.start()
    await learner.ended()
    assert learner.checkpoint() == {"s/1": b"one\n"}
    *_, record = learner.snapshots()
    assert (record.final, record.complete, record.files, record.size) == (True, True, 1, 4)
    assert learner.intake.last is not None
    assert learner.intake.last.checkpoint is not None
    assert learner.intake.last.checkpoint.files == 1
    learner.end()
    last = await learner.ran(
        "cat $CHECKPOINT_DIR/s/1; echo two > $CHECKPOINT_DIR/s/1 && echo mine",
        attempt=2,
        checkpoint_attempts=(1,),
    )
    assert learner.intake.text() == ["one", "mine"], last


async def test_damaged_checkpoint_fails_the_learner(learner: HelperTest) -> None:
    await learner.ran("echo one > $CHECKPOINT_DIR/weights")
    base = learner.home / "objects" / "tenants" / TENANT / "jobs" / JOB / "attempts" / "1" / "checkpoints"
    (base / "worker-0" / hashlib.sha256(b"one\n").hexdigest()).write_text("two\n")
    learner.end()
    last = await learner.ran("true", attempt=2, checkpoint_attempts=(1,))
    assert last.reason == "CheckpointInvalid"


async def test_python_of_the_environment_is_first_in_path(learner: HelperTest) -> None:
    digest = learner.code(main_py="import sys; print(sys.prefix)")
    last = await learner.ran("python main.py", framework="python-3.11", code_digest=digest)
    assert len(learner.intake.text()) == 1, (last, learner.intake.text("stderr"), learner.log)
    assert learner.intake.text()[0].startswith(str(learner.home / "cache" / "envs"))
    assert last.env_digest.removeprefix("sha256:") in learner.intake.text()[0]


async def test_environment_half_built_by_a_killed_helper_is_built_again(learner: HelperTest) -> None:
    learner.reserve("python -c 'import sys; print(sys.version_info.major)'", framework="python-3.11")
    learner.start()
    await until(lambda: list((learner.home / "cache" / "envs").glob("*.lock")))
    learner.kill_helper()
    learner.start_helper()
    await learner.ended()
    assert learner.intake.text() == ["3"]


async def test_requirement_that_is_no_name_fails_the_learner_with_its_line(learner: HelperTest) -> None:
    last = await learner.ran("true", code_digest=learner.code(requirements_txt="git+https://host/x\n"))
    assert last.reason == "EnvironmentFailed"
    assert "line 1" in last.message


async def test_local_data_is_available_if_the_operator_allows_its_folder(learner: HelperTest) -> None:
    data = learner.home / "allowed" / "mnist"
    data.mkdir(parents=True)
    (data / "train.csv").write_text("1,2\n")
    learner.reserve(
        "cat $DATA_DIR/data/train.csv", inputs=(Input(mount="data", type="local", location=str(data), path=""),)
    )
    learner.start()
    last = await learner.ended()
    assert learner.intake.text() == ["1,2"], last
    assert last.data_digest


async def test_local_data_outside_allowed_folders_is_denied(learner: HelperTest) -> None:
    learner.reserve("true", inputs=(Input(mount="data", type="local", location="/etc", path=""),))
    learner.start()
    last = await learner.ended()
    assert last.reason == "DataStoreDenied"
    assert "WEFT_DATA_PATHS" in last.message


def test_folder_of_a_learner_cannot_be_listed_by_other_users(learner: HelperTest) -> None:
    learner.reserve("true")
    assert stat.S_IMODE(learner.folder.stat().st_mode) == 0o711

"""What a learner uses of its machine: measured from groups, processes or a pod's file, and shipped once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.domain.usage import USAGE
from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.core.runtime.learner_folder import LearnerFolder
from services.helper.ship.points import parse_report
from services.helper.ship.usage_source import UsageSource
from services.helper.usage import USAGE_FILE, MachineUsage, PodUsage, Usage

BUSY = """
import sys, time
held = bytearray(b"x") * 50_000_000
while time.process_time() < 0.4:
    pass
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    """A process that has used 0.4 seconds of CPU, holds 50 MB, and lives until the test ends."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "busy\n"
        yield process
        process.communicate("")


def test_memory_and_cpu_of_processes_below_the_shim_are_summed(busy: subprocess.Popen[str]) -> None:
    usage = MachineUsage((), os.getpid).read()
    assert usage.cpu_s is not None
    assert usage.memory is not None
    assert usage.cpu_s >= 0.3
    assert usage.memory >= 50_000_000
    assert MachineUsage((), lambda: busy.pid).read().memory is None
    assert MachineUsage((), lambda: None).read().memory is None


@pytest.mark.parametrize(
    ("files", "cpu_s", "memory"),
    [
        (
            {
                "cpu.stat": "usage_usec 2500000\nuser_usec 1",
                "memory.current": "900",
                "memory.stat": "inactive_file 300",
            },
            2.5,
            600,
        ),
        (
            {"cpuacct.usage": "2500000000", "memory.usage_in_bytes": "900", "memory.stat": "total_inactive_file 300"},
            2.5,
            600,
        ),
        ({"cpu.stat": "usage_usec 1000000", "memory.current": "900"}, 1.0, 900),
        ({"memory.current": "max"}, None, None),
    ],
)
def test_control_groups_of_both_versions_are_read(
    tmp_path: Path, files: dict[str, str], cpu_s: float | None, memory: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    usage = MachineUsage((str(tmp_path / "missing"), str(tmp_path)), lambda: None).read()
    assert (usage.cpu_s, usage.memory) == (cpu_s, memory)


def test_declared_gpus_without_a_driver_are_not_measured() -> None:
    usage = MachineUsage((), os.getpid, (0, 1)).read()
    assert (usage.gpus, usage.gpu_memory) == (None, None)


def test_gpus_in_use_are_shipped_beside_cpu_and_memory() -> None:
    machine = Machine(gpus=1.4, gpu_memory=9_000)
    source = machine.source()
    source.refresh()
    machine.now_s += 1
    source.refresh()
    assert points(source.next_batch(1, 1))[2:] == [(0, "system/gpu", 1.4), (0, "system/gpu_memory", 9_000)]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"memory": true, "cpu_us": "1"}', '{"memory": -1, "cpu_us": 1e9}', '{"memory": 1e400}']
)
def test_what_a_learner_writes_in_place_of_its_pods_usage_is_not_believed(tmp_path: Path, text: str) -> None:
    file = tmp_path / USAGE_FILE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert PodUsage(LearnerFolder(tmp_path)).read() == Usage(clock_s=0.0)


def test_a_pods_usage_is_that_of_its_entry_process(tmp_path: Path) -> None:
    file = tmp_path / USAGE_FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"clock_cs": 250, "cpu_us": 1_500_000, "memory": 7}))
    assert PodUsage(LearnerFolder(tmp_path)).read() == Usage(clock_s=2.5, cpu_s=1.5, memory=7)


class Machine:
    """A learner that uses 1.5 CPUs, and a clock."""

    def __init__(self, gpus: float | None = None, gpu_memory: int | None = None) -> None:
        self.gpus, self.gpu_memory = gpus, gpu_memory
        self.now_s = 100.0
        self.read_at: list[float] = []

    def read(self) -> Usage:
        self.read_at.append(self.now_s - 100)
        return Usage(
            clock_s=self.now_s, cpu_s=1.5 * self.now_s, memory=1000, gpus=self.gpus, gpu_memory=self.gpu_memory
        )

    def source(self) -> UsageSource:
        return UsageSource(
            Source(source="usage"), self, clock=lambda: round(self.now_s * 1000), monotonic=lambda: self.now_s
        )


def points(batch: SourceBatch | None) -> list[tuple[int, str, float]]:
    assert batch is not None
    assert all(dict(point.context) == USAGE for point in batch.points)
    return [(point.offset, point.name, point.value) for point in batch.points]


def test_usage_is_measured_after_a_second_then_every_few_seconds_and_less_often_later() -> None:
    machine = Machine()
    source = machine.source()
    for _ in range(4000):
        source.refresh()
        machine.now_s += 1
    pauses = [later - before for before, later in zip(machine.read_at, machine.read_at[1:], strict=False)]
    assert machine.read_at[:4] == [0, 1, 6, 11]
    assert pauses[-1] == 30
    assert pauses[1:] == sorted(pauses[1:])


def test_each_sample_is_sent_until_it_is_taken_and_only_once() -> None:
    machine = Machine()
    source = machine.source()
    source.refresh()
    assert source.next_batch(1, 1) is None
    machine.now_s += 1
    source.refresh()
    first = source.next_batch(1, 1)
    assert first is not None
    assert points(first) == [(0, "system/cpu", 1.5), (0, "system/memory", 1000)]
    machine.now_s += 5
    source.refresh()
    assert source.next_batch(1, 1) == first
    source.accept(first, 1)
    assert points(source.next_batch(1, 1))[0] == (1, "system/cpu", 1.5)


def test_a_helper_that_starts_again_goes_on_after_the_stored_samples() -> None:
    machine = Machine()
    source = machine.source()
    source.resume(0, 7, final=False)
    source.refresh()
    machine.now_s += 1
    source.refresh()
    source.finish()
    batch = source.next_batch(1, 1)
    assert batch is not None
    assert (batch.start, batch.end, batch.final) == (7, 8, True)
    assert not source.is_done
    source.accept(batch, 8)
    assert source.is_done


def test_a_batch_that_begins_elsewhere_than_the_service_expects_is_dropped() -> None:
    machine = Machine()
    source = machine.source()
    for _ in range(2):
        source.refresh()
        machine.now_s += 1
    batch = source.next_batch(1, 1)
    assert batch is not None
    source.accept(batch, 40)
    source.finish()
    assert source.next_batch(1, 1) == SourceBatch(source=batch.source, start=40, end=40, final=True)


def test_a_training_cannot_report_usage_in_place_of_the_platform() -> None:
    report = parse_report(b'{"step": 1, "system/memory": 5, "context": {"weft": "usage", "subset": "val"}}')
    assert report is not None
    assert report.context == {"subset": "val"}

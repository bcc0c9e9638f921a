"""Jobs on real GPUs: what learners see and use of them, who waits, and what is left."""

from __future__ import annotations

import json
import subprocess
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._job import Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits-pytorch"
GIB = 1 << 30
HOLDS = """
    import os, sys, time, torch
    held = torch.zeros({gib} << 28, device="cuda")
    print("holds", torch.cuda.memory_allocated() >> 30, flush=True)
    while not os.path.exists("go"):
        held.mul_(0.5).add_(1)
        torch.cuda.synchronize()
"""
"""Keeps its GPU busy and so many GiB of its memory."""


def driver(query: str) -> list[str]:
    """A column of nvidia-smi, a line for each GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def memory_used() -> int:
    """Bytes, on all GPUs."""
    return sum(int(line) for line in driver("memory.used")) << 20


def spec(interpreter: str, program: str, *, gpus: float, **fields: Any) -> dict[str, Any]:
    """A job of which each learner runs a Python program."""
    resources = {"cpus": 1, "memory": "8GiB", "gpus": gpus}
    return {"name": "gpu", "command": [interpreter, "-c", textwrap.dedent(program)], "resources": resources, **fields}


def texts(job: Job) -> list[str]:
    return [line.text for line in job.logs() if line.stream == "stdout"]


def printed(job: Job, text: str) -> bool:
    assert not job.refresh().at_rest, (job.status, job.message, [line.text for line in job.logs()])
    return text in texts(job)


def values(job: Job, name: str) -> list[float]:
    """Of a metric of a job with one learner, oldest first."""
    return [value for series in job.series(name=name) for value in series.values]


def test_platform_offers_the_gpus_that_the_driver_shows(client: Client) -> None:
    names = driver("name")
    [node] = client.cluster(tenant="*")["nodes"]
    assert (node["gpus"], node["gpu_type"]) == (len(names), names[0])


def test_learner_sees_as_many_gpus_as_it_asked_for(client: Client, interpreter: str) -> None:
    program = """
        import torch
        print(torch.cuda.device_count(), torch.cuda.get_device_name(), float(torch.ones(9, device="cuda").sum()))
    """
    job = client.jobs.submit(spec(interpreter, program, gpus=1)).wait(HANG_S)
    assert (job.status, texts(job)) == ("COMPLETED", [f"1 {driver('name')[0]} 9.0"]), [x.text for x in job.logs()]


def test_learner_without_gpus_cannot_use_one(client: Client, interpreter: str, isolation: str) -> None:
    program = """
        import os
        if {bypass}:
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        import torch
        print(torch.cuda.is_available(), os.path.exists("/dev/nvidia0"))
    """
    honest = client.jobs.submit(spec(interpreter, program.format(bypass=False), gpus=0)).wait(HANG_S)
    assert [text.split()[0] for text in texts(honest)] == ["False"]
    if isolation == "sandbox":  # the other keeps no device file from a learner: docs/limits.md
        hostile = client.jobs.submit(spec(interpreter, program.format(bypass=True), gpus=0)).wait(HANG_S)
        assert texts(hostile) == ["False False"]


def test_example_trains_on_its_gpu_is_halted_and_goes_on_from_its_checkpoint(
    client: Client, interpreter: str, tmp_path: Path
) -> None:
    document = {
        "name": "digits",
        "command": [interpreter, "train.py", "--epochs", "60", "--slow", "20"],
        "resources": {"cpus": 1, "memory": "8GiB", "gpus": 1},
        "distribution": "torchrun",
        "grace": "60s",
    }
    job = client.jobs.submit(document, code=EXAMPLE)
    eventually(lambda: len(values(job, "loss")) > 150, 2 * HANG_S)
    job.halt()
    eventually(lambda: job.refresh().status == "HALTED" and job.at_rest)
    job.resume()
    job.wait(2 * HANG_S)
    assert job.status == "COMPLETED", (job.message, [line.text for line in job.logs()])
    lines = texts(job)
    assert f"rank 0 of 1: training on {driver('name')[0]}" in lines
    assert any(line.startswith("rank 0: continuing after step ") for line in lines)
    job.download(tmp_path)
    [summary] = [json.loads(path.read_text()) for path in tmp_path.rglob("metrics.json")]
    assert summary["accuracy"] > 0.95
    assert all(0 <= busy <= 1 for busy in values(job, "system/gpu"))
    assert max(values(job, "system/gpu_memory")) > 0


def test_use_of_a_gpu_and_of_its_memory_is_measured_while_it_trains(client: Client, interpreter: str) -> None:
    job = client.jobs.submit(spec(interpreter, HOLDS.format(gib=4), gpus=1))
    try:
        eventually(lambda: printed(job, "holds 4"))
        eventually(lambda: any(busy > 0.5 for busy in values(job, "system/gpu")))
        assert 4 * GIB <= max(values(job, "system/gpu_memory")) <= int(driver("memory.total")[0]) << 20
    finally:
        job.kill().wait(HANG_S)


def test_killed_job_gives_back_the_memory_of_its_gpu_before_the_next_one_starts(
    client: Client, interpreter: str
) -> None:
    before = memory_used()
    holder = client.jobs.submit(spec(interpreter, HOLDS.format(gib=8), gpus=len(driver("name"))))
    eventually(lambda: printed(holder, "holds 8"))
    assert memory_used() >= before + 8 * GIB
    program = "import torch; free, total = torch.cuda.mem_get_info(); print(total - free)"
    waiting = client.jobs.submit(spec(interpreter, program, gpus=1))
    eventually(lambda: "GPU" in str(waiting.explain()))
    assert waiting.refresh().status == "QUEUED"
    holder.kill()
    waiting.wait(HANG_S)
    assert (waiting.status, holder.refresh().status) == ("COMPLETED", "KILLED")
    assert int(texts(waiting)[0]) < before + 2 * GIB


def test_learners_with_half_a_gpu_each_share_it(client: Client, interpreter: str, weft_up: Platform) -> None:
    jobs = [client.jobs.submit(spec(interpreter, HOLDS.format(gib=1), gpus=0.5)) for _ in range(2)]
    try:
        for job in jobs:
            eventually(partial(printed, job, "holds 1"))
        assert 'weft_node_gpus{state="used"} 1.0' in weft_up.metrics("node")
    finally:
        for job in jobs:
            job.kill().wait(HANG_S)


def test_gpu_out_of_memory_is_explained(client: Client, interpreter: str) -> None:
    program = "import torch; torch.zeros(1 << 40, device='cuda')"
    job = client.jobs.submit(spec(interpreter, program, gpus=1)).wait(HANG_S)
    assert job.status == "FAILED"
    answer = job.explain()
    assert "CUDA out of memory" in answer["cause"]
    assert "memory of the GPU" in " ".join([answer["cause"], *answer["hints"]])

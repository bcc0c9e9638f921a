"""Trains a job of two learners, and checks its curve and its results: what `helm test` runs.

    python -m services.local.training_check --url http://weft-api:8080 --key-file F

The job needs Python and no framework: each learner fits a line to its half of some points by gradient descent. It is
deleted afterwards.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import WeftError
from weft import Client, Job, NotFinished
from weft import WeftError as ClientError

LEARNERS: Final = 2
_STEPS: Final = 20
_CODE: Final = """\
import json, os
import weft
rank = int(os.environ["WEFT_RANK"])
points = [(x / 10, 3 * x / 10 + 1) for x in range(rank, 20, 2)]
slope = offset = 0.0
for step in range({steps}):
    errors = [(slope * x + offset - y, x) for x, y in points]
    weft.report(step=step, loss=sum(error * error for error, _ in errors) / len(errors))
    slope -= 0.2 * sum(error * x for error, x in errors) / len(errors)
    offset -= 0.2 * sum(error for error, _ in errors) / len(errors)
with open(os.path.join(os.environ["RESULT_DIR"], "model.json"), "w") as file:
    json.dump({{"rank": rank, "slope": slope, "offset": offset}}, file)
print("trained by learner", rank, "of", os.environ["WEFT_WORLD_SIZE"], flush=True)
"""


def train(client: Client, *, cpus: float, memory: str, within_s: float) -> str:
    """Returns a line about what was seen. Raises WeftError with what is wrong, and the SDK's errors."""
    spec: dict[str, Any] = {
        "name": "two-learners-check",
        "command": "python3 train.py",
        "learners": LEARNERS,
        "resources": {"cpus": cpus, "memory": memory},
    }
    with tempfile.TemporaryDirectory() as name:
        code, results = Path(name) / "code", Path(name) / "results"
        code.mkdir()
        (code / "train.py").write_text(_CODE.format(steps=_STEPS))
        job = client.jobs.submit(spec, code=code)
        try:
            wait(job, within_s)
            curves = _curves(job.points())
            if sorted(curves) != list(range(LEARNERS)):
                raise WeftError(f"job {job.id} has curves of the learners {sorted(curves)}, not of all {LEARNERS}")
            if bad := [rank for rank, curve in curves.items() if len(curve) != _STEPS or curve[-1] >= curve[0] / 10]:
                raise WeftError(f"job {job.id}: the curves of the learners {bad} are incomplete, or do not fall")
            job.download(results)
            models = list(results.rglob("model.json"))
            if len(models) != LEARNERS:
                raise WeftError(f"job {job.id} has {len(models)} results, not {LEARNERS}")
            falls = ", ".join(f"{curve[0]:.2f} -> {curve[-1]:.2f}" for _, curve in sorted(curves.items()))
            return f"{LEARNERS} learners trained, loss {falls}, {len(models)} results"
        finally:
            remove(job, within_s)


def wait(job: Job, within_s: float) -> None:
    """Returns when the job is complete. Raises WeftError if it ends otherwise, or not within this time."""
    with suppress(NotFinished):
        job.wait(within_s)
    if job.status != "COMPLETED":
        raise WeftError(f"job {job.id} is {job.status} after {within_s:.0f} s at most: {job.message}")


def remove(job: Job, within_s: float) -> None:
    """Kills the job if it has not ended, and deletes it."""
    if not job.at_rest:
        job.kill().wait(within_s)
    job.delete()


def _curves(points: Any) -> dict[int, list[float]]:
    """Rank -> its losses, by step."""
    steps: dict[int, list[tuple[int, float]]] = {}
    for point in points:
        if point.name == "loss":
            steps.setdefault(point.rank, []).append((point.step, point.value))
    return {rank: [value for _, value in sorted(curve)] for rank, curve in steps.items()}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.local.training_check", description=__doc__)
    parser.add_argument("--url", required=True, help="of the api")
    parser.add_argument("--key-file", type=Path, required=True, help="file with an API key")
    parser.add_argument("--cpus", type=float, default=0.25, help="of each learner")
    parser.add_argument("--memory", default="64MiB", help="of each learner")
    parser.add_argument("--within", type=float, default=600, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        with Client(arguments.url, arguments.key_file.read_text().strip()) as client:
            summary = train(client, cpus=arguments.cpus, memory=arguments.memory, within_s=arguments.within)
    except (WeftError, ClientError, OSError, TimeoutError) as error:
        sys.stderr.write(f"two-learner job: {error}\n")
        return 1
    sys.stdout.write(f"{summary}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

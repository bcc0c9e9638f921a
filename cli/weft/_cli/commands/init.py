"""init: a job to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "init": {
        "name": ("text", "Name of the job."),
        "files": ("list of text", "The files that were written."),
    },
}

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SPEC: Final = """\
# A training job. `weft train -h FIELD` explains a field; `weft train` submits this one.
name: {name}
framework: {{name: numpy}}       # `weft frameworks` lists what there is
command: python train.py
code: .                        # this folder is uploaded; .weftignore leaves files out
learners: 1
resources: {{cpus: 1, memory: 1GB}}
max_runtime: 1h
"""

_TRAIN: Final = '''\
"""Fits a line to noisy points by gradient descent: small, but with all that a job needs.

It reports its loss, keeps a checkpoint and goes on from it, stops when it is asked to, and leaves a result.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

import weft  # there in every learner; does nothing outside of one

STEPS = 300
# `weft train --array lr=0.1,0.01 --repeat 3` submits six jobs, with these two variables
LEARNING_RATE = float(os.environ.get("lr", "0.1"))
SEED = int(os.environ.get("SEED", "0"))
RESULTS = Path(os.environ.get("RESULT_DIR", "results"))
CHECKPOINT = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints")) / "state.json"


def save(step: int, slope: float, offset: float) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    new = CHECKPOINT.with_suffix(".new")
    new.write_text(json.dumps({"step": step, "slope": slope, "offset": offset}))
    new.replace(CHECKPOINT)  # a checkpoint is whole, or not there


def main() -> int:
    random = np.random.default_rng(SEED)
    x = random.uniform(-1, 1, 1000)
    y = 3 * x + 0.5 + random.normal(0, 0.1, 1000)

    state = {"step": 0, "slope": 0.0, "offset": 0.0}
    if CHECKPOINT.exists():
        state = json.loads(CHECKPOINT.read_text())
        print(f"going on after step {state['step']}")
    slope, offset = state["slope"], state["offset"]

    for step in range(state["step"] + 1, STEPS + 1):
        error = slope * x + offset - y
        slope -= LEARNING_RATE * float(np.mean(error * x))
        offset -= LEARNING_RATE * float(np.mean(error))
        weft.report(step=step, loss=float(np.mean(error**2)))
        weft.progress(step / STEPS)
        if step % 50 == 0:
            save(step, slope, offset)
            print(f"step {step}: loss {np.mean(error**2):.4f}")
        if weft.checkpoint_requested():
            save(step, slope, offset)
            return 143  # not complete: 0 would say that it is

    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "model.json").write_text(json.dumps({"slope": slope, "offset": offset}))
    print(f"y = {slope:.3f} x + {offset:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


@command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the job; by default the folder's.")
def init_command(call: Call, folder: Path, name: str | None) -> None:
    """Write a job to start from: weft.yaml and train.py.

    What is there already is never overwritten.
    """
    from weft._cli.output import emit
    from weft._errors import Conflict, InvalidRequest
    from weft.spec_text import read_value

    name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")[:63].strip("-._") or "my-job"
    if not _NAME.fullmatch(name):
        message = "1 to 63 letters, digits, '.', '_' or '-', first and last a letter or digit"
        raise InvalidRequest(f"--name {name}: a name has {message}; nothing was written")
    written = name if read_value(name) == name else f"'{name}'"  # 2026 and true are no text without quotes
    wanted = {folder / "weft.yaml": _SPEC.format(name=written), folder / "train.py": _TRAIN}
    there = [str(path) for path in wanted if path.exists()]
    if there:
        raise Conflict(f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    files = [str(path) for path in wanted]
    place = "" if folder.resolve() == Path.cwd() else f" {folder}"
    emit(
        call,
        {"name": name, "files": files},
        names=files,
        people=lambda _wide: f"wrote {' and '.join(files)}\nnext: weft train{place}",
    )

"""Run an example as bare processes: its learners, and nothing of the platform.

    python -m bench.bare --example digits --learners 2 -- --epochs 5

A learner finds the environment that Weft would give it (contracts: "Learner
environment"), so a job's code runs unchanged; the time it takes here is what the
platform's overhead is measured against. It also serves to try how an example behaves:
SIGTERM or Ctrl-C asks all learners to stop, and with the same --state the next run
continues from their checkpoints.

One JSON object goes to stdout, what the learners print to stderr:
{"wall_s": seconds from the first start to the last exit, "exits": [code of each rank,
-N if signal N ended it], "state": folder}. The exit code is 1 if any learner's is not 0.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from services.core.frameworks import find
from services.node.cgroups import enter

REPOSITORY = Path(__file__).resolve().parent.parent.parent

# Exit codes of a learner that was stopped by SIGTERM.
INTERRUPTED = (143, -signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a bare run went."""

    wall_s: float
    """Seconds from the first start to the last exit."""

    exits: tuple[int, ...]
    """Exit code of each rank; -N when signal N ended it."""


def example_spec(example: str) -> dict[str, Any]:
    """The job spec of examples/`example`, as written."""
    spec: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples" / example / "weft.yaml").read_text())
    return spec


def environment_for(spec: Mapping[str, Any], cache: Path) -> Path:
    """The interpreter of an environment with the spec's framework, built at the first use.

    Raises LookupError when the library has no such framework, CalledProcessError when
    uv cannot build it.
    """
    wanted = spec.get("framework") or {"name": "python"}
    framework = find(wanted["name"], wanted.get("version"))
    if framework is None:
        raise LookupError(f"the framework library has no {wanted['name']} {wanted.get('version', '')}")
    digest = hashlib.sha256(framework.lock_text().encode()).hexdigest()[:16]
    folder = cache / f"{framework.name}-{framework.version}-{digest}"
    built = folder / ".built"
    if not built.exists():
        print(f"bench: building {framework.name} {framework.version} (about {framework.size_mb} MB)", file=sys.stderr)
        uv = [str(Path(sys.executable).parent / "uv")]
        quiet_env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
        venv = ["venv", "--quiet", "--clear", "--python", framework.python, str(folder)]
        subprocess.run(uv + venv, check=True, env=quiet_env)
        if framework.lock_text():
            lock = folder / "lock.txt"
            lock.write_text(framework.lock_text())
            # Compiled now: else each start compiles anew where the learner cannot write.
            sync = ["pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", "--python", str(folder)]
            subprocess.run([*uv, *sync, str(lock)], check=True, env=quiet_env)
        built.touch()
    return folder / "bin" / "python"


def free_port() -> int:
    """Returns a TCP port without a listener."""
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def learner_environment(
    *, rank: int, learners: int, port: int, spec: Mapping[str, Any], state: Path, code: Path, python: Path
) -> dict[str, str]:
    """What one learner of a job with a single role sees. Creates the folders it names.

    Each rank's own folders are under `state`/learner-N; the checkpoints are common.
    """
    own = state / f"learner-{rank + 1}"
    folders = {
        "DATA_DIR": own / "data",
        "RESULT_DIR": own / "results",
        "LOG_DIR": own / "logs",
        "JOB_STATE_DIR": own / "state",
        "CHECKPOINT_DIR": state / "checkpoints",
        "HOME": own / "home",
        "TMPDIR": own / "tmp",
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    place, world, address = str(rank), str(learners), "127.0.0.1"
    rendezvous: dict[str, dict[str, str]] = {
        "jax": {
            "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
            "JAX_NUM_PROCESSES": world,
            "JAX_PROCESS_ID": place,
        },
        "torchrun": {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "RANK": place,
            "WORLD_SIZE": world,
            "LOCAL_RANK": "0",
        },
    }
    return {
        **{name: str(folder) for name, folder in folders.items()},
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY / "cli"),
        "PYTHONUNBUFFERED": "1",
        "MODEL_DIR": str(code),
        "TRAINING_ID": "bare",
        "LEARNER_ID": str(rank + 1),
        "NUM_LEARNERS": world,
        "OMP_NUM_THREADS": str(max(1, int(spec["resources"]["cpus"]))),
        "GPU_COUNT": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "WEFT_JOB_ID": "bare",
        "WEFT_ATTEMPT": "1",
        "WEFT_ROLE": "worker",
        "WEFT_RANK": place,
        "WEFT_WORLD_SIZE": world,
        **rendezvous.get(spec.get("distribution", "none"), {}),
    }


def run_bare(
    *,
    example: str,
    learners: int,
    state: Path,
    python: Path,
    arguments: list[str],
    quiet: bool = False,
    groups: Sequence[Sequence[str]] = (),
) -> Outcome:
    """Run the example's command once for each learner, with `arguments` added to it.

    What rank 0 prints goes to stderr unless `quiet`, all else to each learner's
    LOG_DIR/training-log.txt. When a learner fails, the others are killed: they could
    only wait for it. While this runs, SIGTERM and SIGINT ask all learners to stop.
    `groups`: the folders of each rank's control groups, which exist; empty: none.
    """
    spec = example_spec(example)
    code = REPOSITORY / "examples" / example
    command = " ".join([spec["command"].strip(), *map(shlex.quote, arguments)])
    port = free_port()
    processes: dict[int, subprocess.Popen[bytes]] = {}  # by pid; rank is the order
    exits: dict[int, int] = {}

    def signal_all(signum: int) -> None:
        for pid in processes.keys() - exits.keys():
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.killpg(pid, signum)

    def ask_to_stop(_signum: int, _frame: FrameType | None) -> None:
        signal_all(signal.SIGTERM)

    with ExitStack() as undo:
        for signum in (signal.SIGTERM, signal.SIGINT):
            undo.callback(signal.signal, signum, signal.signal(signum, ask_to_stop))
        began = time.monotonic()
        for rank in range(learners):
            environment = learner_environment(
                rank=rank,
                learners=learners,
                port=port,
                spec=spec,
                state=state,
                code=code,
                python=python,
            )
            log = undo.enter_context((Path(environment["LOG_DIR"]) / "training-log.txt").open("ab"))
            output: Any = sys.stderr if rank == 0 and not quiet else log
            process = subprocess.Popen(
                # The shell must outlive the learner, whose exit code it passes on.
                ["/bin/sh", "-c", f"trap exit TERM INT\n{command}"],
                cwd=code,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(enter, groups[rank] if groups else (), 0),  # noqa: PLW1509 - 0: itself
            )
            processes[process.pid] = process
        while len(exits) < learners:
            pid, status = os.wait()
            exits[pid] = processes[pid].returncode = os.waitstatus_to_exitcode(status)
            if exits[pid] not in (0, *INTERRUPTED):
                signal_all(signal.SIGKILL)
        return Outcome(wall_s=time.monotonic() - began, exits=tuple(exits[pid] for pid in processes))

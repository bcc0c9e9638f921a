"""The isolation that learners get on this machine: chosen once, when the agent starts, and shown by `weft status`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import write_json
from services.node import capacity, seccomp, shim
from services.node.sandbox import Sandbox, find_sandbox
from services.node.settings import NodeSettings

ISOLATION_FILE: Final = "node-isolation.json"
"""In WEFT_HOME/run: ``{isolation, why, enforced}``."""
_PROBE_S: Final = 20.0
_TRUSTED: Final = (
    "learners run under the platform's own user, so they can read its files and end its processes: for one tenant that "
    "is trusted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    name: str
    """sandbox | process | trusted: ``process`` without root is not one, and has a name of its own."""
    sandbox: Sandbox | None = None
    private_tmp: bool = False
    """The shim gives learners /tmp, /dev/shm and IPC of their own. In the sandbox they have them anyway."""
    seccomp: str = ""
    """The filter of learners' system calls, in hexadecimal digits; empty: none."""
    why: str = ""
    """Why it is not a better one; empty: there is none better."""

    @property
    def is_trusted(self) -> bool:
        return self.name == "trusted"

    def check_required(self, enforced: Sequence[str], unenforced: str) -> None:
        """WeftError if a stranger's learner could harm others here (``WEFT_NODE_LIMITS=required``).

        ``enforced``: the limits of control groups; ``unenforced``: why there are not more.
        """
        missing = []
        if self.sandbox is None:
            missing.append(f"isolation sandbox (it is {self.name}: {self.why})")
        if not self.seccomp:
            missing.append("a filter of system calls (WEFT_NODE_SECCOMP, on x86_64 or aarch64)")
        if lacking := sorted({"memory", "pids"} - set(enforced)):
            how = "run `weft up` as root, or in a delegated control group: systemd-run --user --scope -p Delegate=yes"
            missing.append(f"control groups for {' and '.join(lacking)} ({unenforced or 'no controller'}; {how})")
        if missing:
            raise WeftError(f"WEFT_NODE_LIMITS=required, but this machine lacks {'; '.join(missing)}")

    def write(self, run: Path, enforced: Sequence[str], unenforced: str) -> None:
        """Writes ``ISOLATION_FILE``, for people: nothing is decided from it."""
        why = _join(self.why, unenforced)
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / ISOLATION_FILE, {"isolation": self.name, "why": why, "enforced": list(enforced)})


def choose(settings: NodeSettings, *, user: int | None) -> Isolation:
    """``user``: a uid that learners run under; None if that is the agent's own.

    WeftError if the isolation that the operator has set does not work on this machine.
    """
    wanted = settings.node_isolation
    calls, unfiltered = _filter(settings)
    if wanted == "process":
        sandbox, why = None, "chosen by WEFT_NODE_ISOLATION=process"
    else:
        sandbox, why = find_sandbox(user, capacity.gpu_minors())
        if sandbox is None and wanted == "sandbox":
            raise WeftError(f"WEFT_NODE_ISOLATION=sandbox does not work: {why}; or set WEFT_NODE_ISOLATION=auto")
    if sandbox is not None:
        return Isolation(name="sandbox", sandbox=sandbox, seccomp=calls, why=_join(why, unfiltered))
    if user is None:
        return Isolation(name="trusted", seccomp=calls, why=_join(why, _TRUSTED, unfiltered))
    shared = _cannot_mount()
    return Isolation(name="process", private_tmp=not shared, seccomp=calls, why=_join(why, shared, unfiltered))


def _filter(settings: NodeSettings) -> tuple[str, str]:
    """The filter of system calls, and why there is none."""
    if not settings.node_seccomp:
        return "", "system calls are not filtered (WEFT_NODE_SECCOMP)"
    program = seccomp.learner_filter()
    if not program:
        return "", "system calls are not filtered: the filter is written for x86_64 and aarch64 only"
    if not seccomp.is_supported():
        return "", "system calls are not filtered: the kernel was built without seccomp"
    return program.hex(), ""


def _cannot_mount() -> str:
    """Why learners cannot have a /tmp of their own; empty if they can."""
    argv = [sys.executable, "-I", "-S", shim.__file__, "--probe"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PROBE_S, check=False, cwd="/", env={})
    except (OSError, subprocess.SubprocessError) as error:
        return f"learners share /tmp and /dev/shm: {error}"
    if done.returncode == 0:
        return ""
    return f"learners share /tmp and /dev/shm: {done.stderr.decode(errors='replace').strip()}"


def _join(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))

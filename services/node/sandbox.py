"""The isolation ``sandbox``: a learner sees the system, read-only, and its own folder, but no others (bubblewrap).

bubblewrap runs under the learner's own user, in a user namespace: it needs no root, and a flaw in it gives a learner no
rights. Its own environment is empty, and it reads its options and the learner's variables from a descriptor
(``shim.command``): nothing of a job reaches it before the sandbox is closed. The learner has its own /tmp (its TMPDIR),
/dev with /dev/shm, /proc and process table, and can make no further user namespace. The network is shared, because the
learners of a gang connect over loopback. Everything that is not bound is absent: WEFT_HOME, other learners, users'
homes.

``--die-with-parent`` is not used: bubblewrap's monitor ends with the command's first process, and a program below a
shell that died of SIGTERM keeps its grace. The shim ends what is left, or the agent if the shim has died.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.plan import Folder
from services.core.runtime.home import Home
from services.core.runtime.learner_folder import JOB_FOLDER, JOB_FOLDERS, LearnerDocument

_SYSTEM: Final = ("/usr", "/opt")
_LINKED: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Links into /usr on most systems, folders on others."""
_ETC: Final = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "OpenCL",
    "os-release",
    "pki",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "ssl",
    "vulkan",
)
"""Files that programs look up. Each adds 0.1 ms to every start."""
_GPU_DEVICES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_PROBE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How bubblewrap works on this machine, as found by ``find_sandbox``."""

    bwrap: str
    private_pids: bool = True
    nested: bool = False
    """The learner could make user namespaces inside, if no filter of system calls refused it (bubblewrap < 0.8)."""
    gpu_minors: tuple[int, ...] = ()
    """The minors of /dev/nvidia<minor>, by GPU index."""

    def _system(self, home: Home | None) -> list[str]:
        """The part of the command line that is the same for all learners."""
        out = [self.bwrap, "--unshare-user", "--unshare-ipc"]
        if not self.nested:
            out.append("--disable-userns")
        for path in _SYSTEM:
            out += ["--ro-bind-try", path, path]
        for path in _LINKED:
            link = Path(path).is_symlink()
            out += ["--symlink", str(Path(path).readlink()), path] if link else ["--ro-bind-try", path, path]
        for name in _ETC:
            out += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        if python := _python():
            out += ["--ro-bind", python, python]
        if home is not None and any(home.root.is_relative_to(path) for path in (*_SYSTEM, python or "/usr")):
            out += ["--tmpfs", str(home.root)]
        out += ["--ro-bind-try", "/sys", "/sys", "--dev", "/dev"]
        return (
            [*out, "--unshare-pid", "--proc", "/proc"] if self.private_pids else [*out, "--ro-bind", "/proc", "/proc"]
        )

    def wrap(self, document: LearnerDocument, folder: Path) -> tuple[str, ...]:
        """The command line, to which the shim appends the environment and the data of the learner, and the command."""
        job, home = str(folder / JOB_FOLDER), Home(Path(document.home))
        out = self._system(home)
        for name in ("passwd", "group"):
            out += ["--ro-bind", str(folder / name), f"/etc/{name}"]
        data, temporary = f"{job}/{JOB_FOLDERS[Folder.DATA]}", f"{job}/{JOB_FOLDERS[Folder.TEMPORARY]}"
        out += ["--bind", temporary, "/tmp", "--symlink", "/tmp", "/var/tmp"]  # noqa: S108 - the learner's own
        out += ["--bind", job, job, "--ro-bind", data, data, "--ro-bind", document.sdk, document.sdk]
        if document.gpus:
            for device in (*(f"nvidia{minor}" for minor in self._minors(document.gpus)), *_GPU_DEVICES):
                out += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
        return (*out, "--remount-ro", "/")

    def _minors(self, indices: Sequence[int]) -> list[int]:
        """GPU slots that were only declared have no device."""
        return [self.gpu_minors[index] for index in indices if index < len(self.gpu_minors)]

    def probe(self, user: int | None) -> str:
        """Runs ``true`` in it. The error message; empty if it works.

        ``user``: a uid that learners run under; None if that is the agent's own.
        """
        argv = [*self._system(None), "--tmpfs", "/tmp", "--remount-ro", "/", "--", "/bin/true"]  # noqa: S108 - its own
        try:
            if user is None:
                done = subprocess.run(argv, capture_output=True, timeout=_PROBE_S, check=False, cwd="/")
            else:
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    timeout=_PROBE_S,
                    check=False,
                    cwd="/",
                    user=user,
                    group=user,
                    extra_groups=[],
                )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode == 0:
            return ""
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ends with code {done.returncode}"


def find_sandbox(user: int | None, gpu_minors: tuple[int, ...]) -> tuple[Sandbox | None, str]:
    """The best sandbox of this machine, and what it lacks; or None, the reason, and what to do.

    ``user``: as for ``Sandbox.probe``.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return None, "bubblewrap is not installed: apt-get install bubblewrap"
    why = ""
    lacks = {
        (True, False): "",
        (True, True): "user namespaces inside are refused by the filter of system calls only",
        (False, False): "without a process table of its own",
        (False, True): "without a process table of its own; user namespaces inside are refused by the filter only",
    }
    for (private_pids, nested), lack in lacks.items():
        if user is None and not private_pids:
            continue  # learners have the platform's user, and could end its processes and those of other learners
        sandbox = Sandbox(bwrap, private_pids=private_pids, nested=nested, gpu_minors=gpu_minors)
        failure = sandbox.probe(user)
        if not failure:
            return sandbox, f"{lack}: {why}" if lack else ""
        why = why or failure
    return None, f"bubblewrap does not work here: {why} ({_advice()})"


def _advice() -> str:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        return "allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return (
        "it needs user namespaces: see sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone; "
        "a container must be allowed to make them"
    )


def _python() -> str:
    """The folder of the Python that environments are made with, if it is outside the system's folders.

    Empty if it is inside, or if learners could not run it.
    """
    prefix = Path(sys.base_prefix).resolve()
    if any(prefix.is_relative_to(path) for path in _SYSTEM):
        return ""
    if os.geteuid() == 0 and not all(path.stat().st_mode & stat.S_IXOTH for path in (prefix, *prefix.parents)):
        return ""
    return str(prefix)


def accounts(document: LearnerDocument) -> dict[str, str]:
    """/etc/passwd and /etc/group of the sandbox: many programs look up the name of their user."""
    uid, gid, home = document.uid, document.gid, document.env["HOME"]
    entry = "" if uid == 0 else f"weft:x:{uid}:{gid}:Weft learner:{home}:/bin/sh\n"
    return {
        "passwd": f"root:x:0:0:root:/:/bin/sh\n{entry}nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        "group": f"root:x:0:\n{'' if gid == 0 else f'weft:x:{gid}:'}\nnogroup:x:65534:\n".replace("\n\n", "\n"),
    }

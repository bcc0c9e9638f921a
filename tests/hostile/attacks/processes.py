"""Attacks on the end: processes that outlive it, cannot be waited for, or take the platform's place."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.hostile.attacks.ground import FORGED, detached, folder, intel, must_fail, say, show, tried

_BOUND_S = 90.0
"""Every process that an attack leaves ends by itself after this time, in seconds."""


def _stay() -> None:
    deadline = time.monotonic() + _BOUND_S
    while time.monotonic() < deadline:
        time.sleep(0.1)


def daemons_outlive() -> None:
    """Leaves ten daemons: forked twice, in sessions of their own, without environment and with SIGTERM ignored."""

    def daemon() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", "90"], {})

    for _ in range(10):
        detached(daemon)


def daemons_fork_for_ever() -> None:
    """Leaves a process that forks and ends, a hundred times a second, so that no list of processes holds it."""

    def run_away() -> None:
        deadline = time.monotonic() + _BOUND_S
        while time.monotonic() < deadline:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.01)

    detached(run_away)


def sigterm_is_ignored() -> None:
    """Ignores every signal that can be ignored, and stays."""
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    (folder("JOB_STATE_DIR") / "ready").touch()
    _stay()


def processes_stop_themselves() -> None:
    """Stops itself and its parent by SIGSTOP; what stands outside the sandbox must not stop."""
    (folder("JOB_STATE_DIR") / "ready").touch()
    with suppress(OSError):
        if Path(f"/proc/{os.getppid()}").stat().st_uid == os.getuid() and os.getppid() not in intel()["pids"]:
            os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    _stay()


def parent_is_killed() -> None:
    """Sends SIGKILL, SIGSTOP and SIGUSR1 to the process above the learner's first."""
    parent = os.getppid()
    for number in (signal.SIGUSR1, signal.SIGKILL):
        with suppress(OSError):
            os.kill(parent, number)
            say(f"{number} to {parent}")


def zombies_are_left() -> None:
    """Leaves three hundred children that nobody waits for, below a parent that has stopped."""
    for _ in range(300):
        if os.fork() == 0:
            os._exit(0)

    def stopped() -> None:
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)

    detached(stopped)


def core_is_dumped() -> None:
    """Dies of SIGSEGV with the limit of core files raised."""
    subprocess.run(
        ["/bin/sh", "-c", "ulimit -c unlimited 2>/dev/null; ulimit -c; cd $TMPDIR; kill -SEGV $$"], check=False
    )
    say([str(path) for path in Path.cwd().glob("core*")])
    for path in (*Path.cwd().glob("core*"), *folder("TMPDIR").glob("core*")):
        say(f"BREACH a core file: {path}")


def work_is_scheduled() -> None:
    """Uses at, batch, crontab, systemd-run, nohup and files of cron to run again after its end."""
    for words in (
        ["at", "now + 1 minute"],
        ["batch"],
        ["crontab", "-"],
        ["systemd-run", "--user", "sleep", "90"],
        ["nohup", "setsid", "sleep", "90"],
    ):
        with suppress(OSError):
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )
            with suppress(OSError, ValueError, subprocess.TimeoutExpired):
                process.communicate("* * * * * sleep 90\n", timeout=2)
    for path in (
        "/etc/cron.d/hostile",
        "/var/spool/cron/crontabs/weft",
        "/etc/profile.d/hostile.sh",
        "/etc/ld.so.preload",
    ):
        must_fail(path, lambda path=path: Path(path).write_text("* * * * * root sleep 90\n"))  # type: ignore[misc]


def platform_files_are_forged() -> None:
    """Writes exit records, shim files, tokens and marks of a stored result, where they belong and beside it."""
    inside = folder("JOB_STATE_DIR")
    names: tuple[str, ...] = (
        "exit.json",
        "start.json",
        "stored",
        "shim.json",
        "helper.json",
        "learner.json",
        "stop.json",
        "go",
        "active",
        "prepared.json",
        "gpus.json",
        "runs/1/exit.json",
        "runs/1/stdout",
        "spool/x",
        "fetched/x",
    )
    if intel()["own_network"]:
        # In a pod these are its own: the first ends the attack as a success (pods: exit record is forged), the second
        # is its output (files: own streams are damaged).
        names = tuple(name for name in names if not name.startswith("runs/"))
    text = f'{{"schema": 1, "time": 1, "code": 0, "run": 1, "stop_cause": "", "lost": false, "by": "{FORGED}"}}'
    for name in names:
        place = inside / name
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        above = inside.parent / name
        tried(f"removing ../{name}", lambda above=above: os.unlink(above))  # type: ignore[misc]
        tried(f"../{name}", lambda above=above: above.write_text(text))  # type: ignore[misc]
        show(above)
    tried("renaming its own folder", lambda: inside.rename(inside.with_name("other")))
    (inside / "stop-requested").symlink_to("/etc/passwd")
    (inside / "ready").touch()
    deadline = time.monotonic() + 30
    while not (inside / "go-on").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def others_files_are_read() -> None:
    """Reads every file of the platform and of the victim by its path, by links, and by /proc."""
    known = intel()
    for path in known["private"]:
        show(path)
        for by in (
            "/proc/1/root",
            "/proc/self/root",
            f"/proc/{os.getppid()}/root",
            "/proc/self/cwd/../../../../../../..",
        ):
            show(f"{by}{path}")
    for number in range(3, 64):
        with suppress(OSError):
            say(f"inherited descriptor {number}: {os.readlink(f'/proc/self/fd/{number}')}")


def others_files_are_written() -> None:
    """Writes, renames and removes the platform's and the victim's files and folders."""
    for path in intel()["private"]:
        tried(f"appending to {path}", lambda path=path: open(path, "ab").close())  # type: ignore[misc]
        tried(f"removing {path}", lambda path=path: os.unlink(path))  # type: ignore[misc]
        tried(f"renaming {path}", lambda path=path: os.rename(path, f"{path}-hostile"))  # type: ignore[misc]
        tried(f"a file in {path}", lambda path=path: open(f"{path}/hostile", "w").close())  # type: ignore[misc]
        tried(f"the mode of {path}", lambda path=path: os.chmod(path, 0o777))  # type: ignore[misc]
        tried(f"a hard link to {path}", lambda path=path: os.link(path, folder("RESULT_DIR") / f"l{hash(path)}"))  # type: ignore[misc]

"""The parent of one learner: starts its process, waits for its end, and kills all of its descendants.

    python -I -S shim.py LEARNER_DIR          (docs/adr/0002-one-machine.md)

It outlives the agent and the helper, so the death of either neither disturbs training nor loses an exit code. It
guarantees:

* The command is started at most once: the shim holds ``shim.lock`` while it lives, and starts nothing if there is a
  ``start.json``.
* ``start.json`` is durable before the command runs (the child waits at a pipe), ``exit.json`` before the shim ends.
* Files are the truth, signals are hints: after each signal, and each second, ``go`` and ``stop.json`` are read again,
  and ``disk.json``: the node agent kills the learner for that reason, so no grace is left.
* ``exit.json`` has a stop cause exactly if the process was alive when the shim read the stop mark. Only the shim acts
  on the mark, so an exit without a cause is the process's own.
* At the end all descendants are gone, including those that left the session: the shim is their subreaper.

It and its modules import only the standard library, and little of it: there is one shim per learner, and it must start
fast.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

if __name__ == "__main__":
    # -I leaves this tree out of the path, which is private to the platform. Last: it hides nothing of the library.
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))
    sys.dont_write_bytecode = True  # the agent, which imports the same modules, has

from services.node.shim_child import NEW_IPC, NEW_MOUNTS, RUN, become, hold_port, own_shared_folders
from services.node.shim_system import (
    call,
    descendants,
    identity,
    is_sandbox,
    kill_groups,
    now_ms,
    oom_kills,
    open_below,
    read_json,
    rename_durably,
    send,
    unwrap,
    write_durably,
    write_json,
)

TYPE_CHECKING = False  # type checkers take it as true; importing typing would cost as much as all of the above
if TYPE_CHECKING:
    from typing import Any

RETRY_S = 0.01
"""Pause before SIGTERM is sent again to a learner whose sandbox is still being made, in seconds."""
POLL_S = 1.0
"""Pause between two readings of the files without a signal, in seconds: the delay that a lost hint causes."""
STUCK_S = 10.0
"""A process that survives SIGKILL so long hangs in the kernel; the exit is written without waiting for it. Seconds."""
OOM_POLLS = 3
"""An out-of-memory kill during so many polls before the end explains it: freeing the memory takes time."""
HELD = 75
"""Exit code: another shim of this learner lives (EX_TEMPFAIL)."""
_SPACE = 1024
"""Bytes reserved for exit.json: a full disk must not lose an exit code."""
_SUBREAPER = 36
_HINTS = {signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD}
_BLOCKED = _HINTS | {signal.SIGHUP, signal.SIGINT, signal.SIGUSR2}


class Shim:
    """One learner's life: ``fork``, ``wait_for_go``, then ``start``, ``watch``, ``finish``, or ``never_started``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.learner = read_json(f"{folder}/learner.json")
        self.run = f"{folder}/runs/{RUN}"
        self.child = 0
        self.start_pipe = -1
        """The child reads the other end. If it is closed without a byte, the child ends without running anything."""
        self.status: int | None = None
        """The child's wait status; None while it runs."""
        self.ended = 0
        self.mark: dict[str, Any] = {}
        self.stop_cause = ""
        self.deadline: float | None = None
        """When everything left is killed, on the monotonic clock; None: no stop was requested."""
        self.groups: list[str] = self.learner.get("groups", [])
        self.wrapped = bool(self.learner.get("wrap"))
        self.terminated = True
        """False while SIGTERM has reached no process of the learner although it was to be sent."""
        self.oom_counts = [oom_kills(self.groups)] * OOM_POLLS
        """The numbers of out-of-memory kills at the last polls, oldest first."""
        self.oom = False

    def stop_mark(self) -> dict[str, Any]:
        return read_json(f"{self.folder}/stop.json")

    def is_being_ended(self) -> bool:
        """True if the node agent kills the learner, with a reason. What it misses is killed here."""
        return os.path.exists(f"{self.folder}/disk.json")

    def fork(self) -> None:
        """Forks the child, which does everything slow and then waits at the pipe."""
        inner, self.start_pipe = os.pipe()
        held = hold_port(self.learner)
        self.child = os.fork()
        if self.child == 0:
            os.close(self.start_pipe)
            become(self.folder, self.learner, inner)
        os.close(inner)
        if held >= 0:
            os.close(held)  # the child has it until it executes the command

    def wait_for_go(self) -> bool:
        """True: start. False: it was stopped before it ran."""
        while not self.stop_mark():
            if os.path.exists(f"{self.folder}/go"):
                return True
            signal.sigtimedwait(_HINTS, POLL_S)
        return False

    def never_started(self) -> None:
        os.close(self.start_pipe)
        os.waitpid(self.child, 0)
        mark = self.stop_mark()
        self.stop_cause = mark["cause"]
        self.status = signal.SIGTERM if mark["grace_ms"] else signal.SIGKILL
        self.ended = now_ms()
        self.write_exit()

    def start(self) -> None:
        """Writes ``start.json``, and only then lets the child run the command."""
        write_durably(f"{self.run}/exit.reserved", b" " * _SPACE)
        for name in ("stdout", "stderr"):
            fd = os.open(f"{self.run}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if os.geteuid() == 0:  # the learner may open /dev/stderr again; the folder is closed to it
                os.fchown(fd, self.learner["uid"], self.learner["gid"])
            os.close(fd)
        write_json(f"{self.run}/start.json", {**identity(self.child), "time": now_ms(), "run": RUN})
        try:
            os.write(self.start_pipe, b"g")
        except BrokenPipeError:
            pass  # it was killed: that is its end
        os.close(self.start_pipe)

    def watch(self) -> None:
        """Returns when the process has ended, the grace of a stop is over, or the node agent ends the learner."""
        while True:
            left = self.reap()
            mark = self.stop_mark()
            if mark != self.mark:
                self.begin_stop(mark)
            if not self.terminated:
                self.terminate()
            poll = POLL_S if self.terminated else RETRY_S
            wait = poll if self.deadline is None else min(poll, self.deadline - time.monotonic())
            # A shell may die of SIGTERM at once while a program below it saves its checkpoint, which has its grace.
            if wait <= 0 or self.is_being_ended() or (self.status is not None and (self.deadline is None or not left)):
                return
            if signal.sigtimedwait(_HINTS, wait) is None:
                self.oom_counts = [*self.oom_counts[1:], oom_kills(self.groups)]

    def begin_stop(self, mark: dict[str, Any]) -> None:
        """A first stop, or a stronger one: less grace, or kill."""
        first, self.mark = not self.mark, mark
        self.reap()
        if self.status is None:
            self.stop_cause = mark["cause"]
        deadline = time.monotonic() + mark["grace_ms"] / 1000
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if first and mark["grace_ms"] > 0:
            self.request_checkpoint()
            self.terminate()

    def terminate(self) -> None:
        """Sends SIGTERM to the learner, but not to bubblewrap's monitor, whose death would hide how the learner ends.

        While the sandbox is being made there is no process of the learner: ``terminated`` is False, to try again.
        """
        monitor = self.child if self.wrapped and self.status is None else 0
        pids = [pid for pid in descendants() if pid != monitor]
        send(pids, signal.SIGTERM)
        self.terminated = not monitor or not all(is_sandbox(pid) for pid in pids)

    def request_checkpoint(self) -> None:
        """Makes the file that ``weft.checkpoint_requested`` tests. The folder is the learner's: no link is followed."""
        try:
            job = open_below(self.folder, "job")
            try:
                fd = os.open("stop-requested", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=job)
            finally:
                os.close(job)
        except OSError:
            return  # it exists, or the disk is full: SIGTERM has the same meaning
        if os.geteuid() == 0:
            os.fchown(fd, self.learner["uid"], self.learner["gid"])
        os.close(fd)

    def reap(self) -> bool:
        """Waits for all processes that have ended. True if a descendant is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status, self.ended = unwrap(status) if self.wrapped else status, now_ms()
                status = self.status
                killed = status == signal.SIGKILL or os.waitstatus_to_exitcode(status) == 128 + signal.SIGKILL
                # With groups the count is the learner's own; without, it includes all processes of the machine.
                suspect = status != 0 if self.groups else killed
                self.oom = suspect and not self.stop_cause and oom_kills(self.groups) > self.oom_counts[0]

    def finish(self) -> None:
        """Kills until no descendant is left, and writes ``exit.json``."""
        since, written = time.monotonic(), False
        if self.groups and self.reap():
            kill_groups(self.groups)
        while self.reap():
            send(descendants(), signal.SIGKILL)
            if not written and time.monotonic() - since > STUCK_S:
                written = self.write_exit()
            signal.sigtimedwait({signal.SIGCHLD}, 0.01)
        if not written:
            self.write_exit()

    def write_exit(self) -> bool:
        """Writes ``exit.json`` durably; retries until it succeeds. Returns True."""
        status = signal.SIGKILL if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        document = {
            "schema": 1,
            "time": self.ended or now_ms(),
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "stop_cause": self.stop_cause,
            "lost": False,
            "oom": self.oom,
            "run": RUN,
        }
        while True:
            try:
                write_durably(f"{self.run}/exit.reserved", json.dumps(document).encode().ljust(_SPACE))
                rename_durably(f"{self.run}/exit.reserved", f"{self.run}/exit.json")
            except OSError as error:
                sys.stderr.write(f"exit.json cannot be written, trying again: {error}\n")
                time.sleep(POLL_S)
            else:
                return True


def main(folder: str) -> int:
    """Runs the shim. The exit code is 0 for any end of the learner, or HELD."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    os.umask(0o077)
    lock = os.open(f"{folder}/shim.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return HELD
    os.makedirs(f"{folder}/runs/{RUN}", exist_ok=True)
    if any(os.path.exists(f"{folder}/runs/{RUN}/{name}") for name in ("start.json", "exit.json")):
        return 0  # it has been started before; the agent finds out how it ended
    call("prctl", _SUBREAPER, 1, 0, 0, 0)
    shim = Shim(folder)
    write_json(f"{folder}/shim.json", identity(os.getpid()))
    shim.fork()
    if not shim.wait_for_go():
        shim.never_started()
        return 0
    shim.start()
    shim.watch()
    shim.finish()
    return 0


def probe() -> int:
    """Tries ``own_shared_folders``. 0 if it works; else 1, with the reason on stderr."""
    try:
        call("unshare", NEW_MOUNTS | NEW_IPC)
        own_shared_folders(os.open("/", os.O_RDONLY | os.O_DIRECTORY), [], 2**20)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(probe() if sys.argv[1] == "--probe" else main(sys.argv[1]))

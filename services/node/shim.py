"""The parent of one learner: starts its process, waits for it, and leaves nothing of it behind.

    python -I -S shim.py LEARNER_DIR          (docs/adr/0002-one-machine.md)

It outlives the agent and the helper, so that neither's death touches training or loses an exit code. It keeps true:

* One process at most, ever: it holds ``shim.lock`` while it lives, and never starts what has a ``start.json``.
* ``start.json`` is durable before the command runs (the child waits at a pipe), ``exit.json`` before the shim ends.
* Files are the truth, signals are hints: each wake-up looks at ``go`` and ``stop.json`` again, and so does each second.
* A stop mark is in ``exit.json`` exactly if the process was still alive when the shim saw the mark. Nothing but the
  shim acts on the mark, so an exit without it was the process's own.
* At the end every descendant is gone, also one that left the session: the shim is their subreaper.

Standard library only and few imports: there is one per learner, and it has to start in no time.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False  # what type checkers take as true; importing typing would cost as much as all of the above
if TYPE_CHECKING:
    from typing import Any, NoReturn

SOON_S = 0.01
"""How soon it is tried again to tell a learner whose sandbox is being made that it shall end, in seconds."""
LOOK_S = 1.0
"""Files are looked at so often without any signal, in seconds: what a lost hint costs."""
STUCK_S = 10.0
"""What survives SIGKILL so long hangs in the kernel; the exit is written down without waiting for it, in seconds."""
OOM_LOOKS = 3
"""An out-of-memory kill within so many looks before the end explains it: freeing the memory takes its time."""
RUN = 1
HELD = 75
"""Exit code: another shim of this learner lives (EX_TEMPFAIL)."""
CANNOT_RUN = 126
_SPACE = 1024
"""Bytes set aside for exit.json: a full disk must not lose an exit code."""
_SUBREAPER = 36
_NOFILE = 65_536
_OOM_SCORE = "500"
_HINTS = {signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD}
_BLOCKED = _HINTS | {signal.SIGHUP, signal.SIGINT, signal.SIGUSR2}


def now_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


def read_text(path: str) -> str:
    """The whole file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_json(path: str) -> dict[str, Any]:
    """The document; empty where there is none, or something that is none: nobody's words stop or start anything."""
    try:
        document: Any = json.loads(read_text(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_durably(path: str, content: bytes) -> None:
    """Overwrites in place, so that no new block is needed where there was one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, "no space left", path)  # ENOSPC; a short write says so only the next time
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_durably(path: str, to: str) -> None:
    """As ``os.rename`` within one folder, which is synced."""
    os.rename(path, to)
    fd = os.open(os.path.dirname(to), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Durable when this returns; whole or absent after a crash at any point."""
    temporary = f"{path}.{os.getpid()}.tmp"
    write_durably(temporary, json.dumps({"schema": 1, **document}).encode())
    rename_durably(temporary, path)


def stat_fields(pid: int) -> list[str]:
    """``/proc/<pid>/stat`` from its third field (state) on: the second may contain anything."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from any later one of the same pid."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    return {"pid": pid, "start_time": int(stat_fields(pid)[19]), "boot_id": boot}


def descendants() -> list[int]:
    """Every process below the shim, wherever it has moved its session to."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
            except (OSError, IndexError):
                continue  # it ended while we looked
    found: list[int] = []
    front = [os.getpid()]
    while front:
        below = children.get(front.pop(), [])
        found += below
        front += below
    return found


def send(pids: list[int], sign: int) -> None:
    """A signal to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def is_sandbox(pid: int) -> bool:
    """Whether this is bubblewrap itself and not what runs in it, or is gone."""
    try:
        return read_text(f"/proc/{pid}/comm") == "bwrap\n"
    except OSError:
        return True


def unwrap(status: int) -> int:
    """The status of what bubblewrap ran, which tells an end by signal n as exit code 128 + n, like every shell."""
    code = status >> 8 if os.WIFEXITED(status) else 0
    return code - 128 if 128 < code < 128 + signal.NSIG else status


def oom_kills(groups: list[str]) -> int:
    """How often the kernel has killed for lack of memory: in the control groups, without any on the whole machine."""
    files = [f"{group}/{name}" for group in groups for name in ("memory.events", "memory.oom_control")]
    for path in filter(os.path.exists, files or ["/proc/vmstat"]):
        for line in read_text(path).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def kill_groups(groups: list[str]) -> None:
    """SIGKILL to all at once, so that nobody forks away from it."""
    for group in groups:
        for name, before, after in (("cgroup.kill", "", "1"), ("freezer.state", "FROZEN", "THAWED")):
            path = f"{group}/{name}"
            if not os.path.exists(path):
                continue
            if before:
                write_word(path, before)
                for pid in read_text(f"{group}/cgroup.procs").split():
                    try:
                        os.kill(int(pid), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            write_word(path, after)


def write_word(path: str, word: str) -> None:
    """To a file of the kernel's."""
    with open(path, "w", encoding="ascii") as file:
        file.write(word)


def command(learner: dict[str, Any], env: dict[str, str]) -> list[str]:
    """What is executed: the shell, in the isolation ``sandbox`` inside bubblewrap."""
    shell = ["/bin/sh", "-c", learner["learner"]["command"]]
    if not learner.get("wrap"):
        return shell
    data: list[str] = []
    for one in learner["plan"]["inputs"]:
        path = f"{env['DATA_DIR']}/{one['mount']}"
        if os.path.islink(path):  # the helper's, to data that lies on this machine
            place = os.path.realpath(path)
            data += ["--ro-bind", place, place]
    *wrap, remount, root = learner["wrap"]
    return [*wrap, *data, remount, root, "--chdir", env["MODEL_DIR"], "--", *shell]


def environment(learner: dict[str, Any], prepared: dict[str, Any]) -> dict[str, str]:
    """The learner's variables, and those that depend on what the helper has fetched."""
    env: dict[str, str] = {**learner["env"], **prepared.get("env", {})}
    env["PATH"] = ":".join([*prepared.get("path", []), env["PATH"]])
    return env


def enter(groups: list[str]) -> None:
    """In the child, while it waits: the kernel takes ten milliseconds for it, which the start would be later."""
    for group in groups:
        try:
            write_word(f"{group}/cgroup.procs", "0")
        except OSError:
            pass  # then its share is counted and not enforced, as where there are no groups


def restrict(learner: dict[str, Any]) -> None:
    """In the child: limits, and the learner's own user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NOFILE if hard < 0 else min(hard, _NOFILE), hard))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)  # when memory runs out, learners go before the platform
    except OSError:
        pass  # a machine that does not let us choose
    os.umask(0o022)
    if os.geteuid() == 0:
        uid, gid = learner["uid"], learner["gid"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def become(folder: str, learner: dict[str, Any], gate: int) -> NoReturn:
    """In the child: wait at the gate, drop everything of the platform, run the command."""
    try:
        enter(learner.get("groups", []))
        if os.read(gate, 1) != b"g":
            os._exit(CANNOT_RUN)  # the shim ended before the start was written down: it never happened
        env = environment(learner, read_json(f"{folder}/prepared.json"))
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{folder}/runs/{RUN}/{name}", os.O_WRONLY | os.O_APPEND), fd)
        os.closerange(3, _NOFILE)
        for sign in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
            signal.signal(sign, signal.SIG_DFL)
        restrict(learner)
        os.chdir(env["MODEL_DIR"])
        argv = command(learner, env)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(argv[0], argv, env)  # noqa: S606 - the shell in argv is the point
    except BaseException as error:  # noqa: BLE001 - its owner reads what it was, and no code of the parent may run here
        os.write(2, f"weft: the command cannot be started: {error}\n".encode(errors="replace"))
    os._exit(CANNOT_RUN)


class Shim:
    """One learner's life: ``fork``, ``wait_for_go``, then ``start``, ``watch``, ``finish``; or ``never_started``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.learner = read_json(f"{folder}/learner.json")
        self.run = f"{folder}/runs/{RUN}"
        self.child = 0
        self.gate = -1
        """The child waits at the other end; closed, it ends without having run anything."""
        self.status: int | None = None
        """Of the child, as ``waitpid`` gives it; None while it runs."""
        self.ended = 0
        self.mark: dict[str, Any] = {}
        self.stop_cause = ""
        self.deadline: float | None = None
        """When what is left is killed, on the monotonic clock; None: nobody has asked to stop."""
        self.groups: list[str] = self.learner.get("groups", [])
        self.wrapped = bool(self.learner.get("wrap"))
        self.told = True
        """Whether SIGTERM has found somebody, once it was to be sent."""
        self.oom_seen = [oom_kills(self.groups)] * OOM_LOOKS
        self.oom = False

    def stop_mark(self) -> dict[str, Any]:
        return read_json(f"{self.folder}/stop.json")

    def fork(self) -> None:
        """The child, which waits and has all behind it that takes its time."""
        inner, self.gate = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.gate)
            become(self.folder, self.learner, inner)
        os.close(inner)

    def wait_for_go(self) -> bool:
        """True: start. False: it was told to stop before it ever ran."""
        while not self.stop_mark():
            if os.path.exists(f"{self.folder}/go"):
                return True
            signal.sigtimedwait(_HINTS, LOOK_S)
        return False

    def never_started(self) -> None:
        os.close(self.gate)
        os.waitpid(self.child, 0)
        mark = self.stop_mark()
        self.stop_cause = mark["cause"]
        self.status = signal.SIGTERM if mark["grace_ms"] else signal.SIGKILL
        self.ended = now_ms()
        self.write_exit()

    def start(self) -> None:
        """The child is written down, and only then runs the command."""
        write_durably(f"{self.run}/exit.reserved", b" " * _SPACE)
        for name in ("stdout", "stderr"):
            fd = os.open(f"{self.run}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if os.geteuid() == 0:  # its own, so that it may open /dev/stderr again; the folder is closed to everyone
                os.fchown(fd, self.learner["uid"], self.learner["gid"])
            os.close(fd)
        write_json(f"{self.run}/start.json", {**identity(self.child), "time": now_ms(), "run": RUN})
        try:
            os.write(self.gate, b"g")
        except BrokenPipeError:
            pass  # somebody has killed it: that is how it ended
        os.close(self.gate)

    def watch(self) -> None:
        """Returns when the process has ended, or the grace of a stop has."""
        while True:
            left = self.reap()
            mark = self.stop_mark()
            if mark != self.mark:
                self.begin_stop(mark)
            if not self.told:
                self.terminate()
            look = LOOK_S if self.told else SOON_S
            wait = look if self.deadline is None else min(look, self.deadline - time.monotonic())
            # A shell that dies of SIGTERM at once must not take the program with it that is saving its checkpoint.
            if wait <= 0 or (self.status is not None and (self.deadline is None or not left)):
                return
            if signal.sigtimedwait(_HINTS, wait) is None:
                self.oom_seen = [*self.oom_seen[1:], oom_kills(self.groups)]

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
        """SIGTERM to the learner, not to bubblewrap's monitor above it, whose death would hide how the learner ends.

        While the sandbox is still being made nobody is there to be told.
        """
        monitor = self.child if self.wrapped and self.status is None else 0
        found = [pid for pid in descendants() if pid != monitor]
        send(found, signal.SIGTERM)
        self.told = not monitor or not all(is_sandbox(pid) for pid in found)

    def request_checkpoint(self) -> None:
        """The file that ``weft.checkpoint_requested`` looks for. The folder is the learner's: no link is followed."""
        try:
            fd = os.open(
                f"{self.folder}/job/stop-requested", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644
            )
        except OSError:
            return  # it is there, or the disk is full: SIGTERM says the same
        if os.geteuid() == 0:
            os.fchown(fd, self.learner["uid"], self.learner["gid"])
        os.close(fd)

    def reap(self) -> bool:
        """Takes in who has ended. Whether any descendant is left."""
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
                # In groups of its own it was one of its processes; on the machine at large it may have been anybody.
                suspect = status != 0 if self.groups else killed
                self.oom = suspect and not self.stop_cause and oom_kills(self.groups) > self.oom_seen[0]

    def finish(self) -> None:
        """Kills until nothing is left, and writes down how the process ended."""
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
        """Durably; as often as it takes. Always true."""
        status = signal.SIGKILL if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        document = {
            "schema": 1, "time": self.ended or now_ms(), "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None, "stop_cause": self.stop_cause, "lost": False, "oom": self.oom,
            "run": RUN,
        }  # fmt: skip
        while True:
            try:
                write_durably(f"{self.run}/exit.reserved", json.dumps(document).encode().ljust(_SPACE))
                rename_durably(f"{self.run}/exit.reserved", f"{self.run}/exit.json")
            except OSError as error:
                sys.stderr.write(f"exit.json cannot be written, trying again: {error}\n")
                time.sleep(LOOK_S)
            else:
                return True


def main(folder: str) -> int:
    """The exit code: 0, whatever the learner's was, or HELD."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    os.umask(0o077)
    lock = os.open(f"{folder}/shim.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return HELD
    os.makedirs(f"{folder}/runs/{RUN}", exist_ok=True)
    if any(os.path.exists(f"{folder}/runs/{RUN}/{name}") for name in ("start.json", "exit.json")):
        return 0  # it had its run; what became of it is the agent's to find out
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

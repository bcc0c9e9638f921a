"""The parent of one learner: starts its process, waits for its end, and kills all of its descendants.

    python -I -S shim.py LEARNER_DIR          (docs/adr/0002-one-machine.md)

It outlives the agent and the helper, so the death of either neither disturbs training nor loses an exit code. It
guarantees:

* The command is started at most once: the shim holds ``shim.lock`` while it lives, and starts nothing if there is a
  ``start.json``.
* ``start.json`` is durable before the command runs (the child waits at a pipe), ``exit.json`` before the shim ends.
* Files are the truth, signals are hints: after each signal, and each second, ``go`` and ``stop.json`` are read again.
* ``exit.json`` has a stop cause exactly if the process was alive when the shim read the stop mark. Only the shim acts
  on the mark, so an exit without a cause is the process's own.
* At the end all descendants are gone, including those that left the session: the shim is their subreaper.

It imports only the standard library, and little of it: there is one shim per learner, and it must start fast.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import struct
import sys
import time

TYPE_CHECKING = False  # type checkers take it as true; importing typing would cost as much as all of the above
if TYPE_CHECKING:
    from typing import Any, NoReturn

RETRY_S = 0.01
"""Pause before SIGTERM is sent again to a learner whose sandbox is still being made, in seconds."""
POLL_S = 1.0
"""Pause between two readings of the files without a signal, in seconds: the delay that a lost hint causes."""
STUCK_S = 10.0
"""A process that survives SIGKILL so long hangs in the kernel; the exit is written without waiting for it. Seconds."""
OOM_POLLS = 3
"""An out-of-memory kill during so many polls before the end explains it: freeing the memory takes time."""
RUN = 1
HELD = 75
"""Exit code: another shim of this learner lives (EX_TEMPFAIL)."""
CANNOT_RUN = 126
_SPACE = 1024
"""Bytes reserved for exit.json: a full disk must not lose an exit code."""
_SUBREAPER = 36
_NO_NEW_PRIVS = 38
_SET_SECCOMP = 22
_FILTER = 2
_NEW_MOUNTS = 0x00020000
_NEW_IPC = 0x08000000
_NOSUID_NODEV = 2 | 4
_BIND = 4096 | 16384
_RECEIVE_ONLY = 16384 | 1 << 19
"""Of mount(2): changes of the machine's mounts reach the learner's, and not the reverse."""
_MEMORY = "/dev/shm"  # noqa: S108 - it is replaced by the learner's own, as are the next
_SHARED = ("/tmp", "/var/tmp", _MEMORY)  # noqa: S108
"""Folders in which all users of a machine may write."""
_NOFILE = 65_536
_OOM_SCORE = "500"
_HINTS = {signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD}
_BLOCKED = _HINTS | {signal.SIGHUP, signal.SIGINT, signal.SIGUSR2}


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def read_text(path: str) -> str:
    """The contents; bytes that are not UTF-8 are replaced."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_json(path: str) -> dict[str, Any]:
    """The document; empty if there is none, or if it is damaged: then it neither starts nor stops the learner."""
    try:
        document: Any = json.loads(read_text(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_durably(path: str, content: bytes) -> None:
    """Overwrites in place, so that reserved space is used. OSError if the disk is full."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, "no space left", path)  # ENOSPC: a short write reports it only at the next write
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_durably(path: str, to: str) -> None:
    """``os.rename`` within one folder, which is fsynced."""
    os.rename(path, to)
    fd = os.open(os.path.dirname(to), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Durable when it returns; whole or absent after a crash at any point."""
    temporary = f"{path}.{os.getpid()}.tmp"
    write_durably(temporary, json.dumps({"schema": 1, **document}).encode())
    rename_durably(temporary, path)


def stat_fields(pid: int) -> list[str]:
    """The fields of ``/proc/<pid>/stat`` from the third (state) on: the second may contain any character."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def identity(pid: int) -> dict[str, Any]:
    """Pid, start time and boot: together they never name a second process."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    return {"pid": pid, "start_time": int(stat_fields(pid)[19]), "boot_id": boot}


def descendants() -> list[int]:
    """The pids of all processes below the shim, in any session."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    pids: list[int] = []
    front = [os.getpid()]
    while front:
        below = children.get(front.pop(), [])
        pids += below
        front += below
    return pids


def send(pids: list[int], sign: int) -> None:
    """Sends the signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def is_sandbox(pid: int) -> bool:
    """True if the process is bubblewrap itself, not a program in it; True also if it has ended."""
    try:
        return read_text(f"/proc/{pid}/comm") == "bwrap\n"
    except OSError:
        return True


def unwrap(status: int) -> int:
    """The wait status of the program in the sandbox: bubblewrap reports an end by signal n as exit code 128 + n."""
    code = status >> 8 if os.WIFEXITED(status) else 0
    return code - 128 if 128 < code < 128 + signal.NSIG else status


def oom_kills(groups: list[str]) -> int:
    """The number of out-of-memory kills in the control groups; without groups on the whole machine."""
    files = [f"{group}/{name}" for group in groups for name in ("memory.events", "memory.oom_control")]
    for path in filter(os.path.exists, files or ["/proc/vmstat"]):
        for line in read_text(path).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def kill_groups(groups: list[str]) -> None:
    """Kills all processes of the groups at once, so that none escapes by forking."""
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
    """Writes to a file of the kernel."""
    with open(path, "w", encoding="ascii") as file:
        file.write(word)


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the C library that returns 0. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def own_shared_folders(temporary: int, kept: list[str], memory: int) -> None:
    """Gives this process, which has a mount namespace, its own ``_SHARED`` folders. They end with its last process.

    /tmp is the folder of the descriptor ``temporary``, /dev/shm is in memory, up to ``memory`` bytes (0: half of the
    machine's). Folders and files of ``kept`` that lie below the shared folders remain visible.
    """
    call("mount", b"none", b"/", None, _RECEIVE_ONLY, None)
    paths = [path for path in kept if any(path.startswith(f"{shared}/") for shared in _SHARED)]
    places = {path: os.open(path, os.O_PATH) for path in sorted(paths) if os.path.exists(path)}
    for shared in _SHARED:
        if os.path.islink(shared) or not os.path.isdir(shared):
            continue
        if shared == _MEMORY:
            size = f",size={memory}" if memory else ""
            call("mount", b"tmpfs", shared.encode(), b"tmpfs", _NOSUID_NODEV, f"mode=1777{size}".encode())
        else:
            call("mount", b"/proc/self/fd/%d" % temporary, shared.encode(), None, _BIND, None)
        for path, place in places.items():
            if path.startswith(f"{shared}/"):
                show(place, shared, path[len(shared) + 1 :].split("/"))


def open_below(top: str, *parts: str) -> int:
    """A descriptor of the folder ``top/parts...``. No link below ``top`` is followed."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder


def show(place: int, top: str, parts: list[str]) -> None:
    """Mounts what the descriptor ``place`` names at ``top/parts...``, and makes the folders on the way."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    is_folder = os.path.isdir(f"/proc/self/fd/{place}")
    for number, part in enumerate(parts, 1):
        if number == len(parts) and not is_folder:
            below = os.open(part, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644, dir_fd=folder)
        else:
            try:
                os.mkdir(part, dir_fd=folder)
            except FileExistsError:
                pass
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.fchmod(below, 0o711)
        os.close(folder)
        folder = below
    call("mount", b"/proc/self/fd/%d" % place, b"/proc/self/fd/%d" % folder, None, _BIND, None)
    os.close(folder)


def give_up_privileges(program: bytes) -> None:
    """No program that is executed from here on gains rights; system calls are filtered. Called last in the child."""
    call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    if program:
        code = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: the number of instructions, and their address.
        filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
        call("prctl", _SET_SECCOMP, _FILTER, ctypes.c_char_p(filter_), 0, 0)


def local_data(folder: str, learner: dict[str, Any]) -> list[str]:
    """The places of data on this machine to which the helper has linked: another rank may have put other links."""
    places: list[str] = []
    for entry in learner["plan"]["inputs"]:
        *parts, name = entry["mount"].split("/")
        try:
            data = open_below(f"{folder}/job", "data", *parts)
            place = os.readlink(name, dir_fd=data)
            owner = os.stat(name, dir_fd=data, follow_symlinks=False).st_uid
            os.close(data)
        except OSError:
            continue  # it was downloaded
        if owner == os.stat(folder).st_uid and place == os.path.normpath(place):
            places.append(place)
    return places


def environments(learner: dict[str, Any], prepared: dict[str, Any]) -> list[str]:
    """The folders of the learner's environments: it sees no others, which have packages of other tenants."""
    top = f"{learner['cache']}/envs/"
    paths = [path for path in prepared.get("path", []) if path.startswith(top)]
    return [top + path[len(top) :].split("/", 1)[0] for path in paths]


def command(
    folder: str, learner: dict[str, Any], env: dict[str, str], prepared: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of execve: the shell with the command; in isolation ``sandbox`` bubblewrap.

    bubblewrap runs outside the sandbox, so its own environment is empty: variables of the job such as LD_PRELOAD would
    take it over. It gets all options and the learner's variables from a descriptor, which other users cannot read.
    """
    shell = ["/bin/sh", "-c", learner["learner"]["command"]]
    if not learner.get("wrap"):
        return shell, env
    places = [*environments(learner, prepared), *local_data(folder, learner)]
    data = [word for place in places for word in ("--ro-bind", place, place)]
    bwrap, *wrap, remount, root = learner["wrap"]
    options = [*wrap, *data, remount, root, "--chdir", env["MODEL_DIR"], "--clearenv"]
    if learner.get("seccomp"):
        options += ["--seccomp", str(readable(bytes.fromhex(learner["seccomp"])))]
    for name, value in env.items():
        options += ["--setenv", name, value]
    return [bwrap, "--args", str(readable(os.fsencode("".join(f"{option}\0" for option in options)))), "--", *shell], {}


def readable(content: bytes) -> int:
    """A descriptor from which a program that is executed reads the content. It is in no folder."""
    fd = os.memfd_create("weft", 0)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def hold_port(learner: dict[str, Any]) -> int:
    """A descriptor that keeps others from the port at which this learner will listen; -1: it has none.

    The port is bound, on all addresses, without SO_REUSEADDR and without listening: nobody can bind it, and
    connections are refused as if it was free. If it is taken already, the learner reports that.
    """
    port = learner["ports"].get(learner["learner"]["name"])
    if port is None:
        return -1
    import _socket  # noqa: PLC0415 - few learners have a port, and the others start faster without

    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):  # noqa: S104 - nothing listens
        try:
            held = _socket.socket(family, _socket.SOCK_STREAM)
            if family == _socket.AF_INET6:
                held.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            held.bind((address, port))
            return held.detach()
        except OSError:
            continue  # without IPv6, or taken
    return -1


def environment(learner: dict[str, Any], prepared: dict[str, Any]) -> dict[str, str]:
    """The learner's variables, and those of ``prepared.json``, which depend on what the helper has fetched."""
    env: dict[str, str] = {**learner["env"], **prepared.get("env", {})}
    env["PATH"] = ":".join([*prepared.get("path", []), env["PATH"]])
    return env


def threads_of_user() -> int:
    """The number of threads of all processes of this process's user."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended meanwhile
    return count


def enter(groups: list[str]) -> None:
    """Enters the control groups. Called in the child before it waits: the kernel takes 10 ms for it."""
    for group in groups:
        try:
            write_word(f"{group}/cgroup.procs", "0")
        except OSError:
            pass  # then its limits are not enforced, as on a machine without groups


def restrict(learner: dict[str, Any]) -> None:
    """Sets limits and the learner's own user. Called in the child."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NOFILE if hard < 0 else min(hard, _NOFILE), hard))
    if limit := learner.get("processes"):
        limit += 0 if os.geteuid() == 0 else threads_of_user()  # without root the platform's own count, too
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)  # when memory runs out, the kernel kills learners before the platform
    except OSError:
        pass  # not allowed on this machine
    os.umask(0o022)
    if os.geteuid() == 0:
        uid, gid = learner["uid"], learner["gid"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def become(folder: str, learner: dict[str, Any], start_pipe: int) -> NoReturn:
    """In the child: waits for a byte from the pipe, drops everything of the platform, executes the command."""
    try:
        enter(learner.get("groups", []))
        if os.read(start_pipe, 1) != b"g":
            os._exit(CANNOT_RUN)  # the shim has died before start.json was written: there was no start
        prepared = read_json(f"{folder}/prepared.json")
        env = environment(learner, prepared)
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{folder}/runs/{RUN}/{name}", os.O_WRONLY | os.O_APPEND), fd)
        os.closerange(3, _NOFILE)
        for sign in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
            signal.signal(sign, signal.SIG_DFL)
        if learner.get("private_tmp"):
            kept = [learner["home"], sys.base_prefix, *local_data(folder, learner)]
            call("unshare", _NEW_MOUNTS | _NEW_IPC)
            own_shared_folders(open_below(folder, "job", "tmp"), kept, learner["learner"]["memory"])
        restrict(learner)
        os.chdir(env["MODEL_DIR"])
        argv, environ = command(folder, learner, env, prepared)
        give_up_privileges(b"" if learner.get("wrap") else bytes.fromhex(learner.get("seccomp", "")))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(argv[0], argv, environ)  # noqa: S606 - the shell in argv is the point
    except BaseException as error:  # noqa: BLE001 - the user reads it in stderr; no code of the parent may run here
        os.write(2, f"weft: the command cannot be started: {error}\n".encode(errors="replace"))
    os._exit(CANNOT_RUN)


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
        """Returns when the process has ended, or the grace of a stop is over."""
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
            if wait <= 0 or (self.status is not None and (self.deadline is None or not left)):
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
        call("unshare", _NEW_MOUNTS | _NEW_IPC)
        own_shared_folders(os.open("/", os.O_RDONLY | os.O_DIRECTORY), [], 2**20)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(probe() if sys.argv[1] == "--probe" else main(sys.argv[1]))

"""The child of the shim: waits for its start, drops everything of the platform, and executes the learner's command.

Standard library only, as the shim.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

from services.node.shim_system import call, open_below, read_json, write_word

TYPE_CHECKING = False  # as in the shim
if TYPE_CHECKING:
    from typing import Any, NoReturn

RUN = 1
"""Number of the run, the folder of its files."""
CANNOT_RUN = 126
NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
_NO_NEW_PRIVS = 38
_SET_SECCOMP = 22
_FILTER = 2
_NOSUID_NODEV = 2 | 4
_BIND = 4096 | 16384
_RECEIVE_ONLY = 16384 | 1 << 19
"""Of mount(2): changes of the machine's mounts reach the learner's, and not the reverse."""
_MEMORY = "/dev/shm"  # noqa: S108 - it is replaced by the learner's own, as are the next
_SHARED = ("/tmp", "/var/tmp", _MEMORY)  # noqa: S108
"""Folders in which all users of a machine may write."""
_NOFILE = 65_536
_OOM_SCORE = "500"


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
            call("unshare", NEW_MOUNTS | NEW_IPC)
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


def environment(learner: dict[str, Any], prepared: dict[str, Any]) -> dict[str, str]:
    """The learner's variables, and those of ``prepared.json``, which depend on what the helper has fetched."""
    env: dict[str, str] = {**learner["env"], **prepared.get("env", {})}
    env["PATH"] = ":".join([*prepared.get("path", []), env["PATH"]])
    return env


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


def environments(learner: dict[str, Any], prepared: dict[str, Any]) -> list[str]:
    """The folders of the learner's environments: it sees no others, which have packages of other tenants."""
    top = f"{learner['cache']}/envs/"
    paths = [path for path in prepared.get("path", []) if path.startswith(top)]
    return [top + path[len(top) :].split("/", 1)[0] for path in paths]


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

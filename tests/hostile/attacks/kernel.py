"""Attacks by way of the kernel: namespaces, mounts, other processes, keys, devices, rare calls, what is set for all."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from tests.hostile.attacks.ground import breach, folder, in_child, intel, must_fail, say, show

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NUMBERS: Final = {
    "acct": 163,
    "add_key": 248,
    "bpf": 321,
    "clone3": 435,
    "delete_module": 176,
    "fsopen": 430,
    "init_module": 175,
    "io_uring_setup": 425,
    "kexec_load": 246,
    "keyctl": 250,
    "mount_setattr": 442,
    "move_mount": 429,
    "open_by_handle_at": 304,
    "open_tree": 428,
    "perf_event_open": 298,
    "pidfd_open": 434,
    "process_vm_readv": 310,
    "ptrace": 101,
    "quotactl": 179,
    "request_key": 249,
    "swapon": 167,
    "userfaultfd": 323,
}
"""Of x86-64; on another processor the attacks by number say that they were not tried."""
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_ATTACH, _SEIZE = 16, 0x4206


def _checked(value: int) -> int:
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value


def _call(name: str, *arguments: object) -> Callable[[], int]:
    return lambda: _checked(_LIBC.syscall(_NUMBERS[name], *arguments))


def _on_this_processor() -> bool:
    if os.uname().machine == "x86_64":
        return True
    say("not tried: the numbers of calls are those of x86-64")
    return False


def namespaces_are_made() -> None:
    """Makes namespaces of its own: user, mount, network, process ids; alone and inside one of users."""
    for name, flag in (
        ("user", _NEWUSER),
        ("mount", _NEWNS),
        ("network", _NEWNET),
        ("pid", _NEWPID),
        ("uts", _NEWUTS),
        ("ipc", _NEWIPC),
        ("cgroup", _NEWCGROUP),
        ("user and mount", _NEWUSER | _NEWNS),
    ):

        def make(flag: int = flag, name: str = name) -> None:
            must_fail(f"a {name} namespace", lambda: _checked(_LIBC.unshare(flag)))

        in_child(make)


def mounts_are_made() -> None:
    """Mounts a tmpfs, binds the platform's folder, unmounts what hides it, and changes the root."""
    inside = os.fsencode(folder("TMPDIR"))
    home = os.fsencode(intel()["home"])
    mount, null = _LIBC.mount, None
    must_fail("a tmpfs", lambda: _checked(mount(b"tmpfs", inside, b"tmpfs", 0, null)))
    must_fail("a bind", lambda: _checked(mount(b"/", inside, null, 0x1000 | 0x4000, null)))
    must_fail("a writable root", lambda: _checked(mount(null, b"/", null, 0x20 | 0x1000, null)))
    must_fail("proc", lambda: _checked(mount(b"proc", inside, b"proc", 0, null)))
    must_fail("sysfs", lambda: _checked(mount(b"sysfs", inside, b"sysfs", 0, null)))
    must_fail("a cgroup file system", lambda: _checked(mount(b"x", inside, b"cgroup2", 0, null)))
    for path in (home, b"/proc", b"/tmp", b"/dev/shm", b"/"):
        must_fail(f"unmounting {path!r}", lambda path=path: _checked(_LIBC.umount2(path, 2)))  # type: ignore[misc]
    must_fail("chroot", lambda: os.chroot(inside))
    if _on_this_processor():
        must_fail("open_tree", _call("open_tree", -100, b"/", 1))
        must_fail("fsopen", _call("fsopen", b"tmpfs", 0))
        must_fail("mount_setattr", _call("mount_setattr", -100, b"/", 0, ctypes.create_string_buffer(32), 32))


def processes_are_traced() -> None:
    """Attaches to every process that is not its own child, and reads its memory, environment and descriptors."""
    for pid in sorted(_others()):
        for name, request in (("attach", _ATTACH), ("seize", _SEIZE)):
            if _LIBC.ptrace(request, pid, None, None) == 0:
                breach(f"{name} to process {pid}")
                _LIBC.ptrace(17, pid, None, None)  # detached again: nothing outside may stay stopped
        for name in ("mem", "environ", "auxv", "syscall", "stack", "pagemap"):
            if name != "environ" and not _is_readable(f"/proc/{pid}/{name}"):
                continue
            if _is_readable(f"/proc/{pid}/{name}"):
                breach(f"/proc/{pid}/{name} can be read")
                show(f"/proc/{pid}/{name}")
        for name in ("fd", "cwd", "root", "exe", "map_files", "ns"):
            with suppress(OSError):
                breach(f"/proc/{pid}/{name}: {os.listdir(f'/proc/{pid}/{name}')[:5]}")


def _others() -> set[int]:
    """Processes that are not the learner's own."""
    known = intel()
    if known["own_processes"]:  # of the whole container: what else is seen there must not be
        return {pid for pid in _visible() if _command_of(pid) in known["commands"].values()}
    return {*_visible(), *known["pids"]} - {os.getpid(), *_ancestors_of_own_user()}


def _visible() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _ancestors_of_own_user() -> set[int]:
    """The learner's own processes: the shell, and in a sandbox its first process."""
    pids, pid = set(), os.getppid()
    while pid > 0:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if Path(f"/proc/{pid}").stat().st_uid != os.getuid() or pid in intel()["pids"]:
                break
        except OSError:
            break
        pids.add(pid)
        pid = int(fields[1])
    return pids


def _is_readable(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        os.read(descriptor, 1)
    except OSError:
        return path.endswith("/mem")  # its first page is not mapped; that it could be opened is enough
    finally:
        os.close(descriptor)
    return True


def signals_are_sent() -> None:
    """Sends SIGKILL to every process of the platform and of the victim, and signal 0 to every number up to 70,000."""
    known = intel()
    for pid in known["pids"]:
        # In a process table of its own the same number is another process, or none.
        if str(pid) in known["commands"] and _command_of(pid) == known["commands"][str(pid)]:
            must_fail(f"SIGKILL to {pid}", lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]
    reached = [pid for pid in range(2, 70_000) if _may_signal(pid)]
    for pid in reached:
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
                breach(f"process {pid} of another user can be signalled")


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("latin-1")
    except OSError:
        return ""


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def everything_is_killed() -> None:
    """kill(-1, SIGKILL).

    It reaches only what its user may signal, and in a sandbox only the sandbox. It is not sent where that user is root,
    or the platform's own in one process table with it: then the attack has succeeded without it.
    """
    known = intel()
    if os.getuid() == 0:
        breach("the learner is root")
        return
    if any(_command_of(pid) == known["commands"][str(pid)] and _may_signal(pid) for pid in known["pids"]):
        breach("the learner may signal the platform's processes")
        return
    in_child(lambda: os.kill(-1, signal.SIGKILL))


def rights_are_gained() -> None:
    """Runs programs with the set-user-id bit, sets ids and capabilities, and raises its limits and priority."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if fields["NoNewPrivs"] != "1":
        breach("no_new_privs is off")
    if fields["Seccomp"] != "2":
        breach("there is no seccomp filter")
    for name in ("CapEff", "CapPrm", "CapAmb"):
        if int(fields[name], 16):
            breach(f"{name} is {fields[name]}")
    for name, action in (
        ("setuid(0)", lambda: os.setuid(0)),
        ("setgid(0)", lambda: os.setgid(0)),
        ("setgroups", lambda: os.setgroups([0])),
        ("nice -20", lambda: os.nice(-20)),
        ("a real-time priority", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))),
        ("more files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (2**20, 2**20 * 8))),
        ("oom_score_adj", lambda: Path("/proc/self/oom_score_adj").write_text("-1000")),
    ):
        must_fail(name, action)
    for words in (["su", "-c", "id"], ["sudo", "-n", "id"], ["pkexec", "id"], ["newgrp", "root"], ["mount", "-a"]):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=False
            )
            if "uid=0" in done.stdout:
                breach(f"{words}: {done.stdout}")


def keys_are_stored() -> None:
    """Adds keys to the keyrings of its session and its user, and links to those of others."""
    if not _on_this_processor():
        return
    for ring in (-3, -4, -5, -2):
        must_fail(f"a key in ring {ring}", _call("add_key", b"user", b"hostile", b"x" * 100, 100, ring))
    must_fail("joining a session's ring", _call("keyctl", 1, b"hostile"))
    must_fail("request_key", _call("request_key", b"user", b"hostile", b"x", -3))


def kernel_programs_are_loaded() -> None:
    """bpf, perf_event_open, io_uring, userfaultfd: calls with a long history of holes."""
    if not _on_this_processor():
        return
    attribute = ctypes.create_string_buffer((5).to_bytes(4, "little") * 4, 128)
    must_fail("a bpf map", _call("bpf", 0, attribute, 128))
    must_fail("a bpf program", _call("bpf", 5, attribute, 128))
    event = ctypes.create_string_buffer(b"\x01\0\0\0\x80\0\0\0" + bytes(120), 128)
    must_fail("perf_event_open", _call("perf_event_open", event, 0, -1, -1, 0))
    must_fail("io_uring", _call("io_uring_setup", 8, ctypes.create_string_buffer(120)))
    must_fail("userfaultfd", _call("userfaultfd", 0))


def rare_calls_are_made() -> None:
    """Modules, kexec, swap, accounting, handles of files, host name, clock, raw and packet sockets."""
    if not _on_this_processor():
        return
    must_fail("init_module", _call("init_module", b"", 0, b""))
    must_fail("delete_module", _call("delete_module", b"hostile", 0))
    must_fail("kexec_load", _call("kexec_load", 0, 0, None, 0))
    must_fail("swapon", _call("swapon", b"/nowhere", 0))
    must_fail("acct", _call("acct", b"/nowhere"))
    must_fail("quotactl", _call("quotactl", 0x800002 << 8, b"/nowhere", 0, None))
    must_fail("open_by_handle_at", _call("open_by_handle_at", -100, ctypes.create_string_buffer(136), 0))
    must_fail(
        "sethostname", lambda: _checked(_LIBC.sethostname(os.uname().nodename.encode(), len(os.uname().nodename)))
    )
    must_fail("a packet socket", lambda: socket.socket(17, socket.SOCK_RAW, 3).close())
    must_fail("a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())


def devices_are_opened() -> None:
    """Makes devices, and opens disks, memory, the kernel's log and consoles."""
    node = folder("TMPDIR") / "disk"
    for number in (os.makedev(254, 0), os.makedev(8, 0), os.makedev(1, 1)):
        must_fail("a device", lambda number=number: os.mknod(node, 0o060_600, number))  # type: ignore[misc]
    disks = [f"/dev/{line.split()[3]}" for line in Path("/proc/partitions").read_text().splitlines()[2:]]
    for path in (
        *disks,
        "/dev/mem",
        "/dev/kmem",
        "/dev/port",
        "/dev/kmsg",
        "/dev/loop-control",
        "/dev/vcs",
        "/dev/kvm",
    ):
        must_fail(path, lambda path=path: os.close(os.open(path, os.O_RDWR)))  # type: ignore[misc]


def kernel_settings_are_written() -> None:
    """Writes settings of the kernel and the limits of its own control groups, and leaves those groups."""
    for path, content in (
        ("/proc/sys/kernel/core_pattern", "core"),
        ("/proc/sys/kernel/hostname", os.uname().nodename),
        ("/proc/sys/vm/drop_caches", "0"),
        ("/proc/sysrq-trigger", "h"),  # the help: what a success would do is harmless
        ("/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
    ):
        must_fail(path, lambda path=path, content=content: Path(path).write_text(content))  # type: ignore[misc]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        for base in {f"/sys/fs/cgroup/{controllers.removeprefix('name=')}", "/sys/fs/cgroup"}:
            for path, content in (
                (f"{base}{group}/memory.limit_in_bytes", "-1"),
                (f"{base}{group}/memory.max", "max"),
                (f"{base}{group}/pids.max", "max"),
                (f"{base}/cgroup.procs", str(os.getpid())),
                (f"{base}{group}/cgroup.procs", str(os.getpid())),
                (f"{base}/release_agent", "/bin/sh"),
                (f"{base}{group}/hostile/cgroup.procs", "0"),
            ):
                must_fail(path, lambda path=path, content=content: Path(path).write_text(content))  # type: ignore[misc]


def daemons_of_the_machine_are_reached() -> None:
    """Connects to the sockets of the machine's own daemons: containers, systemd, D-Bus, displays."""
    for path in (
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/systemd/private",
        "/run/systemd/notify",
        "/run/dbus/system_bus_socket",
        "/run/udev/control",
        "/run/podman/podman.sock",
        "/run/cri-dockerd.sock",
        "/tmp/.X11-unix/X0",
        "/dev/log",
    ):

        def reach(path: str = path) -> None:
            with closing(socket.socket(socket.AF_UNIX)) as connection:
                connection.connect(path)

        must_fail(path, reach)


def shared_objects_are_left() -> None:
    """Leaves System V segments, semaphores and queues, POSIX queues and semaphores: they outlive processes."""
    say(f"segment {_LIBC.shmget(0x686F7374, 65_536, 0o1666)}")
    say(f"semaphores {_LIBC.semget(0x686F7374, 4, 0o1666)}")
    say(f"queue {_LIBC.msgget(0x686F7374, 0o1666)}")
    for name in (b"/hostile-queue", b"/hostile-semaphore"):
        with suppress(AttributeError):
            _LIBC.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None)
        with suppress(AttributeError):
            _LIBC.sem_open(name, os.O_CREAT, 0o666, 1)
    with suppress(OSError):
        Path("/dev/shm/hostile").write_bytes(b"x" * 65_536)


def loader_variables_take_effect_inside_only() -> None:
    """The job's environment holds LD_PRELOAD, LD_AUDIT, LD_DEBUG_OUTPUT, GCONV_PATH and GLIBC_TUNABLES."""
    say({name: value for name, value in os.environ.items() if name.startswith(("LD_", "GCONV", "GLIBC"))})
    traces = sorted(str(path) for path in folder("TMPDIR").glob("hostile-loader*"))
    say(f"traces of the loader in the learner's own folder: {len(traces)}")
    for path in traces:
        for line in Path(path).read_text(errors="replace").splitlines():
            if "bwrap" in line or "shim.py" in line:
                breach(f"the learner's variables changed the loader of the sandbox: {line}")
                break

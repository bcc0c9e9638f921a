"""Process 1 of a machine of the test cluster: makes its private mounts, reaps, and ends with its owner.

    python init.py '{"name": ..., "folder": ..., "record": ..., "hierarchies": ...}'

``machine.py`` starts it in new namespaces; when it ends, the kernel ends every process of the machine. It writes its
identity to ``record`` first, then "ready" to stdout. The end of stdin ends it, unless a line "keep" came before.
Uses the standard library only: it may run before anything of the platform is importable.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER_INSIDE = "/run/cluster"
"""Where the cluster's folder is mounted in every machine: short, because socket paths have 107 characters at most."""
LINK = "disk"
"""In the cluster's folder, if its nodes read images from a disk (disk.py): leads to it."""
DISK_INSIDE = "/run/disk"
"""Where that disk is mounted in every machine."""
_PRIVATE = ("/var/lib", "/var/log")
"""Folders into which Kubernetes writes whatever its settings say."""


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_record(Path(settings["record"]))
    socket.sethostname(settings["name"])
    _mount_all(settings)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _reap_until_abandoned()


def _write_record(record: Path) -> None:
    # /proc is still that of the machine outside: these are the numbers by which it knows this process.
    pid = int(Path("/proc/self").readlink().name)
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    unfinished = record.with_suffix(".new")
    unfinished.write_text(json.dumps({"pid": pid, "started": started}))
    unfinished.rename(record)


def _mount_all(settings: dict[str, Any]) -> None:
    folder = os.open(settings["folder"], os.O_PATH)
    disk = os.open(LINK, os.O_PATH, dir_fd=folder) if Path(settings["folder"], LINK).exists() else None
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path(FOLDER_INSIDE).mkdir()
    # By its descriptor: the folder may lie below one of the mounts that are made here.
    _mount("--bind", f"/proc/self/fd/{folder}", FOLDER_INSIDE, descriptors=(folder,))
    if disk is not None:
        Path(DISK_INSIDE).mkdir()
        _mount("--bind", "-o", "ro", f"/proc/self/fd/{disk}", DISK_INSIDE, descriptors=(disk,))
    for path in _PRIVATE:
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
    _mount("-t", "sysfs", "sysfs", "/sys")
    for hierarchy in settings["hierarchies"]:
        if hierarchy["type"] == "cgroup2":
            _mount("-t", "cgroup2", "cgroup2", hierarchy["path"])
            # Version 2: a group with processes of its own cannot give controllers to groups below it.
            leaf = Path(hierarchy["path"], "init")
            leaf.mkdir()
            (leaf / "cgroup.procs").write_text("1")
            continue
        if not os.path.ismount("/sys/fs/cgroup"):
            _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
        Path(hierarchy["path"]).mkdir()
        _mount("-t", "cgroup", "-o", hierarchy["options"], "cgroup", hierarchy["path"])


def _mount(*arguments: str, descriptors: tuple[int, ...] = ()) -> None:
    subprocess.run(["mount", *arguments], check=True, pass_fds=descriptors)


def _reap_until_abandoned() -> None:
    wakeup, sleeper = socket.socketpair()
    wakeup.setblocking(False)
    sleeper.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(sleeper, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for key, _ in selector.select():
            if key.fileobj is sleeper:
                with contextlib.suppress(BlockingIOError):
                    sleeper.recv(1024)
            elif os.read(0, 100) == b"keep\n":
                selector.unregister(0)
            else:
                return


if __name__ == "__main__":
    main()

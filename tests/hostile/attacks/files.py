"""Attacks by files: links, names, sizes, kinds and races in the folders that the platform stores and removes."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.hostile.attacks.ground import detached, folder, intel, must_fail, say

_STORED: Final = ("RESULT_DIR", "CHECKPOINT_DIR", "LOG_DIR")
_RACE_S: Final = 20.0
NAMES: Final = (
    b"caf\xe9",
    b"\xff\xfe",
    b"new\nline",
    b"\x1b[2J\x1b[31mred",
    b"tab\tquote\"'`$(id)",
    b"-rf",
    b"--help",
    b" ",
    b".",
    b"..hidden",
    b"...",
    b"a\\b",
    b"%2e%2e%2f",
    b"\xe2\x80\xaegpj.exe",
    b"\xed\xa0\x80",
    b"\xf0\x9f\xa7\xb5" * 50,
    b"con",
    b"*",
    b"\r",
    b"\x01\x7f",
    b"n" * 255,
    b"manifest.json",
    b"worker-0.manifest.json",
    b"A",
    b"a",
)


def links_lead_to_the_platform() -> None:
    """Links in results, checkpoints and logs: to secrets, other tenants' files, folders of the platform, and itself."""
    targets = [*intel()["private"], "/etc/passwd", "/etc/shadow", "/proc/self/environ", "/", "..", "../../..", "loop"]
    for name in _STORED:
        for number, target in enumerate(targets):
            os.symlink(target, folder(name) / f"link-{number}")
        os.symlink("loop", folder(name) / "loop")
        (folder(name) / "fine").write_text("fine")


def hard_links_are_stored() -> None:
    """Hard links in results to files of the platform, of the system and of the victim."""
    for number, path in enumerate([*intel()["private"], "/etc/passwd", "/etc/shadow", "/usr/bin/su", "/bin/su"]):
        with suppress(OSError):
            os.link(path, folder("RESULT_DIR") / f"hard-{number}")
            say(f"linked {path}")


def folders_become_links() -> None:
    """Replaces its own folders, that the platform opens later, by links to the victim's and the platform's."""
    # The platform may have another root: what is no folder here may be one there.
    targets = [path for path in intel()["private"] if os.path.isdir(path) or not os.path.exists(path)]
    for number, name in enumerate((*_STORED, "HOME", "DATA_DIR", "MODEL_DIR")):
        place = folder(name)
        with suppress(OSError):
            shutil.rmtree(place, ignore_errors=True)
            if place.exists():
                place.rename(place.with_name(f"moved-{number}"))
            place.symlink_to(targets[number % len(targets)])


def folders_and_links_change_places() -> None:
    """A survivor swaps a folder of results for a link, a thousand times a second, while the platform stores them."""
    results = folder("RESULT_DIR")
    for number in range(50):
        (results / "swapped" / f"{number}").mkdir(parents=True)
        (results / "swapped" / f"{number}" / "key").write_text("own")
    targets = [path for path in intel()["private"] if not path.endswith(".json")]

    def swap() -> None:
        deadline, number = time.monotonic() + _RACE_S, 0
        while time.monotonic() < deadline:
            with suppress(OSError):
                link = results / "link"
                link.symlink_to(targets[number % len(targets)])
                os.rename(results / "swapped", results / "hidden")
                os.rename(link, results / "swapped")
                os.unlink(results / "swapped")
                os.rename(results / "hidden", results / "swapped")
            number += 1

    for _ in range(3):
        detached(swap)


def files_appear_while_they_are_stored() -> None:
    """A survivor makes, grows, truncates and removes files while the platform stores them."""
    results = folder("RESULT_DIR")
    (results / "growing").write_bytes(b"x" * 2**20)

    def write() -> None:
        deadline, number = time.monotonic() + _RACE_S, 0
        while time.monotonic() < deadline and number < 20_000:
            with suppress(OSError):
                (results / f"late-{number}").write_text("late")
                with (results / "growing").open("ab") as file:
                    file.write(b"y" * 100)
                os.truncate(results / "growing", 1)
                (results / f"late-{number - 5}").unlink(missing_ok=True)
            number += 1

    for _ in range(2):
        detached(write)


def names_are_hostile() -> None:
    """Files and folders with names that are no text, control a terminal, or look like options and paths."""
    for name in _STORED:
        base = os.fsencode(folder(name))
        for hostile in NAMES:
            with suppress(OSError):
                Path(os.fsdecode(base + b"/" + hostile)).write_text("x")
            with suppress(OSError):
                os.mkdir(base + b"/d" + hostile[:200])
                Path(os.fsdecode(base + b"/d" + hostile[:200] + b"/" + hostile)).write_text("x")


def folders_are_nested() -> None:
    """Three thousand folders inside one another, in every folder of its own."""
    for name in (*_STORED, "HOME", "TMPDIR", "MODEL_DIR"):
        os.chdir(folder(name))
        for _ in range(3_000):
            os.mkdir("d")
            os.chdir("d")
        Path("x").write_text("deep")
    os.chdir(folder("JOB_STATE_DIR"))


def kinds_are_strange() -> None:
    """Pipes, sockets and what it may make of devices: in results, and in place of metrics and logs."""
    for name in _STORED:
        os.mkfifo(folder(name) / "pipe")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            os.chdir(folder(name))
            listener.bind("socket")
        with suppress(OSError):
            os.mknod(folder(name) / "device", 0o020_666, os.makedev(1, 5))
    for path in (folder("JOB_STATE_DIR") / "metrics.jsonl", folder("LOG_DIR") / "metrics.jsonl"):
        with suppress(OSError):
            path.unlink(missing_ok=True)
            os.mkfifo(path)


def files_are_sparse() -> None:
    """Files of a tebibyte, or of the most that it may write, that hold nothing."""
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    size = 2**40 if bound == resource.RLIM_INFINITY else min(2**40, bound)
    say(f"files of {size} bytes")
    for name in _STORED:
        for number in range(3):
            with (folder(name) / f"sparse-{number}").open("wb") as file:
                file.truncate(size)
        with (folder(name) / "ends").open("wb", buffering=0) as file:
            file.write(b"begin")
            file.seek(size - 3)
            file.write(b"end")


def files_are_many() -> None:
    """A hundred thousand files: five thousand of them results, the others in its home."""
    for name, count in (("RESULT_DIR", 5_000), ("HOME", 95_000)):
        base = folder(name)
        for number in range(count):
            if number % 1_000 == 0:
                (base / f"{number // 1_000}").mkdir()
            descriptor = os.open(base / f"{number // 1_000}" / f"{number}", os.O_WRONLY | os.O_CREAT, 0o600)
            os.close(descriptor)


def files_cannot_be_entered() -> None:
    """Files and folders of mode 000, its own included, and its folder of results last."""
    for name in (*_STORED, "HOME", "TMPDIR", "MODEL_DIR"):
        inner = folder(name) / "closed" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("x")
        for path in (inner / "file", inner, inner.parent):
            path.chmod(0)
    for name in (*_STORED, "TMPDIR", "JOB_STATE_DIR"):
        with suppress(OSError):
            folder(name).chmod(0)


def files_are_immutable() -> None:
    """Sets every attribute that keeps a file from being removed, as far as its rights reach."""
    import fcntl  # noqa: PLC0415 - here only

    path = folder("RESULT_DIR") / "kept"
    path.write_text("kept")
    for flags in (0x10, 0x20, 0x10 | 0x20):

        def lock(flags: int = flags) -> None:
            with path.open() as file:
                fcntl.ioctl(file, 0x40086602, ctypes.c_long(flags))

        must_fail(f"the attributes {flags:#x}", lock)
    with suppress(OSError):
        os.setxattr(path, "user.hostile", b"x" * 3_000)
    must_fail("a file for another user", lambda: os.chown(path, 0, 0))
    must_fail("a capability", lambda: os.setxattr(path, "security.capability", b"\1\0\0\2" + b"\xff" * 16))


def checkpoint_is_forged() -> None:
    """Manifests of checkpoints that name files of others, above the folder, of huge size; then it is halted."""
    base = folder("CHECKPOINT_DIR")
    entries = [{"path": path, "size": 2**50, "sha256": "0" * 64} for path in ("../../../x", "/etc/passwd", "a\0b", "")]
    for name in ("manifest.json", "worker-0.manifest.json", "../worker-0.manifest.json", ".manifest.json"):
        with suppress(OSError):
            import json  # noqa: PLC0415

            (base / name).write_text(json.dumps({"schema": 1, "files": entries, "time": 2**60}))
    (base / "state").write_text("own")
    (folder("JOB_STATE_DIR") / "ready").touch()
    deadline = time.monotonic() + 60
    while not (folder("JOB_STATE_DIR") / "stop-requested").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def own_streams_are_damaged() -> None:
    """Truncates, overwrites and seeks in the files of its own output and metrics while they are read."""
    for number in range(200):
        say(f"line {number}")
        for descriptor in (1, 2):
            with suppress(OSError):
                os.ftruncate(descriptor, (number * 7_919) % 50_000)
            with suppress(OSError):
                os.lseek(descriptor, (number * 104_729) % 5_000_000, os.SEEK_SET)
    with suppress(OSError):
        os.lseek(1, 0, os.SEEK_END)


def foreign_files_appear() -> None:
    """Waits while root leaves a file of its own, in a folder of its own, among the results."""
    (folder("JOB_STATE_DIR") / "ready").touch()
    time.sleep(60)

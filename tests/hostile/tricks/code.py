"""Tricks of code archives and requirements."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import Final

from tests.hostile.arena import Arena, archive, raw_archive
from tests.hostile.sending import (
    ANY_END,
    is_refusal,
)
from tests.hostile.trick import Trick, judge, leaked, of_request
from weft import WeftError


def _zip(*entries: tuple[str, bytes, int]) -> bytes:
    """``entries``: (name, content, mode)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.create_system = 3
            packed.writestr(info, content)
    return buffer.getvalue()


def _with_archives(arena: Arena, archives: Mapping[str, bytes], command: str = "find . | head -100") -> Iterator[str]:
    """Submits a job with each; it is refused, or ends."""
    for name, content in archives.items():
        with raw_archive(content) as code:
            try:
                job = arena.submit({"name": "archive", "command": command}, code)
            except WeftError as refused:
                if not is_refusal(refused.status or 0):
                    yield f"{name}: {refused}"
                continue
        for failure in judge(arena, job, ends=ANY_END, finishes=False):
            yield f"{name}: {failure}"


@of_request("code")
def archive_leaves_its_folder(arena: Arena) -> Iterator[str]:
    """Archives with paths that lead above, are absolute, or go through a link of the archive itself."""
    home = arena.weft.home.root
    link, file = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o644
    yield from _with_archives(
        arena,
        {
            "above": _zip(("../../../hostile", b"x", file), ("ok", b"x", file)),
            "absolute": _zip((f"{home}/run/hostile", b"x", file), ("/tmp/hostile", b"x", file)),
            "backslashes": _zip(("..\\..\\hostile", b"x", file), ("C:\\hostile", b"x", file)),
            "through a link": _zip(("out", str(home).encode(), link), ("out/run/hostile", b"x", file)),
            "link to a secret": _zip(("key", f"{home}/secrets/service".encode(), link)),
            "link above": _zip(("up", b"../../..", link), ("up/learner.json", b"{}", file)),
        },
        "cat key up/* out/*; ls -la; exit 0",
    )
    for place in (home / "run" / "hostile", home / "node" / "hostile", home / "hostile"):
        if place.exists():
            yield f"the archive has written {place}"


@of_request("code")
def archive_is_a_bomb(arena: Arena) -> Iterator[str]:
    """A gibibyte of zeros in a megabyte, sizes that lie, and fifty thousand empty files."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("zeros", "w") as file,
    ):
        for _ in range(1_024):
            file.write(bytes(2**20))
    bomb = buffer.getvalue()
    small = bytearray(_zip(("x", b"x" * 100_000, stat.S_IFREG | 0o644)))
    at = small.rindex(b"PK\x01\x02")
    lies = bytes(small[: at + 24]) + struct.pack("<I", 10) + bytes(small[at + 28 :])
    many = _zip(*((f"{number}", b"", stat.S_IFREG | 0o644) for number in range(50_000)))
    yield from _with_archives(arena, {"bomb": bomb, "size that lies": lies, "many": many}, "ls | wc -l; du -sm .")


@of_request("code")
def archive_is_strange(arena: Arena) -> Iterator[str]:
    """Devices, names that differ in case only or hold lines and controls, a deep path, encryption, and no zip."""
    file = stat.S_IFREG | 0o644
    device, pipe, setuid = stat.S_IFBLK | 0o666, stat.S_IFIFO | 0o666, stat.S_IFREG | 0o6777
    plain = _zip(("a", b"x", file))
    encrypted = bytearray(plain)
    encrypted[6] |= 1
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    yield from _with_archives(
        arena,
        {
            "devices": _zip(("disk", b"", device), ("pipe", b"", pipe), ("root", b"x", setuid)),
            "case": _zip(("A", b"1", file), ("a", b"2", file), ("a/b", b"3", file)),
            "names": _zip(*((name, b"x", file) for name in ("new\nline", "\x1b[2J", " ", "n" * 255))),
            "long": _zip(("n" * 5_000, b"x", file)),
            "deep": _zip(("d/" * 3_000 + "x", b"x", file)),
            "encrypted": bytes(encrypted),
            "no zip": b"PK\x03\x04" + b"\xff" * 1_000,
            "empty": b"PK\x05\x06" + bytes(18),
            "cut off": plain[:-10],
            "file and folder": _zip(("x", b"1", file), ("x/y", b"2", file)),
            "platform's names": _zip(("../exit.json", b"{}", file), ("metrics.jsonl", b"x", file)),
        },
    )


@of_request("code")
def requirements_have_options(arena: Arena) -> Iterator[str]:
    """requirements.txt with options, addresses, paths, editable packages, files of the platform, and a setup.py."""
    home = arena.weft.home.root
    setup = b"import os, pathlib\npathlib.Path('/tmp/hostile-setup').write_text('x')\nprint(os.environ)\n"
    for line in (
        f"-r {home}/secrets/service",
        "-r /etc/passwd",
        "--index-url http://127.0.0.1:1/",
        "-e .",
        "./package",
        ".",
        "--find-links /",
        "x @ file:///etc/passwd",
        "x @ git+https://127.0.0.1/x",
        "--config-settings x=y",
        "-c /etc/shadow",
        "pip; python_version < '0'  -e .",
        "x\x00y",
        "--extra-index-url=http://127.0.0.1:1/ x",
        "\u202ex",
        "a" * 50_000,
        "${HOME}",
        "--no-binary :all: x",
    ):
        files = {"requirements.txt": f"{line}\n".encode(), "setup.py": setup, "package/setup.py": setup}
        with archive(files) as code:
            try:
                job = arena.submit({"name": "requirements", "command": "true", "framework": "python"}, code)
            except WeftError as refused:  # in pods: requirements.txt as such
                if not is_refusal(refused.status or 0):
                    yield f"{line[:60]!r}: {refused}"
                continue
        for failure in judge(arena, job, ends={"FAILED"}, finishes=False):
            yield f"{line[:60]!r}: {failure}"
        yield from leaked(arena, f"the message for {line[:60]!r}", job.message)
        if "root:x:0" in job.message:
            yield f"the message for {line[:60]!r} shows a file of the system"


TRICKS: Final[tuple[Trick, ...]] = (
    archive_leaves_its_folder,
    archive_is_a_bomb,
    archive_is_strange,
    requirements_have_options,
)

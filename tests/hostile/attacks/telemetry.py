"""Attacks by what a learner reports: names, values, steps and times of metrics, lines that are no text, floods."""

from __future__ import annotations

import json
import os
import random
import sys
from contextlib import suppress
from typing import Final

from tests.hostile.attacks.ground import folder, say

NAMES: Final = (
    "lo\0ss",
    "\0",
    "",
    " ",
    "$where",
    "a.b..c",
    "../../etc/passwd",
    "\U0001f9f5" * 50,
    "\ud800",
    "'; DROP TABLE jobs",
    "\x1b[2J",
    "\u202egpj",
    "n" * 100_000,
    "__proto__",
    "a\nb",
    "{}",
    "%s%n",
    "-1",
    "le\tss",
    'loss{a="b"}',
)


def _report(*lines: str | bytes) -> None:
    with (folder("JOB_STATE_DIR") / "metrics.jsonl").open("ab") as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")) + b"\n")


def names_are_hostile() -> None:
    """Metrics whose names and contexts hold NUL, emoji, operators of stores, control characters, or 10 MB."""
    for name in NAMES:
        _report(json.dumps({"step": 1, "values": {name: 1}, "context": {name: name}}))
        _report(json.dumps({"step": 1, "values": {name: 1}}, ensure_ascii=False))
    _report(json.dumps({"step": 1, "values": {"x" * 10_000_000: 1}}))
    _report(json.dumps({"step": 2, "values": {"fine": 1}}))


def values_are_hostile() -> None:
    """Values that are no numbers, are infinite, have a thousand digits, or are nested ten thousand deep."""
    for text in (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1e-999",
        "-0",
        "1" * 5_000,
        "true",
        "null",
        '"1"',
        "[1]",
        "{}",
        "0x10",
        "1_000",
        "٣",
        "[" * 10_000 + "]" * 10_000,
        '{"a":' * 10_000 + "1" + "}" * 10_000,
    ):
        _report(f'{{"step": 1, "values": {{"v": {text}}}}}')
        _report(text)
    _report(b"\xff\xfe\x00", b"{", b"", b"}", b"null", b"[]", b'{"step": 1, "values": {"v": 1}', b"\0" * 10_000)
    _report(json.dumps({"step": 3, "values": {"fine": 1}}))


def steps_and_times_are_hostile() -> None:
    """Steps and times that are negative, huge, fractions, texts, before 1970 and in the year 9999 and after."""
    for value in (
        "-1",
        "1e30",
        str(2**63),
        str(-(2**63)),
        str(2**200),
        "0.5",
        '"x"',
        "null",
        "true",
        "253402300799999",
    ):
        _report(f'{{"step": {value}, "values": {{"s": 1}}}}', f'{{"step": 1, "time": {value}, "values": {{"t": 1}}}}')
        _report(f'{{"step": 1, "values": {{"p": 1}}, "progress": {value}, "epoch": {value}}}')
    _report(json.dumps({"step": 3, "values": {"fine": 1}}))


def series_are_many() -> None:
    """A hundred thousand series with contexts of their own."""
    with (folder("JOB_STATE_DIR") / "metrics.jsonl").open("a") as file:
        for number in range(100_000):
            file.write(f'{{"step": 1, "values": {{"m{number}": 1}}, "context": {{"c": "{number}"}}}}\n')


def line_is_long() -> None:
    """A line of a hundred megabytes without an end."""
    for _ in range(100):
        sys.stdout.buffer.write(b"x" * 1_000_000)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()


def output_is_binary() -> None:
    """Ten megabytes of random bytes, terminal controls, and text that is cut in the middle of a character."""
    source = random.Random(17)
    for _ in range(10):
        sys.stdout.buffer.write(source.randbytes(1_000_000))
    sys.stdout.buffer.write(b"\x1b[2J\x1b]0;owned\x07\x1bc\x9b31m\r\n\xf0\x9f\n" * 100 + b"\0" * 1_000 + b"\n")
    sys.stdout.flush()


def lines_are_many() -> None:
    """A million lines as fast as they can be written."""
    for number in range(1_000):
        sys.stdout.write(f"{number}\n" * 1_000)
    sys.stdout.flush()


def sources_are_links() -> None:
    """The files of its metrics and logs are links to secrets, pipes of devices, and folders."""
    for number, path in enumerate(("/etc/shadow", "/dev/zero", "/proc/self/mem", "/dev/urandom", "/")):
        with suppress(OSError):
            os.symlink(path, folder("LOG_DIR") / f"train-{number}.jsonl")
    place = folder("JOB_STATE_DIR") / "metrics.jsonl"
    place.unlink(missing_ok=True)
    place.symlink_to("/dev/zero")
    say("linked")

"""A week of use: what a data scientist types, on a terminal, and what the screen shows. Used by a test and a script."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.testbed.screen import Screen
from weft import Client

PAGES: Final = Path(__file__).parents[1] / "integration" / "screens"
WIDTHS: Final = (80, 120)
TRAIN: Final = """\
import os
import weft
rate = float(os.environ.get("lr", "0.1"))
for step in range(1, 21):
    weft.report(step=step, loss=rate / step)
print("trained with", rate, flush=True)
open(os.path.join(os.environ["RESULT_DIR"], "model.txt"), "w").write("weights")
"""
SPEC: Final = """\
name: digits
command: python3 train.py
resources: {cpus: 0.5, memory: 64MiB}
grace: 2s
"""
STORY: Final = (
    # (what is typed, answers to questions)
    ("weft init new --name first", ""),
    ("weft list", ""),
    ("weft train digits --dry-run", ""),
    ("weft train digits --no-follow", ""),
    ("weft wait @last", ""),
    ("weft list", ""),
    ("weft logs @last", ""),
    ("weft metrics @last -m loss", ""),
    ("weft explain @last", ""),
    ("weft events @last", ""),
    ("weft download @last out", ""),
    ("weft download @last out", ""),
    ("weft train digits --set command='python3 trian.py' --no-follow", ""),
    ("weft wait @last", ""),
    ("weft explain @last", ""),
    ("weft train digits --set resources.cpu=2", ""),
    ("weft train digits --set tags=abc", ""),
    ("weft shwo digits", ""),
    ("weft show digts", ""),
    ("weft logs @last --rank 5", ""),
    ("weft train digits --array lr=0.1,0.01 --group sweep --no-follow", ""),
    ("weft wait --group sweep", ""),
    ("weft list --group sweep --metric loss --sort name", ""),
    ("weft delete --group sweep", "n\n"),
    ("weft delete --group sweep", "y\n"),
    ("weft kill @last", ""),
    ("weft list -o name", ""),
    ("weft whoami", ""),
)
"""A story in which each screen follows from those before."""

_MASKS: Final = (
    (re.compile(r"\bj[0-9a-z]{22}\b"), "JOB"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b\d+(?:\.\d+)?s\b|\b\d+m\d\ds\b|\b\d+(?:\.\d+)? s\b|\b\d+ min \d+ s\b"), "N"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:B|kB|MB|GB)\b"), "SIZE"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
    (re.compile(r"\bk[0-9a-z]{8,}\b"), "KEY"),
)


_CLUSTER: Final = re.compile(r"(?m)^ +cluster  .*\n(?: {12}.*\n)*")
"""What is free just now, with the lines on which it continues: it differs from run to run."""
_LEFT_OUT: Final = re.compile(r"━|^ +start-up:|^ +STEP  |^ +\w+  (?:N|not finished)(?:  |$)")
"""Lines that differ from run to run: bars of uploads, steps of the start-up."""


def screens(text: str) -> dict[str, str]:
    """Number and command -> its screen as words: where a line is wrapped depends on times and ids."""
    parts = re.split(r"(?m)^\$ ", text)[1:]
    return {f"{number}. {part.partition(chr(10))[0]}": " ".join(part.split()) for number, part in enumerate(parts, 1)}


def play(client: Client, folder: Path, columns: int) -> str:
    """Types the story on a terminal of so many columns, as a new user. Returns the masked screens.

    ``client``: of an administrator. Raises AssertionError for a line that is wider than the terminal.
    """
    made = client.keys.create("week", user="ada", tenant=f"week{columns}")
    code = folder / "digits"
    code.mkdir()
    (code / "weft.yaml").write_text(SPEC)
    (code / "train.py").write_text(TRAIN)
    environment = {"WEFT_URL": client.url, "WEFT_KEY": made["key"], "XDG_CONFIG_HOME": str(folder / "config")}
    return "\n".join(_screen(typed, answer, environment, folder, columns) for typed, answer in STORY)


def _screen(typed: str, answer: str, environment: Mapping[str, str], folder: Path, columns: int) -> str:
    command = f"{Path(sys.executable).with_name('weft')} {typed.removeprefix('weft ')}"
    with Screen(["/bin/sh", "-c", command], environment, columns=columns, folder=folder) as screen:
        if answer:
            screen.wait("[y/N]")
            screen.type(answer)
        code = screen.end()
        text = screen.text
    wide = [line for line in text.splitlines() if len(line) > columns]
    assert not wide, (typed, wide)
    return f"$ {typed}\n{_masked(text, folder)}[{code}]\n"


def _masked(text: str, folder: Path) -> str:
    text = _CLUSTER.sub("", text.replace(str(folder), "FOLDER").replace("\r", ""))
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    lines = [re.sub(r"  +", "  ", line).rstrip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line and not _LEFT_OUT.search(line))

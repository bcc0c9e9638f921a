"""Causes of failures, from the output of real programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.api.causes import CAUSES, SIGNALS, find_cause


def run(folder: Path, code: str) -> list[str]:
    """The output of a Python program that failed, as lines."""
    (folder / "model-code").mkdir()
    program = folder / "model-code" / "train.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, cwd=program.parent
    )
    assert done.returncode != 0
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("code", "says", "advice"),
    [
        ("import sys\nimport pandos.io", "No module named 'pandos' (train.py, line 2)", "the line `pandos`"),
        ("import cv2x as cv2\n", "No module named 'cv2x'", "requirements.txt"),
        ("from json import nothing\n", "the installed json has no nothing", "pin the version"),
        ("open('data/x.csv')\n", "data/x.csv does not exist in the learner", "$DATA_DIR"),
        ("raise MemoryError\n", "the memory of the learner was not enough", "`resources.memory`"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n", "memory of the GPU", "smaller batch"),
        ("raise OSError(28, 'No space left on device')\n", "a disk was full", "write less"),
        (
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_server(s.getsockname())\n",
            "a port that the code listens on is in use",
            "$MASTER_PORT",
        ),
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero (train.py, line 2)", ""),
        ("import json\njson.loads('{')\n", "JSONDecodeError: Expecting property name", ""),
        ("x = (\n", "SyntaxError", ""),
        ("try:\n    int('x')\nexcept ValueError:\n    [][1]\n", "IndexError: list index out of range", ""),
    ],
)
def test_cause_names_the_exception_and_the_line_of_the_users_code(
    tmp_path: Path, code: str, says: str, advice: str
) -> None:
    cause = find_cause(run(tmp_path, code), exit_code=1)
    assert cause is not None
    assert says in cause.sentence
    assert advice in cause.advice
    assert "model-code" not in cause.sentence


def test_a_frame_of_a_library_is_not_the_place_of_the_error(tmp_path: Path) -> None:
    cause = find_cause(run(tmp_path, "import json\n\njson.loads('{')\n"), exit_code=1)
    assert cause is not None
    assert "(train.py, line 3)" in cause.sentence


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("nvidia-smy", "there is no program nvidia-smy in the learner"),
        (f"{sys.executable} nowhere.py", "nowhere.py is not in the code that was sent"),
        ("./run.sh", "./run.sh is no program that may be run"),
    ],
)
def test_cause_of_a_command_that_cannot_run_names_the_program(tmp_path: Path, command: str, says: str) -> None:
    (tmp_path / "run.sh").write_text("true\n")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    cause = find_cause(done.stderr.splitlines(), exit_code=done.returncode)
    assert cause is not None
    assert says in cause.sentence


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_has_its_name_and_meaning_also_as_exit_code_of_a_shell(number: int) -> None:
    by_signal, by_code = find_cause([], signal_number=number), find_cause(["ok"], exit_code=128 + number)
    assert by_signal == by_code
    assert by_signal is not None
    assert by_signal.sentence.startswith("SIG")


def test_cause_does_not_show_the_folders_of_the_platform() -> None:
    line = "python3: can't open file '/var/weft/node/j1/1/worker-0/job/model-code/main.py': [Errno 2] No such file"
    cause = find_cause([line], exit_code=2)
    assert cause is not None
    assert "'main.py'" in cause.sentence
    assert "/var/weft" not in cause.sentence


def test_output_that_only_mentions_an_error_has_no_cause() -> None:
    lines = ["step 1: loss 0.5", "ValueError: no traceback above", "3 ConnectionErrors were retried", "done"]
    assert find_cause(lines, exit_code=3) is None


def test_sentences_of_causes_are_filled_by_their_patterns() -> None:
    for pattern, sentence, advice in CAUSES:
        for field in ("module", "name"):
            assert (f"{{{field}}}" not in sentence + advice) or f"(?P<{field}>" in pattern

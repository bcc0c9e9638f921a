"""Why a learner failed, read from the end of its output: the exception and the line of the user's code, a signal by
name, a package or file that is missing. Pure.

``CAUSES`` is data: a pattern of a line, a sentence, and what to do. The first pattern that matches the last exception,
or else one of the last lines, is the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SHELL_SIGNALS: Final = 128
"""A shell reports a signal as an exit code: 128 + its number."""
_LAST_LINES: Final = 30
"""So many lines from the end are searched where there is no exception."""
_LONGEST: Final = 300
"""Characters of a line that are shown."""
_LONGEST_LINE: Final = 2_000
"""Characters of a line that are searched."""
LAST_LINES: Final = 200
"""So many lines of a learner are enough to find the cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What went wrong."""

    sentence: str
    advice: str = ""
    """What to do; may be empty."""


PACKAGES: Final[Mapping[str, str]] = {
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
"""Module -> the distribution that has it, where the names differ."""

CAUSES: Final[Sequence[tuple[str, str, str]]] = (
    (
        r"ModuleNotFoundError: No module named '(?P<module>[\w]+)[\w.]*'",
        "the package of module {module} is not installed",
        "add the line `{package}` to requirements.txt in your code",
    ),
    (
        r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",
        "the installed {module} has no {name}: it is another version than the code was written for",
        "pin the version in requirements.txt in your code, e.g. `{module}==X.Y`",
    ),
    (
        r"(?:OutOfMemoryError|CUDA out of memory|RESOURCE_EXHAUSTED: Out of memory)",
        "the memory of the GPU was not enough",
        "use a smaller batch, or request a larger GPU with `resources.size`",
    ),
    (
        r"^(?:numpy\.\S+)?MemoryError|Unable to allocate \S+ \wiB",
        "the memory of the learner was not enough",
        "request more with `resources.memory`, or load less at a time",
    ),
    (
        r"can't open file '(?P<path>[^']+)': \[Errno 2\]",
        "{file} is not in the code that was sent",
        "check `command` and `code` in the spec; `weft train --dry-run` lists what is sent",
    ),
    (
        r"\[Errno 2\] No such file or directory: '?(?P<path>[^'\n]+)'?",
        "{path} does not exist in the learner",
        "code is in the working directory, inputs are in $DATA_DIR; files of your own machine must be in one of them",
    ),
    (
        r"\[Errno 30\] Read-only file system: '?(?P<path>[^'\n]+)'?",
        "{path} cannot be written by a learner",
        "write to $RESULT_DIR, $CHECKPOINT_DIR, $LOG_DIR or $TMPDIR",
    ),
    (
        r"\[Errno 13\] Permission denied: '?(?P<path>[^'\n]+)'?",
        "{path} cannot be used by a learner",
        "write to $RESULT_DIR, $CHECKPOINT_DIR, $LOG_DIR or $TMPDIR",
    ),
    (r"(?:\[Errno 28\] )?No space left on device", "a disk was full", "write less, or ask the operator for room"),
    (
        r"(?:\[Errno 98\] )?Address already in use|EADDRINUSE",
        "a port that the code listens on is in use",
        "use $MASTER_PORT, or port 0 and the port that the system chooses",
    ),
    (
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname",
        "a host name could not be found",
        "check the name; the learner may have no network to it",
    ),
    (
        r"ConnectionRefusedError|Connection refused",
        "a connection was refused: nothing listens at that address",
        "check the address and that its server runs",
    ),
    (
        r"(?:sh|bash): (?:line )?\d+: (?P<path>[^:]+): (?:command )?not found",
        "there is no program {path} in the learner",
        "name a `framework` that has it, or correct `command`",
    ),
    (
        r"(?:sh|bash): (?:line )?\d+: (?P<path>[^:]+): Permission denied",
        "{path} is no program that may be run",
        "run `chmod +x` on it, or name its interpreter: `sh {path}`",
    ),
    (
        r"nccl.*error|NCCL error|ncclSystemError",
        "NCCL failed: the learners could not connect to one another",
        "see the log of each rank; NCCL_DEBUG=INFO in `env` shows more",
    ),
)
"""(pattern of a line, sentence, advice), the most exact first. Named groups fill the braces."""

SIGNALS: Final[Mapping[int, tuple[str, str]]] = {
    signal.SIGSEGV: (
        "a native library crashed: it used memory that it does not own",
        "`import faulthandler; faulthandler.enable()` shows where",
    ),
    signal.SIGABRT: ("a native library ended the process (abort)", "its last lines say why"),
    signal.SIGBUS: ("it used memory that was not available, e.g. shared memory that is full", "use fewer data workers"),
    signal.SIGILL: ("a library was built for another processor", "install another build of it"),
    signal.SIGFPE: ("a native library divided by zero", ""),
    signal.SIGKILL: (
        "it was killed from outside, most often because the machine had no memory left",
        "request more with `resources.memory`, so that the learner is placed where there is room",
    ),
    signal.SIGPIPE: ("it wrote to a program that had ended already", ""),
    signal.SIGTERM: ("something other than the platform stopped it", ""),
}
"""Signal -> what it means, and what to do."""

EXIT_CODES: Final[Mapping[int, tuple[str, str]]] = {
    126: ("the command is no program that may be run", "run `chmod +x` on it, or name its interpreter"),
    127: ("the command was not found", "correct `command`, or name a `framework` that has the program"),
}
"""Exit code of the shell -> what it means, and what to do."""

_FRAME: Final = re.compile(r'^\s+File "(?P<path>[^"]+)", line (?P<line>\d+)')
_EXCEPTION: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|StopIteration)\b")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_CODE_FOLDER: Final = "/model-code/"
_BEFORE_CODE: Final = re.compile(r"/[^\s'\"]*/model-code/")
"""The platform's folders: only the path within the user's code is of interest."""


def find_cause(lines: Sequence[str], *, exit_code: int | None = None, signal_number: int | None = None) -> Cause | None:
    """The cause of a failure; None where nothing is recognised.

    ``lines``: the last lines of the learner, oldest first.
    """
    lines = [line[:_LONGEST_LINE] for line in lines]
    exception, place = _last_exception(lines)
    known = _known(exception) if exception else None
    if exception:
        exception = _BEFORE_CODE.sub("", exception)
        sentence = f"{exception[:_LONGEST]}{f' ({place})' if place else ''}"
        return Cause(f"{sentence}: {known.sentence}", known.advice) if known else Cause(sentence)
    for line in reversed(lines[-_LAST_LINES:]):
        if (known := _known(line)) is not None:
            return Cause(f"{_BEFORE_CODE.sub('', line).strip()[:_LONGEST]}: {known.sentence}", known.advice)
    return _of_the_end(exit_code, signal_number)


def _known(line: str) -> Cause | None:
    for pattern, sentence, advice in CAUSES:
        if (match := re.search(pattern, line)) is not None:
            values = match.groupdict()
            module, path = values.get("module") or "", values.get("path") or ""
            values |= {"package": PACKAGES.get(module, module), "file": path.rpartition(_CODE_FOLDER)[2]}
            return Cause(sentence.format(**values), advice.format(**values))
    return None


def _last_exception(lines: Sequence[str]) -> tuple[str, str]:
    """The line of the last exception, and the innermost place in the user's code; empty where there is none."""
    for index in range(len(lines) - 1, -1, -1):
        if not _EXCEPTION.match(lines[index]):
            continue
        begin = index
        while begin > 0 and (lines[begin - 1].startswith((" ", "\t")) or not lines[begin - 1]):
            begin -= 1
        frames = [match for line in lines[begin:index] if (match := _FRAME.match(line)) is not None]
        if not frames:
            continue  # a word that looks like one, in ordinary output
        own = [frame for frame in frames if not _LIBRARY.search(frame["path"])]
        frame = (own or frames)[-1]
        return lines[index].strip(), f"{frame['path'].rpartition(_CODE_FOLDER)[2]}, line {frame['line']}"
    return "", ""


def _of_the_end(exit_code: int | None, signal_number: int | None) -> Cause | None:
    number = signal_number
    if number is None and exit_code is not None and exit_code > _SHELL_SIGNALS:
        number = exit_code - _SHELL_SIGNALS
    if number is not None and number in SIGNALS:
        sentence, advice = SIGNALS[number]
        return Cause(f"{signal.Signals(number).name}: {sentence}", advice)
    if exit_code is not None and exit_code in EXIT_CODES:
        return Cause(*EXIT_CODES[exit_code])
    return None

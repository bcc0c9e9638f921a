"""Calls for training code inside a learner: report, progress, checkpoint_requested, checkpoint_saved.

Guarantees, in this order:

* It never disturbs training. No call raises, waits for a peer or fills the disk:
  each is one append to a local file of bounded size, which the learner's helper
  reads. A report that cannot be written is dropped and counted; the first one is
  reported on stderr.
* A line is whole or recognisably torn. Each is a single write on an O_APPEND
  descriptor, so threads and forked workers may report at the same time; after a short
  write (a full disk) the next report starts a new line.
* Outside a Weft learner (JOB_STATE_DIR not set) `report` and `progress` do nothing
  and print nothing, so that the same script runs anywhere.

Standard library only, no import of the rest of the SDK, Python 3.9 and later: the
module is on the path of every framework's environment, without our requirements.

The file is `$JOB_STATE_DIR/metrics.jsonl`, one JSON object per line:

    {"time_ms": 1767225600000, "step": 7, "values": {"loss": 0.25}, "context": {}}

`step` is an integer or null; a value is a number or one of the strings "NaN",
"Infinity", "-Infinity" (JSON has no such numbers); context maps text to text. Two
optional keys: `progress` {"fraction": 0..1, "eta_s": seconds or null}, and `dropped`,
the number of calls lost since the line before.
"""

from __future__ import annotations

import atexit
import json
import math
import operator
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import FrameType

METRICS_FILE = "metrics.jsonl"
STOP_FILE = "stop-requested"
SAVED_FILE = ".weft-checkpoint-saved"

# The metrics file stops growing here: about ten million small reports, and small
# enough not to fill a node's disk. WEFT_REPORT_MAX_BYTES overrides it.
DEFAULT_MAX_BYTES = 1 << 30

# About two thousand metrics in one call. Readers hold a line in memory.
MAX_LINE_BYTES = 64 * 1024

# How long the last check for the stop file is valid, in seconds: short against any
# grace period, long against a step, so that a call in every step costs nothing.
STOP_POLL_S = 0.1

_INT64 = 1 << 63


@contextmanager
def _never_disturb_training(handle: Callable[[Exception], None] = lambda _problem: None) -> Generator[None, None, None]:
    """Gives an error of the body to `handle` and suppresses it.

    Values come from the user's own types, whose conversions may raise anything at all.
    """
    try:
        yield
    except Exception as problem:  # noqa: BLE001 - reporting must never fail the training
        handle(problem)


def _warn_on_stderr(text: str) -> None:
    with _never_disturb_training():  # stderr may be closed or replaced by any object
        sys.stderr.write(f"weft: {text}\n")


class Reporter:
    """Appends lines to the metrics file of the learner that this process belongs to.

    `environ` is read at every call (it costs less than a microsecond), so a process
    may set JOB_STATE_DIR late. `now_ms` gives the time of a line in milliseconds since
    1970; `warn` is called once, for the first problem.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        warn: Callable[[str], None] = _warn_on_stderr,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._now_ms = now_ms
        self._warn = warn
        self._warned = False
        self._fd = -1
        self._path = ""
        self._torn = False
        self.dropped = 0  # calls lost and not yet written down
        # Reentrant: a signal handler that reports must not wait for the code it
        # interrupted.
        self._lock = threading.RLock()

    def report(
        self,
        step: object,
        metrics: Mapping[Any, object] | None,
        more: Mapping[str, object],
        context: Mapping[Any, object] | None,
    ) -> None:
        """Append one report. Values that are no numbers are left out, with a warning."""
        self._append(
            lambda: {
                "step": self._step(step),
                "values": self._values({**(metrics or {}), **more}),
                "context": {_text(k): _text(v) for k, v in (context or {}).items()},
            }
        )

    def progress(self, fraction: object, eta_s: object) -> None:
        """Append the fraction done (cut to 0..1) and the seconds left, if known."""

        def fields() -> dict[str, object]:
            done = float(fraction)  # type: ignore[arg-type]  # any type that converts
            left = None if eta_s is None else float(eta_s)  # type: ignore[arg-type]
            if math.isnan(done) or (left is not None and not math.isfinite(left)):
                raise ValueError("progress is not a number")
            shown = {"fraction": min(1.0, max(0.0, done)), "eta_s": left and max(0.0, left)}
            return {"step": None, "values": {}, "context": {}, "progress": shown}

        self._append(fields)

    def close(self) -> None:
        """Write the number of lost calls, if any. Called as the process exits."""
        with self._lock:
            if self.dropped and self._fd >= 0:
                with _never_disturb_training():
                    # One line beyond the size limit, so that the loss is visible.
                    self._write({"step": None, "values": {}, "context": {}}, limit=False)

    def after_fork(self) -> None:
        """Make the reporter usable in a forked child. The descriptor is shared."""
        self._lock = threading.RLock()  # another thread may have held it
        self.dropped = 0  # the parent writes its own count

    def _append(self, fields: Callable[[], dict[str, object]]) -> None:
        if not self._environ.get("JOB_STATE_DIR"):
            return

        def drop(problem: Exception) -> None:
            self.dropped += 1
            self._warn_once(f"a report was dropped, and later ones may be: {problem}")

        with self._lock, _never_disturb_training(drop):
            self._write(fields(), limit=True)

    def _write(self, fields: dict[str, object], *, limit: bool) -> None:
        fd = self._open()
        record: dict[str, object] = {"time_ms": self._now_ms(), **fields}
        if self.dropped:
            record["dropped"] = self.dropped
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a report of {len(line)} bytes is over {MAX_LINE_BYTES}")
        if self._torn:
            line = b"\n" + line
        if limit and os.fstat(fd).st_size + len(line) > self._max_bytes():
            raise OSError(f"{self._path} has reached its limit of {self._max_bytes()} bytes")
        if os.write(fd, line) < len(line):
            self._torn = True
            raise OSError(f"the disk that holds {self._path} is full")
        self._torn = False
        self.dropped = 0

    def _open(self) -> int:
        path = os.path.join(self._environ["JOB_STATE_DIR"], METRICS_FILE)
        if path != self._path or self._fd < 0:
            old, self._fd = self._fd, -1
            if old >= 0:
                os.close(old)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._path = path
        return self._fd

    def _max_bytes(self) -> int:
        text = self._environ.get("WEFT_REPORT_MAX_BYTES", "")
        return int(text) if text.isdigit() else DEFAULT_MAX_BYTES

    def _step(self, step: object) -> int | None:
        if step is None:
            return None
        try:
            number = operator.index(step)  # type: ignore[arg-type]  # ints of any library
        except TypeError:
            number = int(float(step))  # type: ignore[arg-type]  # 3.0, a 0-d float array
        if not -_INT64 <= number < _INT64:
            raise ValueError(f"step {number} does not fit 64 bits")
        return number

    def _values(self, metrics: Mapping[Any, object]) -> dict[str, float | str]:
        values: dict[str, float | str] = {}
        for name, value in metrics.items():

            def leave_out(problem: Exception, name: object = name) -> None:
                self._warn_once(f"metric {_text(name)!r} is left out, it is no number: {problem}")

            with _never_disturb_training(leave_out):
                # torch warns when a tensor that carries a gradient becomes a number.
                detach = getattr(value, "detach", None)
                plain: Any = detach() if callable(detach) else value
                number = float(plain)
                values[_text(name)] = number if math.isfinite(number) else _SPELLED[repr(number)]
        if metrics and not values:
            raise ValueError("none of the metrics is a number")
        return values

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"{text} (further problems are not shown)")


_SPELLED = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _text(value: object) -> str:
    """Text that UTF-8 can encode: lone surrogates become question marks."""
    return str(value).encode("utf-8", "replace").decode()


class StopRequest:
    """Whether the platform has requested that this learner checkpoints and exits.

    Requested by a file in JOB_STATE_DIR or by SIGTERM, whichever comes first; once
    true it stays true. `clock` gives seconds and is monotonic.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._requested = False
        self._next_check = -math.inf
        self._handler_installed = False

    def requested(self) -> bool:
        if not self._handler_installed:
            self._install_handler()
        if not self._requested and self._clock() >= self._next_check:
            folder = self._environ.get("JOB_STATE_DIR")
            # os.path.exists is False, not an error, for a folder that is gone.
            if folder and os.path.exists(os.path.join(folder, STOP_FILE)):
                self._requested = True
            self._next_check = self._clock() + STOP_POLL_S
        return self._requested

    def _install_handler(self) -> None:
        # Only the main thread may set a handler; after a call from a worker thread a
        # later call does. A handler of the user or of a library stays.
        if threading.current_thread() is not threading.main_thread():
            return
        self._handler_installed = True
        try:
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._handle_sigterm)
        except (OSError, ValueError):  # an embedded interpreter; the file still counts
            return

    def after_fork(self) -> None:
        """Let SIGTERM end a forked child again, until the child calls `requested`.

        Worker pools end their workers by SIGTERM and wait for them: a worker that only
        set a flag would never end.
        """
        self._handler_installed = False
        try:
            if signal.getsignal(signal.SIGTERM) == self._handle_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except (OSError, ValueError):
            return

    def _handle_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        # A second signal changes nothing: it may be the same request, sent to the
        # process and to its group. A process that does not exit in time is killed.
        self._requested = True


class CheckpointMarker:
    """The file that tells the learner's helper that CHECKPOINT_DIR holds a whole checkpoint."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = _warn_on_stderr,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._warn = warn
        self._warned = False

    def write(self) -> None:
        """Write the marker anew: a new file each time, so that each call is seen."""
        folder = self._environ.get("CHECKPOINT_DIR")
        if folder and self._environ.get("JOB_STATE_DIR"):
            with _never_disturb_training(self._warn_once):
                path = os.path.join(folder, SAVED_FILE)
                # The helper ignores names that end with .tmp.
                unfinished = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
                with open(unfinished, "w", encoding="ascii") as file:
                    file.write(f"{time.time_ns()}\n")
                os.replace(unfinished, path)

    def _warn_once(self, problem: Exception) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"a checkpoint could not be marked as saved, so it is not stored yet: {problem}")


_reporter = Reporter()
_marker = CheckpointMarker()
_stop = StopRequest()
atexit.register(_reporter.close)
if hasattr(os, "register_at_fork"):  # absent where there is no fork
    os.register_at_fork(after_in_child=_reporter.after_fork)
    os.register_at_fork(after_in_child=_stop.after_fork)


def report(
    metrics: Mapping[str, object] | None = None,
    /,
    *,
    step: object = None,
    context: Mapping[str, object] | None = None,
    **more: object,
) -> None:
    """Record metrics of this learner: `weft.report(step=7, loss=0.25)`.

    metrics: name -> value, for names that are no Python words ({"val/loss": 0.3}).
    step: the training step, an integer. Of several values of a step the latest counts.
    context: labels of the values, such as {"subset": "val"}.
    more: further metrics by name. A metric called "step" or "context" has to be in
        `metrics`.

    Values are anything that float() converts: numbers, and scalars of numpy, jax and
    torch (which waits until the device has computed them). NaN and infinities are kept.

    Returns at once and raises nothing. A value that is no number is left out, a line
    that cannot be written is dropped; the first such problem is printed on stderr.
    Outside a Weft learner this does nothing.
    """
    _reporter.report(step, metrics, more, context)


def progress(fraction: float, eta_s: float | None = None) -> None:
    """Report the part of the training that is done (0 to 1) and the seconds left, if known.

    Returns at once, raises nothing, and does nothing outside a Weft learner.
    """
    _reporter.progress(fraction, eta_s)


def checkpoint_requested() -> bool:
    """True once the platform has requested that this learner checkpoints and exits.

    The reasons are a halt, preemption or a deadline. The learner then has its job's
    `grace` (30 s by default) before it is killed. Call this in every step (it reads the
    disk at most ten times a second), save a checkpoint, and exit with a code other than
    0: code 0 means that the training is complete. Learners of one job may see the
    request one step apart: agree before you stop, as examples/digits does.

    The first call from the main thread makes SIGTERM set this flag instead of ending
    the process, unless something else already handles SIGTERM.
    """
    return _stop.requested()


def checkpoint_saved() -> None:
    """Mark all files in CHECKPOINT_DIR as saved: `model.save(...); weft.checkpoint_saved()`.

    They are stored at once, while the training goes on. Without this call a file or
    folder is stored when it has not changed for some seconds. From the first call on
    only calls count: a later checkpoint without one is stored at the job's end. Call it
    on every learner that saves, after all of its files are written and closed.

    Returns at once, raises nothing, and does nothing outside a Weft learner.
    """
    _marker.write()

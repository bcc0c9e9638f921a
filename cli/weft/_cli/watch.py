"""Following a job to its end: state, output and curve in one view.

On a terminal the curve and a status line are redrawn in place below the output; elsewhere everything is plain lines.
The view is over when the three streams have said that nothing more comes, so it never claims an end too early, and its
exit code is the job's. Ctrl-C ends the view and not the job.
"""

from __future__ import annotations

import queue
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from weft._cli.bars import bar_texts
from weft._cli.call import Call
from weft._cli.chart import chart
from weft._cli.curves import Curves, label
from weft._cli.ends import end_message, exit_code
from weft._cli.job_table import took_s
from weft._cli.lines import LineWriter
from weft._cli.notices import note
from weft._cli.output import STATUS_STYLES, next_commands
from weft._cli.startup import fetching
from weft._cli.text import fitted, one_line, span
from weft._errors import WeftError
from weft._follow import End, Event, Follow
from weft._job import Job
from weft._records import HistoryEvent, LogLine, Point
from weft._times import parse_time

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

_REDRAW_S: Final = 0.15
_KEPT: Final = 50
"""So many of the last pieces of output are printed again when the terminal has changed its size."""
_ECHO: Final = 3
"""Columns that the status line leaves free. The terminal draws ^C behind it: on a full line it would continue on the
next one, and the view, which is drawn again from there, would leave its title behind."""
_PROGRESS_S: Final = 2.0
_MOST_BARS: Final = 4
"""Progress bars of learners below the curve."""
_PLAIN_METRICS_S: Final = 5.0
_INTERRUPTED: Final = 130

Message = tuple[str, Event | WeftError | dict[str, Any] | None]
"""What a thread says: the name of its stream, and an event, how it failed, or None at its end."""


def watch(call: Call, job: Job, *, metric: str | None = None, tail: int | None = None) -> int:
    """Follow ``job`` until it is at rest; the exit code of its end. ``tail``: begin with so many lines of output."""
    view: _View
    if call.for_people and sys.stdout.isatty():
        view = _Screen(job, Curves(metric))
    elif call.for_people:
        view = _Plain(job, Curves(metric))
    else:
        view = _Silent(job, Curves(metric))
    try:
        end = _run(job, view, tail)
    except KeyboardInterrupt:
        view.close()
        print(_detached(job), file=sys.stdout if call.for_people else sys.stderr)
        return _INTERRUPTED
    if call.for_people:
        view.finish(end)
    return exit_code(end.status)


def _run(job: Job, view: _View, tail: int | None) -> End:
    """Pump the streams into the view until all have ended."""
    messages: queue.Queue[Message] = queue.Queue(maxsize=10_000)
    over = threading.Event()
    jobs = job._jobs  # noqa: SLF001 - the same package
    follows = {
        "events": jobs.follow_events(job.id, on_cut=lambda _why: messages.put(("cut", None))),
        "logs": jobs.follow_logs(job.id, tail=tail),
        "metrics": jobs.follow_metrics(job.id),
    }
    for name, follow in follows.items():
        _start(_pump, name, follow, messages)
    _start(_poll_progress, job, messages, over)
    try:
        left = set(follows)
        while left:
            try:
                name, message = messages.get(timeout=_REDRAW_S)
            except queue.Empty:
                view.draw()
                continue
            if name == "cut":
                view.cut()
            elif name == "progress":
                view.progress = message if isinstance(message, dict) else {}
                view.fetched(fetching(view.progress.get("fetching") or ()))
            elif name == "waits":
                view.waits(message if isinstance(message, dict) else {})
            elif isinstance(message, Event):
                view.take(name, message)
            else:
                left.discard(name)
                if isinstance(message, WeftError):
                    if name == "events":
                        raise message
                    view.say(f"the {name} cannot be followed: {message}")
        view.draw(now=True)
    finally:
        over.set()
        view.close()
    end = follows["events"].end
    if end is None:  # pragma: no cover - a Follow ends with an end or an error
        raise WeftError("the stream of events ended without saying how")
    return end


def _start(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _pump(name: str, follow: Follow, messages: queue.Queue[Message]) -> None:
    # Sent to the view if a bug ends this thread: the view would wait forever. Python prints the trace of the bug.
    failure: WeftError | None = WeftError(f"following the {name} failed; this is a bug of weft")
    try:
        for event in follow:
            messages.put((name, event))
        failure = None
    except WeftError as failed:
        failure = failed
    finally:
        messages.put((name, failure))


def _poll_progress(job: Job, messages: queue.Queue[Message], over: threading.Event) -> None:
    while not over.wait(_PROGRESS_S):
        try:
            messages.put(("progress", job.progress()))
            if job.status == "QUEUED":
                # The dispatcher decides why a job waits after it was stored, so no event carries it.
                messages.put(("waits", job._jobs.document(job.id)))  # noqa: SLF001 - the same package
        except (WeftError, RuntimeError):
            continue  # shown only while it is known; a client that is closed meanwhile says RuntimeError


def _detached(job: Job) -> str:
    commands = (
        (f"weft watch {job.id}", "follow it again"),
        (f"weft metrics {job.id}", "its curves"),
        (f"weft kill {job.id}", "end it"),
    )
    head = fitted(f"no longer following; {one_line(job.name)} keeps running:", sys.stdout)
    return f"\n{head}\n{next_commands(commands)}"


class _View:
    """The state so far; subclasses show it."""

    def __init__(self, job: Job, curves: Curves) -> None:
        self.job = job
        self.curves = curves
        self.progress: dict[str, Any] = {}
        self.status = job.status
        self.why = ""
        self.fetching = ""
        """What is fetched for its learners; empty once they run."""
        self.writer = LineWriter(several=int(job.document.get("learners", 1)) > 1)

    def take(self, stream: str, event: Event) -> None:
        if stream == "logs" and event.kind == "line":
            self.line(LogLine.of(event.data))
        elif stream == "metrics" and event.kind == "point":
            self.curves.add(Point.of(event.data))
            self.measured()
        elif event.kind == "history":
            self.changed(HistoryEvent.of(event.data))
        elif event.kind == "status":
            self.job.document = {**self.job.document, **event.data}
            self.status = self.job.status
            self.waits(event.data)

    def waits(self, document: dict[str, Any]) -> None:
        """The job as it stands now; of interest is why it is not admitted."""
        self.why = one_line(document.get("pending_message") or document.get("pending_reason") or "")

    def fetched(self, what: str) -> None:
        """``what``: is fetched now, in a line; empty: nothing."""
        self.fetching = what

    def line(self, line: LogLine) -> None: ...

    def measured(self) -> None: ...

    def changed(self, event: HistoryEvent) -> None: ...

    def cut(self) -> None:
        """The connection was lost and is being made again."""
        self.say("the connection was lost; reconnecting")

    def say(self, text: str) -> None:
        note(text)

    def draw(self, *, now: bool = False) -> None: ...

    def close(self) -> None: ...

    def finish(self, end: End) -> None:
        print(fitted(end_message(self.job.name, end.status, end.reason, end.message), sys.stdout))
        if self.curves.latest:
            print(f"  {self.curves.summary()}")
        if end.status == "FAILED" and end.reason in {"ExitCode", "Signalled"}:
            print(f"  weft logs {self.job.id} shows what it printed")
        print(f"  {_then(self.job.id, end.status)}")


def elapsed_s(job: dict[str, Any]) -> float:
    """How long the job runs or ran, as `weft list` shows it; before it runs, the time since it was submitted."""
    took = took_s(job)
    return (datetime.now(UTC) - parse_time(job["created"])).total_seconds() if took is None else took


def _then(id_: str, status: str) -> str:
    return {
        "COMPLETED": f"weft download {id_} fetches the results",
        "HALTED": f"weft resume {id_} continues it",
        "FAILED": f"weft explain {id_} says more",
    }.get(status, f"weft show {id_} shows it")


class _Silent(_View):
    """stdout belongs to a program."""


class _Plain(_View):
    """One line per thing that happens."""

    _said_at = -_PLAIN_METRICS_S
    _fetched_at = 0.0

    def fetched(self, what: str) -> None:
        if what and time.monotonic() - self._fetched_at >= _PLAIN_METRICS_S:
            self._fetched_at = time.monotonic()
            print(f"[{self.status}] {what}", flush=True)

    def line(self, line: LogLine) -> None:
        print(self.writer.text(line), end="", flush=True)

    def measured(self) -> None:
        if time.monotonic() - self._said_at >= _PLAIN_METRICS_S:
            self._said_at = time.monotonic()
            print(f"[{self.status}] {self.curves.summary()}", flush=True)

    def changed(self, event: HistoryEvent) -> None:
        why = ": ".join(text for text in (event.reason, event.message) if text)
        print(f"[{event.to}] {one_line(why)}".rstrip(), flush=True)
        self.status = event.to


class _Screen(_View):
    """Output scrolls; below it stand the curve and a status line."""

    def __init__(self, job: Job, curves: Curves) -> None:
        super().__init__(job, curves)
        from rich.console import Console
        from rich.live import Live

        self._console: Console = Console(highlight=False, markup=False, emoji=False)
        self._live: Live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._pending: list[str] = []
        self._printed: deque[str] = deque(maxlen=_KEPT)
        self._size = shutil.get_terminal_size()
        self._drawn_at = 0.0
        self._closed = False
        self._lost = False

    def take(self, stream: str, event: Event) -> None:
        self._lost = self._lost and stream != "events"
        super().take(stream, event)

    def cut(self) -> None:
        self._lost = True
        self.draw(now=True)

    def say(self, text: str) -> None:
        self._pending.append(f"{one_line(text)}\n")

    def line(self, line: LogLine) -> None:
        self._pending.append(self.writer.text(line))
        self.draw()

    def measured(self) -> None:
        self.draw()

    def changed(self, event: HistoryEvent) -> None:
        self.status = event.to
        self.draw()

    def draw(self, *, now: bool = False) -> None:
        if self._closed or (not now and time.monotonic() - self._drawn_at < _REDRAW_S):
            return
        self._drawn_at = time.monotonic()
        if (size := shutil.get_terminal_size()) != self._size:
            self._size = size
            self._start_anew()
        if self._pending:
            from rich.text import Text

            # Whole lines only: the view is drawn below them.
            text = "".join(self._pending)
            self._pending = []
            self._console.print(Text(text.rstrip("\n")))
            self._printed.append(text)
        self._live.update(self._picture(), refresh=True)

    def _start_anew(self) -> None:
        """Clears the screen after a change of its size: each terminal wraps the old lines in its own way."""
        from rich.live import Live

        self._live.stop()
        self._console.clear()
        self._pending = [*self._printed, *self._pending]
        self._printed.clear()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def close(self) -> None:
        if not self._closed:
            self.draw(now=True)
            self._closed = True
            self._live.stop()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        columns, rows = shutil.get_terminal_size()
        key = self.curves.main()
        curve = self.curves.curve(key) if key else []
        height = 8 if rows >= 24 else 5
        lines = chart(curve, width=columns - 1, height=height, title=label(key)) if key and len(curve) > 1 else []
        picture = [Text(line, style="cyan", no_wrap=True, overflow="crop") for line in lines]
        bars = bar_texts(self.progress, several=self.writer.several) if self.status == "PROCESSING" else []
        picture += [Text(bar, no_wrap=True, overflow="ellipsis") for bar in bars[:_MOST_BARS]]
        status = self._status_line()
        status.truncate(max(1, columns - _ECHO), overflow="ellipsis")
        return Group(*picture, status)

    def _status_line(self) -> Text:
        from rich.text import Text

        parts = [span(elapsed_s(self.job.document))]
        fraction = self.progress.get("progress")
        if isinstance(fraction, (int, float)) and self.status == "PROCESSING":
            parts.append(f"{_bar(fraction)} {fraction:.0%}")
            left = self.progress.get("eta_ms")
            parts += [f"{span(left / 1000)} left"] if isinstance(left, (int, float)) else []
        if self.job.attempt > 1:
            parts.append(f"attempt {self.job.attempt}")
        if self.curves.latest:
            parts.append(self.curves.summary(most=3))
        if self.why and self.status == "QUEUED":
            parts.append(self.why)
        if self.fetching and self.status in {"PENDING", "DOWNLOADING"}:
            parts.append(self.fetching)
        if self._lost:
            parts = ["the connection was lost; reconnecting"]
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(self.status, style=f"bold {STATUS_STYLES.get(self.status, '')}")
        line.append("  " + "  ".join(parts))
        return line


def _bar(fraction: float, width: int = 12) -> str:
    done = round(max(0.0, min(1.0, fraction)) * width)
    return "█" * done + "░" * (width - done)

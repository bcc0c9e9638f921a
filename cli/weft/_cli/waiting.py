"""Says why a followed job prints nothing yet: what it waits for, and each phase until its learners run."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from weft._cli.text import one_line
from weft._errors import WeftError

if TYPE_CHECKING:
    from weft._cli.call import Call

_FIRST_S: Final = 1.0
_POLL_S: Final = 2.0
_PHASES: Final = {
    "PENDING": "its learners are being started",
    "DOWNLOADING": "its learners fetch code, data and packages",
    "HALTING": "it is being halted",
}


def wait_text(job: dict[str, Any]) -> str:
    """Why the job prints nothing yet; empty once its learners run, and after its end."""
    if job.get("status") == "QUEUED":
        why = job.get("pending_message") or job.get("pending_reason") or "the dispatcher has not looked at it yet"
        position = f" (position {job['queue_position']} in the queue)" if job.get("queue_position") else ""
        return f"the job waits{position}: {one_line(why)}"
    phase = _PHASES.get(str(job.get("status")))
    if phase is None:
        return ""
    message = one_line(job.get("message") or "")
    return f"the job has printed nothing yet: {phase}{f' ({message})' if message else ''}"


@contextmanager
def waits_shown(call: Call, id_: str) -> Generator[threading.Event]:
    """Within it, notices say why nothing is printed, each once, until the event is set or the learners run."""
    from weft._cli.notices import note

    over = threading.Event()
    client = call.client  # the thread has no context to find it by

    def watch() -> None:
        shown, pause_s = "", _FIRST_S
        while not over.wait(pause_s):
            pause_s = _POLL_S
            try:
                job = client.jobs.document(id_)
            except (WeftError, RuntimeError):  # shown only while it is known; RuntimeError: the client was closed
                continue
            text = wait_text(job)
            if not text:
                return
            if text != shown and not over.is_set():
                shown = text
                note(text)

    if not call.for_people:
        yield over
        return
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield over
    finally:
        over.set()

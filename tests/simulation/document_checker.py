"""The checker's rules on job documents, their history and the right to write them. It checks every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

LIVE: Final = frozenset({"PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING"})
_ENDS: Final = frozenset({"COMPLETED", "FAILED", "KILLED"})
_LEGAL: Final = {
    None: {"QUEUED"},
    "QUEUED": {"PENDING", "HALTED", "HALTING", "KILLED", "FAILED"},
    "PENDING": {"DOWNLOADING", "PROCESSING", "STORING", "QUEUED", "HALTING", "COMPLETED", "KILLED", "FAILED"},
    "DOWNLOADING": {"PROCESSING", "STORING", "QUEUED", "HALTING", "COMPLETED", "KILLED", "FAILED"},
    "PROCESSING": {"STORING", "QUEUED", "HALTING", "COMPLETED", "KILLED", "FAILED"},
    "STORING": {"QUEUED", "HALTING", "COMPLETED", "KILLED", "FAILED"},
    "HALTING": {"HALTED", "COMPLETED", "KILLED", "FAILED"},
    "HALTED": {"RESUMED", "KILLED"},
    "RESUMED": {"QUEUED"},
    "COMPLETED": set[str](),
    "FAILED": set[str](),
    "KILLED": set[str](),
}
"""contracts.md, "Job states"."""
_CONSTANT: Final = ("id", "tenant", "user", "idem", "created", "code_digest", "spec")
_RISING: Final = ("generation", "observed_generation", "history_seq", "dispatcher_term")


class DocumentChecker:
    """Records the documents of all jobs, and checks every commit."""

    def __init__(self, breach: Callable[[str, str], None]) -> None:
        """``breach``: records a breach: (rule, what broke it)."""
        self._breach = breach
        self._jobs: dict[str, Any] = {}
        self._events: dict[str, list[Any]] = {}
        self._copied: dict[str, int] = {}
        self._nonces: set[str] = set()
        self.members: dict[str, str] = {}
        """Process -> its member id."""
        self.terms: dict[str, int] = {}
        """Process -> the term under which it last led as dispatcher."""
        self.dispatcher_term = 0
        self.stale_admissions: dict[tuple[str, int], int] = {}
        """(job, attempt) that was admitted by a dispatcher that no longer led -> that dispatcher's term."""

    def job(self, job_id: str) -> Any:
        return self._jobs.get(job_id)

    def holding(self) -> Iterator[Any]:
        return (job for job in self._jobs.values() if job.attempt.number and job.released is None)

    def events(self, job_id: str) -> Sequence[Any]:
        return self._events[job_id]

    def dispatches(self, by: str, term: int) -> None:
        if term != self.dispatcher_term + 1:
            self._breach("one dispatcher decides", f"term {term} after {self.dispatcher_term}")
        self.dispatcher_term = self.terms[by] = term

    # --- one commit ----------------------------------------------------------------------

    def committed(self, by: str, prior: Any, new: Any) -> None:
        known = self._jobs.get(new.id)
        if known is not prior and known != prior:
            self._breach("no update is lost", f"{by} replaced a version of {new.id} that did not exist")
        if new.rev != (prior.rev if prior is not None else 0) + 1:
            self._breach("revisions never decrease", f"{new.id}: {new.rev} by {by}")
        self._check_history(by, prior, new)
        if prior is not None:
            self._check_fields(prior, new)
            self._check_attempt(by, prior, new)
            self._check_end(by, prior, new)
            self._check_writer(by, prior, new)
        self._jobs[new.id] = new

    def _check_fields(self, prior: Any, new: Any) -> None:
        for name in _CONSTANT:
            if getattr(prior, name) != getattr(new, name):
                self._breach("constant fields never change", f"{name} of {new.id}")
        for name in _RISING:
            if getattr(new, name) < getattr(prior, name):
                self._breach("revisions never decrease", f"{name} of {new.id}")
        if new.guardian.term < prior.guardian.term or new.observed_generation > new.generation:
            self._breach("revisions never decrease", f"term or generation of {new.id}")
        if (
            new.deleted is not None
            and prior.deleted is None
            and (prior.status not in _ENDS | {"HALTED"} or (prior.attempt.number and prior.released is None))
        ):
            self._breach("a job is deleted only at rest", f"{new.id} was {prior.status}")

    def _check_history(self, by: str, prior: Any, new: Any) -> None:
        """An event and its change are one write; the events are complete and legal, and never change."""
        events = self._events.setdefault(new.id, [])
        first = new.history_tail[0].seq if new.history_tail else new.history_seq + 1
        if [event.seq for event in new.history_tail] != list(range(first, new.history_seq + 1)):
            self._breach("the history has no gap and no duplicate", f"{new.id} by {by}: {new.history_tail}")
            return
        if first - 1 > self._copied.get(new.id, 0):
            self._breach(
                "the history has no gap and no duplicate", f"{new.id}: {by} trimmed events that were not copied"
            )
        status = prior.state.status if prior is not None else None
        for event in new.history_tail:
            if event.seq <= len(events):
                if events[event.seq - 1] != event:
                    self._breach(
                        "the history has no gap and no duplicate", f"{new.id}: event {event.seq} was changed by {by}"
                    )
                continue
            if event.from_status != status or event.to not in _LEGAL[status]:
                self._breach("only legal transitions", f"{new.id}: {status} -> {event.to} by {by}")
            status = str(event.to)
            events.append(event)
        if new.history_seq != len(events):
            self._breach(
                "the history has no gap and no duplicate", f"{new.id} by {by}: {new.history_seq} of {len(events)}"
            )
        if new.state.status != status:
            self._breach("history and document agree", f"{new.id}: {new.state.status}, its last event has {status}")

    def _check_attempt(self, by: str, prior: Any, new: Any) -> None:
        if new.attempt.number == prior.attempt.number:
            if prior.released is not None and new.released is None:
                self._breach(
                    "a job is released only after all it held is gone", f"{new.id} holds again without an admission"
                )
            return
        if new.attempt.number != prior.attempt.number + 1 or new.state.status != "PENDING":
            self._breach("only legal transitions", f"{new.id}: attempt {new.attempt.number} while {new.status}")
        if prior.attempt.number and prior.released is None:
            self._breach("a job is released only after all it held is gone", f"{new.id} was admitted again by {by}")
        if new.dispatcher_term < self.dispatcher_term:
            self.stale_admissions[new.id, new.attempt.number] = new.dispatcher_term

    def _check_end(self, by: str, prior: Any, new: Any) -> None:
        """The verdict is written first; then its status; then, when all is gone, ``released``."""
        verdict, status = prior.verdict, new.state.status
        admission = new.attempt.number > prior.attempt.number
        if verdict is not None and new.verdict != verdict and not admission and not _may_replace(verdict, new):
            self._breach("first cause wins", f"{new.id}: {verdict.to} became {new.verdict} by {by}")
        if prior.state.status in LIVE and status not in LIVE:
            if verdict is None:
                self._breach(
                    "a decision is durable before it is carried out",
                    f"{new.id} became {status} by {by} without a verdict",
                )
            elif status != verdict.to:
                self._breach("first cause wins", f"{new.id} became {status}, its verdict is {verdict.to}")
        if prior.released is None and new.released is not None and prior.state.status in LIVE:
            self._breach("a job is released only after all it held is gone", f"{new.id} while {prior.state.status}")
        resumed = prior.state.status == "HALTED" and status == "QUEUED"
        if resumed and prior.attempt.number and prior.released is None:
            self._breach(
                "a job is released only after all it held is gone", f"{new.id} was resumed before it was released"
            )

    # --- the right to write ---------------------------------------------------------------

    def _check_writer(self, by: str, prior: Any, new: Any) -> None:
        if replace(new, history_tail=(), rev=0) == replace(prior, history_tail=(), rev=0):
            return  # the tail was trimmed: every service may do that
        if by.startswith("guardian"):
            self._check_claim(by, prior, new)
        elif by.startswith("lcm") and prior.dispatcher_term > self.terms.get(by, 0):
            what = f"{by} (term {self.terms.get(by, 0)}) changed {new.id}, which is of term {prior.dispatcher_term}"
            self._breach("every stale write is refused", what)

    def _check_claim(self, by: str, prior: Any, new: Any) -> None:
        member = self.members.get(by, "")
        if new.guardian.nonce and new.guardian.nonce != prior.guardian.nonce:
            if new.guardian.term != prior.guardian.term + 1 or new.guardian.nonce in self._nonces:
                self._breach("a take-over raises the term", f"{new.id} by {by}: {new.guardian}")
            if new.guardian.holder != member:
                self._breach("a take-over raises the term", f"{new.id} by {by} for {new.guardian.holder}")
            self._nonces.add(new.guardian.nonce)
        elif new.guardian.term != prior.guardian.term or (new.guardian.holder not in {prior.guardian.holder, ""}):
            self._breach("a take-over raises the term", f"{new.id} by {by}: {prior.guardian} -> {new.guardian}")
        elif prior.guardian.holder != member:
            self._breach("every stale write is refused", f"{by} wrote {new.id}, claimed by {prior.guardian.holder}")

    # --- the history collection --------------------------------------------------------------

    def copied(self, job_id: str, history: Sequence[Any]) -> None:
        """Events were copied. ``history``: all copied events."""
        events = self._events.get(job_id, [])
        if [event.seq for event in history] != list(range(1, len(history) + 1)):
            self._breach(
                "the history has no gap and no duplicate", f"copies of {job_id}: {[event.seq for event in history]}"
            )
        if list(history) != events[: len(history)]:
            self._breach("history and document agree", f"the copied events of {job_id} are not its document's")
        self._copied[job_id] = len(history)

    def check_complete(self, job: Any) -> None:
        """At the end of a run: the copied events and the tail are all events of the job."""
        copied = self._copied.get(job.id, 0)
        uncopied = [event for event in job.history_tail if event.seq > copied]
        if copied + len(uncopied) != len(self._events[job.id]):
            self._breach("the history has no gap and no duplicate", f"{job.id} at its end")


def _may_replace(verdict: Any, new: Any) -> bool:
    """Whether the document's verdict is a later kill, or the loss of a sibling's node (docs/adr/0030).

    The loss replaces only a learner's own failure, and only while its attempt has not ended.
    """
    if new.verdict is None or verdict.to in {"COMPLETED", "KILLED"}:
        return False
    if new.desired == "kill":
        return bool(new.verdict.to == "KILLED")
    lost = new.verdict.to == "QUEUED" and new.verdict.reason == "NodeLost" and new.verdict.learner != verdict.learner
    return bool(lost and verdict.budgeted and new.desired == "run" and new.state.status in LIVE)

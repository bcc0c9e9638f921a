"""The judge of the simulation. It knows no code of the services: only what Weft promises, and what really happened.

It is told of every commit of the stores, every effect on the cluster and every start and end of a process, in the
moment it happens, and holds each against rules of its own (contracts.md, architecture.md; the table of statuses below
was written from there, not imported). What is physical is in ``bodies``; what the documents say is in ``papers``.

It only ever notes a breach: raising would be caught by the very loops that are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.bodies import Bodies, Body
from tests.simulation.papers import LIVE, Papers

_BLIND_S: Final = 10.0
"""Nobody decides on what it saw longer ago than this."""
REFUSALS: Final = frozenset({"NoSpace", "AdmissionWithdrawn", "ProvisionTimeout"})
"""Why an attempt may be undone although no learner failed: the cluster said no, or another dispatcher."""


@dataclass(frozen=True)
class Declared:
    """What a job asks for, as its owner wrote it."""

    learners: Mapping[str, tuple[float, float]]
    """Name -> (CPUs, GPUs)."""
    deciding: Collection[str]
    """Those whose success is the job's."""
    ignored: Collection[str]
    """Those whose failure is nobody's."""
    retries: int
    grace_s: float
    store_s: float
    refused: bool
    """Its first attempt will meet a cluster that says no."""


@dataclass(frozen=True)
class Breach:
    time: float
    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.time:.3f}: {self.what}"


class Checker:
    """``breaches`` stays empty, or Weft is wrong."""

    def __init__(self, nodes: Mapping[str, tuple[float, float]], clock: Callable[[], float]) -> None:
        """``nodes``: name -> (CPUs, GPUs)."""
        self.breaches: list[Breach] = []
        self._nodes, self._clock = nodes, clock
        self._declared: dict[str, Declared] = {}
        self.papers = Papers(self._breach)
        self.bodies = Bodies(self._breach)
        self.told: Callable[..., None] = lambda *_: None
        """Hears of every commit and every effect, in order: the trace."""
        self._looked: dict[tuple[str, str], float] = {}
        """(process, job) -> when it observed the job on the cluster last."""
        self._verdicts: dict[tuple[str, int], float] = {}
        """When the verdict on an attempt was written, by the true clock."""

    def _breach(self, invariant: str, what: str) -> None:
        self.breaches.append(Breach(self._clock(), invariant, what))
        self.told("BREACH", invariant, what)

    def declare(self, job_id: str, declared: Declared) -> None:
        self._declared[job_id] = declared

    # --- the documents -----------------------------------------------------------------

    def joined(self, process: str, member: str) -> None:
        """Under which member id a process acts."""
        self.papers.members[process] = member

    def dispatches(self, by: str, term: int) -> None:
        self.told(by, "dispatches under term", term)
        self.papers.dispatches(by, term)

    def copied(self, job_id: str, history: Sequence[Any]) -> None:
        self.papers.copied(job_id, history)

    def committed(self, by: str, prior: Any, new: Any) -> None:
        """``prior``: the document that this write replaced, as it was in the store; None: there was none."""
        self.told(by, "writes", new.id, new.rev, new.state.status, new.desired, _brief(new))
        self.papers.committed(by, prior, new)
        if prior is None:
            return
        if new.attempt.number > prior.attempt.number:
            self._admitted(prior, new)
        elif prior.verdict is None and new.verdict is not None:
            self._verdicts[new.id, new.attempt.number] = self._clock()
            self._judged(by, new)
        if prior.released is None and new.released is not None:
            self._released(new)
        if new.counters.retries != prior.counters.retries:
            self._retried(prior, new)

    def _admitted(self, prior: Any, new: Any) -> None:
        if prior.desired != "run":
            self._breach("kill > halt > run", f"{new.id} was admitted although its owner wants it to {prior.desired}")
        if present := self.bodies.present(new.id):
            self._breach("released only after everything is gone", f"{new.id} admitted while there are {present}")
        if new.dispatcher_term == self.papers.dispatcher_term:
            self._promised(new)

    def _promised(self, new: Any) -> None:
        """What the dispatcher that leads has promised fits, all that is not released counted."""
        counted = [
            job for job in self.papers.holding()
            if job.attempt.committed or job.verdict is not None or job.dispatcher_term == new.dispatcher_term
        ]  # fmt: skip
        for node in set(new.attempt.placement.values()):
            cpus = gpus = 0.0
            for job in counted:
                for name, where in job.attempt.placement.items():
                    if where == node:
                        need = self._declared[job.id].learners[name]
                        cpus, gpus = cpus + need[0], gpus + need[1]
            self._fits(node, cpus, gpus, f"once {new.id} was admitted, unreleased admissions promise")

    def _fits(self, node: str, cpus: float, gpus: float, what: str) -> None:
        has = self._nodes[node]
        if cpus > has[0] + 1e-6 or gpus > has[1] + 1e-6:
            self._breach("quota never exceeded", f"{what} {cpus:g} CPUs, {gpus:g} GPUs of {node}, which has {has}")

    def _judged(self, by: str, new: Any) -> None:
        """A verdict is true: what it says of learners is what befell them."""
        verdict, declared, number = new.verdict, self._declared[new.id], new.attempt.number
        crew = self.bodies.crew(new.id, number)
        succeeded = [name for name in declared.deciding if name in crew and crew[name].succeeded]
        passed = [name for name in declared.deciding if name in declared.ignored and name in crew and crew[name].ended]
        done = bool(succeeded) and len({*succeeded, *passed}) == len(declared.deciding)
        # What it had seen when it decided: an end between look and word is nobody's fault.
        looked = max(self._looked.get((by, new.id), 0.0), self._clock() - _BLIND_S)
        evidence = done and not any(crew[name].vanished or crew[name].at > looked for name in declared.deciding)
        text = f"{new.id}/{number} is to be {verdict.to} ({verdict.reason}) by {by}"
        if verdict.to == "COMPLETED" and not done:
            self._breach("no verdict against the facts", f"{text}, but only {succeeded} succeeded")
        if verdict.to == "KILLED" and new.desired != "kill":
            self._breach("no verdict against the facts", f"{text}, which its owner did not ask for")
        if verdict.to == "HALTED" and new.desired not in {"halt", "kill"}:
            self._breach("no verdict against the facts", f"{text}, which its owner did not ask for")
        if verdict.to in {"HALTED", "QUEUED", "FAILED"} and evidence and verdict.reason != "DeadlineExceeded":
            self._breach("a finished job is never trained again", f"{text}, but all who decide had succeeded")
        if verdict.to in {"QUEUED", "FAILED"}:
            self._blamed(text, verdict, crew, declared, committed=new.attempt.committed)

    def _blamed(
        self, text: str, verdict: Any, crew: Mapping[str, Body], declared: Declared, *, committed: bool
    ) -> None:
        named = crew.get(verdict.learner)
        if verdict.reason == "LearnerLost":
            if named is not None and not (named.lost or named.vanished):
                self._breach("no exit code lost", f"{text}: {verdict.learner} was not lost, {named}")
        elif verdict.exit_code is not None or verdict.signal is not None:
            if named is None or not named.natural or named.code != verdict.exit_code:
                self._breach("no verdict against the facts", f"{text}: {verdict.learner} was {named}")
        elif verdict.reason == "EnvironmentFailed":
            if named is None or not named.gave_up:
                self._breach("no verdict against the facts", f"{text}: {verdict.learner} was {named}")
        elif verdict.reason not in REFUSALS:
            self._breach("no verdict against the facts", f"{text}: no such thing was done to it")
        elif committed or (verdict.reason == "NoSpace" and not declared.refused):
            self._breach("no verdict against the facts", f"{text}: nothing of the kind befell it")

    def _released(self, new: Any) -> None:
        if present := self.bodies.present(new.id):
            self._breach("released only after everything is gone", f"{new.id} released while there are {present}")

    def _retried(self, prior: Any, new: Any) -> None:
        crew = self.bodies.crew(new.id, new.attempt.number)
        own = any((body.natural and not body.succeeded and not body.lost) or body.gave_up for body in crew.values())
        if new.counters.retries != prior.counters.retries + 1 or not own:
            self._breach("only its own failures cost a job its retries", f"{new.id}/{new.attempt.number}: {crew}")
        if new.counters.retries > self._declared[new.id].retries:
            self._breach("only its own failures cost a job its retries", f"{new.id} was tried more often than it may")

    # --- the cluster ---------------------------------------------------------------------

    def looks(self, by: str, job_id: str) -> None:
        self._looked[by, job_id] = self._clock()

    def carried_out(self, step: str, plan: Any, there: Sequence[Any]) -> None:
        """A step of a plan took effect; ``there``: the job's learners on the cluster now."""
        paper, what = self.papers.job(plan.job), f"{step} of {plan.job}/{plan.attempt} under term {plan.term}"
        self.told("cluster:", what)
        self.bodies.fenced(plan.job, plan.attempt, plan.term, what, makes=True)
        if paper is None or paper.attempt.number != plan.attempt or paper.released is not None:
            self._breach("every stale write is refused", f"{what} took effect, but that attempt is over")
            return
        born = self.papers.born_stale.get((plan.job, plan.attempt))
        if step == "reserve" and born is not None and paper.dispatcher_term == born:
            self._breach("one dispatcher decides", f"{what} rests on an admission of a dispatcher that led no more")
        declared = self._declared[plan.job]
        if {one.name for one in plan.learners} != set(declared.learners):
            self._breach("all or nothing", f"{what} is not for the whole gang")
        self.bodies.made(step, plan, there, declared.learners)
        for node, (cpus, gpus) in self.bodies.load().items():
            self._fits(node, cpus, gpus, f"after {what}, learners hold")

    def stopped(self, job_id: str, attempt: int, term: int, cause: str, alive: Sequence[str]) -> None:
        """``alive``: those of the attempt whose processes ran, or could have begun to."""
        what = f"stop ({cause}) of {job_id}/{attempt} under term {term}"
        self.told("cluster:", what)
        self.bodies.fenced(job_id, attempt, term, what)
        paper = self.papers.job(job_id)
        wanted = paper is not None and (paper.verdict is not None or (cause == "halt" and paper.desired != "run"))
        if alive and not wanted:
            self._breach("the decision is durable first", f"{job_id}/{attempt} was stopped ({cause}) without one")

    def unstored(self, job_id: str, attempt: int) -> list[str]:
        """Learners that are there, have run, and whose results are not in the object store."""
        crew = self.bodies.crew(job_id, attempt)
        return [name for name, body in crew.items() if body.present and body.started and not body.stored]

    def torn_down(self, job_id: str, attempt: int, term: int, went: Sequence[str], unstored: Sequence[str]) -> None:
        """``went``: learners that it removed; ``unstored``: those of them whose results went with them."""
        what = f"teardown of {job_id}/{attempt} under term {term}"
        self.told("cluster:", what)
        self.bodies.fenced(job_id, attempt, term, what, seals=True)
        paper = self.papers.job(job_id)
        if not went or paper is None or paper.released is not None:
            return
        if paper.status in LIVE or paper.verdict is None:
            self._breach("the decision is durable first", f"{job_id}/{attempt} torn down while {paper.status}")
            return
        declared, decided = self._declared[job_id], self._verdicts.get((job_id, attempt), 0.0)
        in_time = self._clock() < decided + declared.grace_s + declared.store_s
        if unstored and in_time and paper.status != "KILLED":
            self._breach("results are stored before hardware is freed", f"{job_id}/{attempt}: {unstored}")

    # --- processes -------------------------------------------------------------------------

    def process_started(self, learner: Any) -> None:
        what = f"{learner.job}/{learner.attempt}/{learner.name}"
        self.told("process starts:", what)
        self.bodies.started(learner)
        self._whole(learner, what)
        paper = self.papers.job(learner.job)
        if paper is None or paper.attempt.number != learner.attempt or paper.released is not None:
            self._breach("one live fenced attempt", f"{what} started, but its attempt is not the current one")
        elif paper.status not in LIVE and not self.bodies.of(learner).vanished:
            self._breach("a finished job is never trained again", f"{what} started while {paper.status}")

    def _whole(self, learner: Any, what: str) -> None:
        crew = self.bodies.crew(learner.job, learner.attempt)
        names = self._declared[learner.job].learners
        behind = [name for name in names if name not in crew or not (crew[name].active and crew[name].prepared)]
        if behind:
            self._breach("all or nothing", f"{what} started while these of its gang were not ready: {behind}")

    def prepared(self, learner: Any) -> None:
        self.bodies.of(learner).prepared = True

    def ends_by_itself(self, learner: Any, code: int | None, *, lost: bool) -> None:
        self.bodies.ends_by_itself(learner, code, lost=lost)

    def process_ended(self, learner: Any) -> None:
        self.told("process ended:", learner.job, learner.attempt, learner.name, learner.exit)
        self.bodies.ended(learner, self._clock())

    def gave_up(self, learner: Any) -> None:
        self.bodies.of(learner).gave_up = True

    def results_stored(self, learner: Any) -> None:
        self.bodies.of(learner).stored = True

    def vanished(self, learner: Any) -> None:
        self.bodies.of(learner).vanished = True

    def removed(self, learner: Any) -> None:
        self.bodies.removed(learner)

    def lease_ran_out(self, lease: int, *, believed: bool) -> None:
        if believed:
            self._breach("no lease is believed in longer than it lasts", f"lease {lease}")

    def fell(self, process: str, why: str) -> None:
        self._breach("no service dies by itself", f"{process}: {why}")

    # --- the end -----------------------------------------------------------------------------

    def ended(self, job: Any) -> None:
        """The faults have stopped long ago; this is what became of a job."""
        goal = {
            "run": {"COMPLETED", "FAILED"},
            "halt": {"HALTED", "COMPLETED", "FAILED"},
            "kill": {"KILLED", "COMPLETED", "FAILED"},
        }
        if job.status not in goal[job.desired]:
            self._breach("every job reaches what its owner wants", f"{job.id} is {job.status}, wanted: {job.desired}")
        if job.generation > 1 and job.observed_generation != job.generation:
            self._breach(
                "every job reaches what its owner wants", f"{job.id}: {job.observed_generation} was obeyed last"
            )
        last = self.papers.events(job.id)[-1]
        if job.status == "FAILED" and job.desired == "run" and last.reason in {"LearnerLost", "ProvisionTimeout"}:
            self._breach("every job reaches what its owner wants", f"{job.id} failed by the platform: {last}")
        self.papers.whole(job)

    def late(self, job: Any) -> None:
        self._breach(
            "every job reaches what its owner wants", f"{job.id} is not at rest yet: {job.status}, {_brief(job)}"
        )

    def unanswered(self, request: str) -> None:
        self._breach("every job reaches what its owner wants", f"nobody answers {request}")

    def left(self, leftovers: Sequence[str]) -> None:
        if leftovers:
            self._breach("nothing is left behind", ", ".join(leftovers))


def _brief(job: Any) -> str:
    verdict = f"{job.verdict.to} ({job.verdict.reason})" if job.verdict is not None else "-"
    claim = f"{job.guardian.term}:{job.guardian.holder[-4:]}"
    return f"attempt {job.attempt.number}, claim {claim}, verdict {verdict}, released {job.released is not None}"

"""The checker of the simulation: the rules that Weft promises, independent of the services' code.

The simulated stores and cluster report every commit, every effect and every start and end of a process to it, at once.
It checks each against its own rules, written from contracts.md and architecture.md, and imports nothing of the
services. ``LearnerChecker`` has the rules on learners, ``DocumentChecker`` those on job documents; this module has the
rules that concern both.

It records breaches and does not raise: the loops of the services would catch the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tests.simulation.document_checker import LIVE, DocumentChecker
from tests.simulation.learner_checker import ONE_RUN, LearnerChecker, LearnerRecord

_BLIND_S: Final = 10.0
"""A service decides on observations that are at most so old."""
_LOST: Final = frozenset({"LearnerLost", "NodeLost"})
_REFUSED: Final = frozenset({"NoSpace", "QuotaExceeded", "QuotaInUse", "SecretInvalid"})
REFUSALS: Final = frozenset({*_REFUSED, "AdmissionWithdrawn", "ProvisionTimeout", "SecretsUnavailable"})
"""Reasons to end an attempt without a failed learner: the cluster or the dispatcher refused it."""


@dataclass(frozen=True)
class Declared:
    """A job's spec, as far as the checker needs it."""

    learners: Mapping[str, tuple[float, float]]
    """Name -> (CPUs, GPUs)."""
    deciding: Collection[str]
    """Learners of deciding roles."""
    ignored: Collection[str]
    """Learners whose failure is ignored."""
    restarted: Collection[str]
    """Learners that are started again alone."""
    least: Mapping[str, int]
    """Role -> how many of its learners suffice after others were lost."""
    retries: int
    grace_s: float
    store_s: float
    """``store_timeout`` in seconds."""
    refused: bool
    """The cluster refuses its first attempt."""

    @classmethod
    def one_learner(cls, cpus: float = 1, *, grace_s: float = 30, store_s: float = 600) -> Self:
        """A job of ``worker-0``, without retries. The times are a spec's own defaults."""
        return cls(
            learners={"worker-0": (cpus, 0)},
            deciding={"worker-0"},
            ignored=(),
            restarted=(),
            least={},
            retries=0,
            grace_s=grace_s,
            store_s=store_s,
            refused=False,
        )


@dataclass(frozen=True)
class Breach:
    """A broken rule."""

    time: float
    """Seconds of virtual time."""
    invariant: str
    """The rule."""
    what: str
    """What broke it."""

    def __str__(self) -> str:
        return f"{self.invariant} at {self.time:.3f}: {self.what}"


class Checker:
    """Collects breaches in ``breaches``."""

    def __init__(self, nodes: Mapping[str, tuple[float, float]], clock: Callable[[], float]) -> None:
        """``nodes``: name -> (CPUs, GPUs)."""
        self.breaches: list[Breach] = []
        self._nodes, self._clock = nodes, clock
        self._declared: dict[str, Declared] = {}
        self.documents = DocumentChecker(self._breach)
        self.learners = LearnerChecker(self._breach)
        self.note: Callable[..., None] = lambda *_: None
        """Writes a line to the trace: every commit and every effect, in order."""
        self._observed_at: dict[tuple[str, str], float] = {}
        """(process, job) -> when the process last observed the job on the cluster."""
        self._verdicts: dict[tuple[str, int], float] = {}
        self._killed_at: dict[str, float] = {}
        """Job -> when its owner requested the kill."""
        """(job, attempt) -> when the verdict was written, by the true clock."""
        self._rebound: dict[tuple[str, int, str], float] = {}
        """(job, attempt, learner) -> when its document got another node for it."""

    def _breach(self, invariant: str, what: str) -> None:
        self.breaches.append(Breach(self._clock(), invariant, what))
        self.note("BREACH", invariant, what)

    def declare(self, job_id: str, declared: Declared) -> None:
        self._declared[job_id] = declared

    # --- the documents -----------------------------------------------------------------

    def joined(self, process: str, member: str) -> None:
        """A process joined under a member id."""
        self.documents.members[process] = member

    def dispatches(self, by: str, term: int) -> None:
        self.note(by, "leads under term", term)
        self.documents.dispatches(by, term)

    def copied(self, job_id: str, history: Sequence[Any]) -> None:
        self.documents.copied(job_id, history)

    def committed(self, by: str, prior: Any, new: Any) -> None:
        """``prior``: the document that this write replaced, as it was in the store; None: there was none."""
        self.note(by, "writes", new.id, new.rev, new.state.status, new.desired, _brief(new))
        self.documents.committed(by, prior, new)
        if prior is None:
            return
        if new.desired == "kill":
            self._killed_at.setdefault(new.id, self._clock())
        if new.attempt.number > prior.attempt.number:
            self._admitted(prior, new)
        elif new.verdict is not None and new.verdict != prior.verdict:
            self._verdicts.setdefault((new.id, new.attempt.number), self._clock())
            self._check_verdict(by, new)
        if new.attempt.number == prior.attempt.number and new.attempt.placement != prior.attempt.placement:
            self._check_nodes(prior, new)
        if prior.released is None and new.released is not None:
            self._released(new)
        if new.counters.retries != prior.counters.retries:
            self._retried(prior, new)

    def _admitted(self, prior: Any, new: Any) -> None:
        if prior.desired != "run":
            self._breach("kill > halt > run", f"{new.id} was admitted although its owner wants it to {prior.desired}")
        if present := self.learners.present(new.id):
            self._breach(
                "a job is released only after all it held is gone", f"{new.id} admitted while there are {present}"
            )
        if new.dispatcher_term == self.documents.dispatcher_term:
            self._check_capacity(new)

    def _check_capacity(self, new: Any) -> None:
        """The unreleased admissions of the leading dispatcher fit on each node.

        A node that a document got since the dispatcher's last round cannot be known to it.
        """
        counted = [
            job
            for job in self.documents.holding()
            if job.attempt.committed or job.verdict is not None or job.dispatcher_term == new.dispatcher_term
        ]
        for node in set(new.attempt.placement.values()):
            cpus = gpus = 0.0
            for job in counted:
                for name, placed_on in job.attempt.placement.items():
                    if placed_on == node and not self._rebound_lately(job, name):
                        need = self._declared[job.id].learners[name]
                        cpus, gpus = cpus + need[0], gpus + need[1]
            self._check_fits(node, cpus, gpus, f"after the admission of {new.id} unreleased admissions need")

    def _rebound_lately(self, job: Any, name: str) -> bool:
        """Whether the dispatcher may have counted the learner on the node that its document had before."""
        rebound = self._rebound.get((job.id, job.attempt.number, name))
        return rebound is not None and rebound > self._clock() - _BLIND_S

    def _check_nodes(self, prior: Any, new: Any) -> None:
        """A document names other nodes for its learners: those that the cluster has bound them to."""
        gang = self.learners.gang(new.id, new.attempt.number)
        if new.attempt.placement.keys() != prior.attempt.placement.keys():
            self._breach("quota never exceeded", f"other learners of {new.id} are charged than were placed")
        for name, node in new.attempt.placement.items():
            if node == prior.attempt.placement.get(name):
                continue
            self._rebound[new.id, new.attempt.number, name] = self._clock()
            if name not in gang or gang[name].node != node:
                self._breach("quota never exceeded", f"{new.id}/{name} is charged on {node}, where it is not bound")

    def _check_fits(self, node: str, cpus: float, gpus: float, what: str) -> None:
        total = self._nodes[node]
        if cpus > total[0] + 1e-6 or gpus > total[1] + 1e-6:
            self._breach("quota never exceeded", f"{what} {cpus:g} CPUs, {gpus:g} GPUs of {node}, which has {total}")

    def _check_verdict(self, by: str, new: Any) -> None:
        """A verdict agrees with what happened to the learners."""
        verdict, declared, number = new.verdict, self._declared[new.id], new.attempt.number
        gang = self.learners.gang(new.id, number)
        succeeded = [name for name in declared.deciding if name in gang and gang[name].succeeded]
        passed = [name for name in declared.deciding if name in declared.ignored and name in gang and gang[name].ended]
        done = bool(succeeded) and len({*succeeded, *passed}) == len(declared.deciding)
        away = [name for name in declared.deciding if name not in succeeded and _is_away(gang.get(name))]
        enough = all(_count(succeeded, role) >= least for role, least in declared.least.items())
        away = [name for name in away if name.rpartition("-")[0] in declared.least and enough]
        done_without = bool(succeeded) and len({*succeeded, *passed, *away}) == len(declared.deciding)
        # An end after the last observation cannot be known to the service that decides.
        observed_at = max(self._observed_at.get((by, new.id), 0.0), self._clock() - _BLIND_S)
        known = done and not any(gang[name].vanished or gang[name].known_at > observed_at for name in declared.deciding)
        if any(record.forged and (record.lost or record.vanished) for record in gang.values()):
            return  # the cluster has no record of how it ended, so the report counts
        text = f"{new.id}/{number} is to be {verdict.to} ({verdict.reason}) by {by}"
        if verdict.to == "COMPLETED" and not done_without:
            self._breach("a verdict agrees with what happened", f"{text}, but only {succeeded} succeeded")
        if verdict.to == "KILLED" and new.desired != "kill":
            self._breach("a verdict agrees with what happened", f"{text}, which its owner did not request")
        if verdict.to == "HALTED" and new.desired not in {"halt", "kill"}:
            self._breach("a verdict agrees with what happened", f"{text}, which its owner did not request")
        if verdict.to in {"HALTED", "QUEUED", "FAILED"} and known and verdict.reason != "DeadlineExceeded":
            self._breach("a finished job is never trained again", f"{text}, but all deciding learners had succeeded")
        if verdict.to in {"QUEUED", "FAILED"}:
            self._check_reason(text, verdict, gang, declared, committed=new.attempt.committed)

    def _check_reason(
        self, text: str, verdict: Any, gang: Mapping[str, LearnerRecord], declared: Declared, *, committed: bool
    ) -> None:
        """The reason of a failure is what happened to the learner that the verdict names."""
        named = gang.get(verdict.learner)
        if verdict.reason in _LOST:
            if named is not None and not (named.lost or named.vanished):
                self._breach("no exit code lost", f"{text}: {verdict.learner} was not lost, {named}")
        elif verdict.exit_code is not None or verdict.signal is not None:
            if named is None or not named.natural or named.code != verdict.exit_code:
                self._breach("a verdict agrees with what happened", f"{text}: {verdict.learner} was {named}")
        elif verdict.reason == "EnvironmentFailed":
            if named is None or not named.helper_failed:
                self._breach("a verdict agrees with what happened", f"{text}: {verdict.learner} was {named}")
        elif verdict.reason not in REFUSALS:
            self._breach("a verdict agrees with what happened", f"{text}: the simulation has no such failure")
        elif committed or (verdict.reason in _REFUSED and not declared.refused):
            self._breach("a verdict agrees with what happened", f"{text}: this did not happen to it")

    def _released(self, new: Any) -> None:
        if present := self.learners.present(new.id):
            self._breach(
                "a job is released only after all it held is gone", f"{new.id} released while there are {present}"
            )

    def _retried(self, prior: Any, new: Any) -> None:
        """A retry was counted: a learner of the job failed by itself, and the limit allows it."""
        gang = self.learners.gang(new.id, new.attempt.number)
        own = any(
            (record.natural and not record.succeeded and not record.lost) or record.helper_failed
            for record in gang.values()
        )
        if new.counters.retries != prior.counters.retries + 1 or not own:
            self._breach(
                "only a job's own failures count against its retries", f"{new.id}/{new.attempt.number}: {gang}"
            )
        if new.counters.retries > self._declared[new.id].retries:
            self._breach("only a job's own failures count against its retries", f"{new.id} was retried too often")

    # --- the cluster ---------------------------------------------------------------------

    def observed(self, by: str, job_id: str) -> None:
        self._observed_at[by, job_id] = self._clock()

    def step_done(self, step: str, plan: Any, learners: Sequence[Any]) -> None:
        """A step of a plan took effect. ``learners``: the job's learners on the cluster now."""
        document, what = self.documents.job(plan.job), f"{step} of {plan.job}/{plan.attempt} under term {plan.term}"
        self.note("cluster:", what)
        self.learners.check_fence(plan.job, plan.attempt, plan.term, what, creates=True)
        if document is None or document.attempt.number != plan.attempt or document.released is not None:
            self._breach("every stale write is refused", f"{what} took effect, but that attempt is over")
            return
        stale_term = self.documents.stale_admissions.get((plan.job, plan.attempt))
        if step == "reserve" and stale_term is not None and document.dispatcher_term == stale_term:
            self._breach("one dispatcher decides", f"{what} is for an admission of a dispatcher that no longer led")
        declared = self._declared[plan.job]
        if {learner.name for learner in plan.learners} != set(declared.learners):
            self._breach("all or nothing", f"{what} is not for the whole gang")
        for learner, before in self.learners.step_done(step, plan, learners, declared.learners):
            self._check_restart(learner, before, document, declared)
        for node, (cpus, gpus) in self.learners.used_by_node().items():
            self._check_fits(node, cpus, gpus, f"after {what} learners hold")

    def _check_restart(self, learner: Any, before: LearnerRecord | None, document: Any, declared: Declared) -> None:
        """A learner was made again: that was decided before, nothing of its last run can run, its results are kept."""
        what = f"run {learner.plan.run} of {learner.job}/{learner.attempt}/{learner.name}"
        decided = document.attempt.reruns.get(learner.name)
        if decided is None or decided.run != learner.plan.run or document.verdict is not None:
            self._breach("a decision is durable before it is carried out", f"{what} was made without one")
        if before is None or before.run >= learner.plan.run:
            self._breach(ONE_RUN, f"{what} was made after {before}")
            return
        if not before.may_be_replaced:
            self._breach(ONE_RUN, f"{what} was made although the run before had not ended: {before}")
        role = learner.name.rpartition("-")[0]
        if learner.name not in declared.restarted and role not in declared.least:
            self._breach("only what its role allows is started again alone", what)
        in_time = self._clock() < before.ended_at + declared.store_s
        if before.started and before.natural and not (before.stored or before.lost or before.vanished) and in_time:
            self._breach("results are stored before hardware is freed", f"{what} was made: {before}")

    def stopped(self, job_id: str, attempt: int, term: int, cause: str, alive: Sequence[str]) -> None:
        """A stop took effect. ``alive``: the learners whose processes ran or could start."""
        what = f"stop ({cause}) of {job_id}/{attempt} under term {term}"
        self.note("cluster:", what)
        self.learners.check_fence(job_id, attempt, term, what)
        self._check_stop(job_id, attempt, cause, alive)

    def _check_stop(self, job_id: str, attempt: int, cause: str, alive: Sequence[str]) -> None:
        document = self.documents.job(job_id)
        wanted = document is not None and (
            document.verdict is not None or (cause == "halt" and document.desired != "run")
        )
        if alive and not wanted:
            self._breach(
                "a decision is durable before it is carried out",
                f"{job_id}/{attempt} was stopped ({cause}) before",
            )

    def unstored(self, job_id: str, attempt: int) -> list[str]:
        """Returns the learners on the cluster that have run and whose results are not in the object store."""
        gang = self.learners.gang(job_id, attempt)
        return [name for name, record in gang.items() if record.present and record.started and not record.stored]

    def torn_down(self, job_id: str, attempt: int, term: int, removed: Sequence[str], unstored: Sequence[str]) -> None:
        """A teardown took effect. ``removed``: its learners; ``unstored``: those of them whose results are lost."""
        what = f"teardown of {job_id}/{attempt} under term {term}"
        self.note("cluster:", what)
        self.learners.check_fence(job_id, attempt, term, what, seals=True)
        self._check_teardown(job_id, attempt, removed, unstored)

    def _check_teardown(self, job_id: str, attempt: int, removed: Sequence[str], unstored: Sequence[str]) -> None:
        document = self.documents.job(job_id)
        if not removed or document is None or document.released is not None:
            return
        if document.status in LIVE or document.verdict is None:
            self._breach(
                "a decision is durable before it is carried out",
                f"{job_id}/{attempt} torn down while {document.status}",
            )
            return
        declared, decided = self._declared[job_id], self._verdicts.get((job_id, attempt), 0.0)
        until = decided + declared.grace_s + declared.store_s
        if job_id in self._killed_at:  # a job that had succeeded: it ends so, and gets its grace to store
            until = min(until, max(decided, self._killed_at[job_id]) + declared.grace_s)
        in_time = self._clock() < until
        if unstored and in_time and document.status != "KILLED":
            self._breach("results are stored before hardware is freed", f"{job_id}/{attempt}: {unstored}")

    # --- processes -------------------------------------------------------------------------

    def process_started(self, learner: Any) -> None:
        what = f"{learner.job}/{learner.attempt}/{learner.name}"
        self.note("process starts:", what)
        self.learners.started(learner)
        self._check_gang_ready(learner, what)
        document = self.documents.job(learner.job)
        if document is None or document.attempt.number != learner.attempt or document.released is not None:
            self._breach("only one attempt runs at a time", f"{what} started, but its attempt is not the current one")
        elif document.status not in LIVE and not self._may_start_late(learner):
            self._breach("a finished job is never trained again", f"{what} started while {document.status}")

    def _may_start_late(self, learner: Any) -> bool:
        """Whether a process may start although its job has ended: the cluster has lost it."""
        return self.learners.record_of(learner).vanished

    def _check_gang_ready(self, learner: Any, what: str) -> None:
        gang = self.learners.gang(learner.job, learner.attempt)
        if self.learners.record_of(learner).run > 1:
            return  # its gang has started before; another learner may be started again as well
        names = self._declared[learner.job].learners
        not_ready = [name for name in names if name not in gang or not (gang[name].active and gang[name].prepared)]
        if not_ready:
            self._breach("all or nothing", f"{what} started while these of its gang were not ready: {not_ready}")

    def prepared(self, learner: Any) -> None:
        self.learners.record_of(learner).prepared = True

    def ends_by_itself(self, learner: Any, code: int | None, *, lost: bool) -> None:
        self.learners.ends_by_itself(learner, code, lost=lost)

    def process_ended(self, learner: Any) -> None:
        self.note("process ended:", learner.job, learner.attempt, learner.name, learner.exit)
        self.learners.ended(learner, self._clock())

    def helper_failed(self, learner: Any) -> None:
        self.learners.record_of(learner).helper_failed = True

    def report_forged(self, learner: Any) -> None:
        self.learners.record_of(learner).forged = True

    def results_stored(self, learner: Any) -> None:
        self.learners.record_of(learner).stored = True

    def learner_lost(self, learner: Any) -> None:
        self.learners.record_of(learner).vanished = True

    def removed(self, learner: Any) -> None:
        self.learners.removed(learner)

    def lease_ran_out(self, lease: int, *, believed: bool) -> None:
        if believed:
            self._breach("no process relies on a lease that has run out", f"lease {lease}")

    def process_failed(self, process: str, why: str) -> None:
        self._breach("no service fails by itself", f"{process}: {why}")

    # --- the end -----------------------------------------------------------------------------

    def ended(self, job: Any) -> None:
        """A job is at rest after the last fault: its status is one that its owner's desired state allows."""
        allowed = {
            "run": {"COMPLETED", "FAILED"},
            "halt": {"HALTED", "COMPLETED", "FAILED"},
            "kill": {"KILLED", "COMPLETED", "FAILED"},
        }
        if job.status not in allowed[job.desired]:
            self._breach(
                "every job reaches the state that its owner wants", f"{job.id} is {job.status}, wanted: {job.desired}"
            )
        if job.generation > 1 and job.observed_generation != job.generation:
            self._breach(
                "every job reaches the state that its owner wants",
                f"{job.id}: its observed generation is {job.observed_generation}",
            )
        last = self.documents.events(job.id)[-1]
        if job.status == "FAILED" and job.desired == "run" and last.reason in {*_LOST, "ProvisionTimeout"}:
            self._breach(
                "every job reaches the state that its owner wants", f"{job.id} failed through the platform: {last}"
            )
        self.documents.check_complete(job)

    def not_at_rest(self, job: Any) -> None:
        self._breach(
            "every job reaches the state that its owner wants",
            f"{job.id} is not at rest yet: {job.status}, {_brief(job)}",
        )

    def unanswered(self, request: str) -> None:
        self._breach("every job reaches the state that its owner wants", f"no answer to {request}")

    def left_behind(self, leftovers: Sequence[str]) -> None:
        if leftovers:
            self._breach("nothing is left behind", ", ".join(leftovers))


def _is_away(record: LearnerRecord | None) -> bool:
    """Whether a learner is lost, or is started again and does not run."""
    return record is None or record.lost or record.vanished or (record.run > 1 and not record.alive)


def _count(names: Collection[str], role: str) -> int:
    return sum(name.rpartition("-")[0] == role for name in names)


def _brief(job: Any) -> str:
    """The parts of a document for the trace."""
    verdict = f"{job.verdict.to} ({job.verdict.reason})" if job.verdict is not None else "-"
    claim = f"{job.guardian.term}:{job.guardian.holder[-4:]}"
    return f"attempt {job.attempt.number}, claim {claim}, verdict {verdict}, released {job.released is not None}"

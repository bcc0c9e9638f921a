"""The checker's rules for learners in pods: what the port promises for every adapter, said of objects.

A stale call may create inert objects, which are gone soon (``left_behind``); it may mark a stop that was decided. It
never activates. The rules on documents, verdicts and processes are those of ``Checker``.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tests.simulation.checker import Checker
from tests.simulation.learner_checker import ONE_RUN

_RELAY_S: Final = 1.0
"""A helper that reaches the platform knows of a stop within so long."""


class PodChecker(Checker):
    """Pods and their processes are reported by the API server's objects and by kubelets, in this order."""

    def made(self, learner: Any, *, owned: bool) -> None:
        """An inert pod was created. ``owned``: its attempt's owner exists; else it is garbage from the beginning."""
        what = f"{learner.job}/{learner.attempt}/{learner.name}, run {learner.plan.run}"
        self.note("pod made:", what, learner.uid, "" if owned else "(no owner)")
        need = self._declared[learner.job].learners[learner.name]
        before = self.learners.made(learner, need, owned=owned)
        document = self.documents.job(learner.job)
        if owned and learner.plan.run > 1 and document is not None:
            self._check_restart(learner, before, document, self._declared[learner.job])

    def activated(self, learner: Any, pair: tuple[int, int] | None, *, term: int, stopped: bool) -> None:
        """A pod's gate was lifted. ``pair``: (attempt, term) of the call that did it; None: it never had one.

        ``term``: the highest that has acted on the pod before. ``stopped``: the pod has a stop mark.
        """
        what = f"activation of {learner.job}/{learner.attempt}/{learner.name}"
        self.note("pod activated:", what, pair)
        document = self.documents.job(learner.job)
        record = self.learners.record_of(learner)
        record.active = True
        if record.made_again:
            self._breach(ONE_RUN, f"{what}, of which run {record.run} was activated before")
        if stopped:
            self._breach("a learner that was stopped before its start never starts", what)
        if pair is None or pair < (learner.attempt, term):
            self._breach("every stale write is refused", f"{what} by {pair}, after one of term {term}")
        elif document is None or document.attempt.number != learner.attempt or document.released is not None:
            self._breach("every stale write is refused", f"{what} took effect, but that attempt is over")
        else:
            self.learners.check_activation(learner.job, *pair, what)

    def bound(self, learner: Any) -> None:
        self.learners.record_of(learner).node = learner.plan.node
        self.note("pod bound:", learner.job, learner.attempt, learner.name, learner.plan.node)
        for node, (cpus, gpus) in self.learners.used_by_node().items():
            if node:
                self._check_fits(node, cpus, gpus, f"with {learner.job}/{learner.name} pods hold")

    def carried_out(self, job_id: str, attempt: int, term: int, *, seals: bool) -> None:
        """A call of the port was answered. ``seals``: it was a teardown."""
        self.learners.carried_out(job_id, (attempt, term), seals=seals)

    def stop_marked(self, job_id: str, attempt: int, term: int, cause: str, alive: list[str]) -> None:
        """The stop of an attempt became durable in the cluster."""
        self.note("cluster:", f"stop ({cause}) of {job_id}/{attempt} under term {term}")
        self._check_stop(job_id, attempt, cause, alive)

    def deleted(self, learner: Any, attempt: int, term: int) -> None:
        """A teardown deletes a pod.

        The entry process waits ``store_timeout`` from its learner's own end, which may be long before the verdict. Then
        the containers end and nothing can store any more: the pod is waited for no longer.
        """
        record = self.learners.record_of(learner)
        self.note("cluster:", f"teardown of {learner.job}/{attempt} under term {term} deletes {learner.name}")
        if not record.present:
            return
        expired = record.over and self._clock() >= record.ended_at + self._declared[learner.job].store_s
        kept = record.stored or record.lost or record.vanished or expired or not record.started
        self._check_teardown(learner.job, attempt, [learner.name], [] if kept else [learner.name])

    def _may_start_late(self, learner: Any) -> bool:
        """Also if its helper received the start just before the verdict: the stop is on its way."""
        decided = self._verdicts.get((learner.job, learner.attempt), -math.inf)
        return super()._may_start_late(learner) or self._clock() < decided + _RELAY_S

    def replaced(self, learner: Any) -> None:
        """A step of the plan deletes a pod: only for a later run of its learner."""
        document = self.documents.job(learner.job)
        decided = document.attempt.reruns.get(learner.name) if document is not None else None
        if decided is None or decided.run <= learner.plan.run:
            what = f"run {learner.plan.run} of {learner.job}/{learner.attempt}/{learner.name} was deleted"
            self._breach(ONE_RUN, f"{what}, which no later one replaces")

    def process_ended(self, learner: Any) -> None:
        super().process_ended(learner)
        self.learners.record_of(learner).known_at = math.inf

    def recorded(self, learner: Any) -> None:
        """The API server has the record of a learner's end."""
        self.learners.record_of(learner).known_at = self._clock()

    def removed(self, learner: Any) -> None:
        """The pod is gone. Its process may still run, if nobody has waited for its kubelet."""
        self.learners.record_of(learner).present = False

    def orphaned(self, learner: Any) -> None:
        """The owner of an inert pod is gone: the pod is garbage."""
        self.learners.record_of(learner).present = False

    def died(self, learner: Any) -> None:
        """A process ended with its node."""
        self.learners.record_of(learner).alive = False

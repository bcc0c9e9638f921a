"""Carrying out an attempt's plan: idempotent steps, all of them or a verdict that undoes what was done.

Nothing takes effect before two things are sure: the admission is of the dispatcher that leads now (an older one's might
be promised to another job as well), and etcd says which attempt is current (helpers ask for it).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from services.core.domain.errors import InvalidRequest, ResourceExhausted, StaleFence, Unavailable, row
from services.core.domain.job import Claim, Job, Verdict
from services.core.domain.spec import JobSpec
from services.core.domain.status import Status
from services.core.ports.cluster import Observation
from services.core.ports.job_store import JobStore
from services.core.ports.status_store import StatusStore
from services.core.use_cases.jobs import update
from services.guardian.learner_view import announced_attempt
from services.guardian.ports import GuardianPorts
from services.guardian.render import digest, render
from services.guardian.settings import GuardianSettings

_Log = structlog.typing.FilteringBoundLogger


class Provisioning:
    """One per Guardian. A new Guardian goes through all steps again: those that are done already cost nothing."""

    def __init__(self, claim: Claim, ports: GuardianPorts, settings: GuardianSettings, bound: _Log) -> None:
        self._claim, self._ports, self._settings, self._log = claim, ports, settings, bound
        self._done = 0
        self._recorded = False
        self._since = ports.clock.boottime()
        """Wall clocks of two machines may differ by an hour, which must not undo what has just begun."""

    async def go_on(self, job: Job, spec: JobSpec) -> Verdict | None:
        """Carries out what is left of the plan; a verdict where the cluster says no. Unavailable: try again."""
        if self._recorded:
            return None  # all is done; it is for the learners to begin
        steps = self._ports.cluster.steps()
        if self._done == 0:
            await self._check_admission(job)
        await announce(self._ports.status, job, spec.learners, ours=lambda: current(self._ports.jobs, job, self._claim))
        try:
            plan = render(job, spec, term=self._claim.term, secret=self._ports.secret, sizes=self._ports.sizes)
            for place, step in enumerate(steps[self._done :], start=self._done):
                await self._note(job, place, step, "doing")
                await self._ports.cluster.do(step, plan)
                await self._note(job, place, step, "done")
                self._done = place + 1
        except InvalidRequest as error:
            lost = self._done > 0 and self.lost(job, await self._ports.cluster.observe(job.id))
            return lost or Verdict(to=Status.FAILED, reason=_reason(error), message=str(error), time=self._now)
        except ResourceExhausted as error:
            return self.roll_back(job, _reason(error), str(error))
        named = digest(plan)
        await update(
            self._ports.jobs, job.id, self._claim,
            lambda one: replace(one, attempt=replace(one.attempt, plan_digest=named)),
        )  # fmt: skip
        self._recorded = True
        self._log.info("attempt.provisioned", attempt=job.attempt.number, learners=spec.learners)
        return None

    def lost(self, job: Job, seen: Observation) -> Verdict | None:
        """A verdict where learners were reserved and are not there any more: their machine is gone."""
        there = {one.name for one in seen.learners if one.attempt == job.attempt.number}
        gone = sorted(set(job.attempt.placement) - there)
        if self._done == 0 or not gone or (not there and job.attempt.number in seen.attempts):
            return None
        return self.roll_back(job, "LearnerLost", f"{', '.join(gone)} vanished before all of the gang were there")

    def late(self, job: Job) -> Verdict | None:
        """A verdict where the attempt should have been provisioned by now."""
        waited_s = self._ports.clock.boottime() - self._since
        if waited_s <= self._settings.provision_timeout_s:
            return None
        return self.roll_back(job, "ProvisionTimeout", f"not all learners were provisioned within {waited_s:.0f} s")

    def roll_back(self, job: Job, reason: str, message: str) -> Verdict:
        """All or nothing: what is there is undone and the job waits for another try, a bounded number of times."""
        again = job.counters.rollbacks + 1 < self._settings.provision_tries
        return Verdict(to=Status.QUEUED if again else Status.FAILED, reason=reason, message=message, time=self._now)

    async def _check_admission(self, job: Job) -> None:
        current = await self._ports.jobs.dispatcher()
        if current.term != job.dispatcher_term:
            raise Unavailable("the admission is of an older dispatcher; the new one will stamp it or take it back")

    async def _note(self, job: Job, place: int, step: str, state: str) -> None:
        """Progress for people (`weft explain`); nothing is decided from it, so etcd being away does not stop us."""
        note = {"attempt": job.attempt.number, "step": step, "state": state, "time": self._now, "schema": 1}
        try:
            await self._ports.status.put(f"/jobs/{job.id}/plan/{place:02d}", json.dumps(note))
        except Unavailable as error:
            self._log.info("plan.progress_not_noted", step=step, why=str(error))

    @property
    def _now(self) -> int:
        return self._ports.clock.now_ms()


async def announce(status: StatusStore, job: Job, learners: int, *, ours: Callable[[], Awaitable[object]]) -> None:
    """Says in etcd which attempt is current. Unavailable: perhaps it was not said.

    A greater number there means that we are the past, or that it is nobody's: ``ours`` raises, read after it, in the
    first case. Whoever announces the next attempt meanwhile changes the revision that we compare.
    """
    key, number = f"/jobs/{job.id}/attempt", job.attempt.number
    present = await status.get(key)
    if present is not None:
        said = announced_attempt(present.value)
        if said == number:
            return
        if said > number:
            await ours()
    value = json.dumps({"attempt": number, "learners": learners})
    revision = present.mod_revision if present is not None else 0
    if await status.put_if(key, value, mod_revision=revision) is None:
        raise Unavailable("somebody else announces an attempt of this job")


async def current(jobs: JobStore, job: Job, claim: Claim) -> None:
    """StaleFence unless the job is still ours, and in this attempt."""
    now = await update(jobs, job.id, claim, lambda one: one)
    if now.attempt.number != job.attempt.number:
        raise StaleFence(f"job {job.id} is in attempt {now.attempt.number}, not {job.attempt.number}")


def _reason(error: InvalidRequest | ResourceExhausted) -> str:
    """``no-space`` -> ``NoSpace``."""
    return "".join(word.capitalize() for word in row(error).code.split("-"))

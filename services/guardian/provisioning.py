"""Carries out an attempt's plan: idempotent steps, all of them, or a verdict by which what was done is undone.

Nothing takes effect before two conditions hold: the admission is of the dispatcher that leads now (an older one may
have given the same place to another job), and etcd names the current attempt (helpers read it).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from services.core.domain.errors import (
    InvalidRequest,
    QuotaExceeded,
    ResourceExhausted,
    SecretsUnavailable,
    StaleFence,
    Unavailable,
    WeftError,
    row,
)
from services.core.domain.job import Claim, Job, Verdict
from services.core.domain.outages import Outage, is_outage
from services.core.domain.spec import JobSpec
from services.core.domain.status import Status
from services.core.domain.status_keys import attempt_key, plan_key
from services.core.ports.cluster import Observation
from services.core.ports.job_store import JobQuery, JobStore
from services.core.ports.status_store import StatusStore
from services.core.use_cases.jobs import update
from services.guardian.learner_view import announced_attempt
from services.guardian.observed_state import blocked
from services.guardian.ports import GuardianPorts
from services.guardian.render import digest, render
from services.guardian.settings import GuardianSettings

_MOST_TEXT: Final = 600
_Log = structlog.typing.FilteringBoundLogger


class Provisioning:
    """One per Guardian. A new Guardian repeats all steps; those that are done already cost nothing."""

    def __init__(self, claim: Claim, ports: GuardianPorts, settings: GuardianSettings, bound: _Log) -> None:
        self._claim, self._ports, self._settings, self._log = claim, ports, settings, bound
        self._done = 0
        """Number of steps that are done."""
        self._recorded = False
        self._error: WeftError | None = None
        """Why the last call could not carry out its step, and is to be repeated."""
        self._since_s = ports.clock.boottime()
        """On the boot-time clock: the wall clocks of two machines may differ by an hour."""

    async def provision(self, job: Job, spec: JobSpec) -> Verdict | None:
        """Carries out the rest of the plan. Returns a verdict if the cluster refuses it. Unavailable: call again."""
        if self._recorded:
            return None  # all steps are done; the learners have yet to begin
        steps = self._ports.cluster.steps()
        if self._done == 0:
            await self._check_admission(job)
        await announce(
            self._ports.status,
            job,
            spec.learners,
            check_current=lambda: check_current(self._ports.jobs, job, self._claim),
        )
        self._error = None
        try:
            plan = render(job, spec, term=self._claim.term, mint=self._ports.mint, sizes=self._ports.sizes)
            for number, step in enumerate(steps[self._done :], start=self._done):
                await self._record_progress(job, number, step, "doing")
                await self._ports.cluster.do(step, plan)
                await self._record_progress(job, number, step, "done")
                self._done = number + 1
        except InvalidRequest as error:
            lost = self._done > 0 and self.lost(job, await self._ports.cluster.observe(job.id))
            return lost or Verdict(to=Status.FAILED, reason=_reason(error), message=str(error), time=self._now)
        except ResourceExhausted as error:
            waits = isinstance(error, QuotaExceeded) and await self._has_other_jobs(job)
            return self.roll_back(job, Outage.QUOTA_IN_USE if waits else _reason(error), str(error))
        except WeftError as error:
            self._error = error
            raise
        plan_digest = digest(plan)
        await update(
            self._ports.jobs,
            job.id,
            self._claim,
            lambda current: replace(current, attempt=replace(current.attempt, plan_digest=plan_digest)),
        )
        self._recorded = True
        self._log.info("attempt.provisioned", attempt=job.attempt.number, learners=spec.learners)
        return None

    def lost(self, job: Job, observed: Observation) -> Verdict | None:
        """A verdict if learners that were reserved are not on the cluster any more: their machine is gone."""
        there = {process.name for process in observed.learners if process.attempt == job.attempt.number}
        gone = sorted(set(job.attempt.placement) - there)
        if self._done == 0 or not gone or (not there and job.attempt.number in observed.attempts):
            return None
        return self.roll_back(job, "LearnerLost", f"{', '.join(gone)} vanished before all of the gang were there")

    def late(self, job: Job, observed: Observation) -> Verdict | None:
        """A verdict if the attempt is not provisioned after ``provision_timeout_s``, or if it never can be."""
        cause = blocked(job.attempt.number, observed)
        waited_s = self._ports.clock.boottime() - self._since_s
        is_late = waited_s > self._settings.provision_timeout_s
        if cause is not None and (is_late or cause.blocked_for_good):
            return self.roll_back(job, cause.blocked, f"learner {cause.name} could not start: {cause.blocked_message}")
        if is_late and isinstance(self._error, SecretsUnavailable):
            return self.roll_back(job, Outage.SECRETS_UNAVAILABLE, self._error.message)
        if is_late:
            why = f": {' '.join(self._error.message.split())[:_MOST_TEXT]}" if self._error is not None else ""
            message = f"not all learners were provisioned within {waited_s:.0f} s{why}"
            return self.roll_back(job, "ProvisionTimeout", message)
        return None

    def roll_back(self, job: Job, reason: str, message: str) -> Verdict:
        """The verdict that undoes the attempt: the job is queued again, or FAILED after ``provision_tries``.

        An outage is no reason to fail, however long it lasts.
        """
        again = is_outage(reason) or job.counters.rollbacks + 1 < self._settings.provision_tries
        return Verdict(to=Status.QUEUED if again else Status.FAILED, reason=reason, message=message, time=self._now)

    async def _has_other_jobs(self, job: Job) -> bool:
        """Whether another job of its tenant holds hardware. If not, the job alone is more than the tenant's quota."""
        query = JobQuery(tenant=job.tenant, holding=True, deleted=True)
        return any(other.id != job.id for other in await self._ports.jobs.find(query, limit=2))

    async def _check_admission(self, job: Job) -> None:
        """Raises Unavailable unless the admission is of the dispatcher that leads now."""
        if (await self._ports.jobs.dispatcher()).term != job.dispatcher_term:
            raise Unavailable("the admission is of an older dispatcher; the new one will stamp it or withdraw it")

    async def _record_progress(self, job: Job, number: int, step: str, state: str) -> None:
        """Records a step's progress for display (`weft explain`). No decision uses it, so etcd may be away."""
        progress = {"attempt": job.attempt.number, "step": step, "state": state, "time": self._now, "schema": 1}
        try:
            await self._ports.status.put(plan_key(job.id, number), json.dumps(progress))
        except Unavailable as error:
            self._log.info("plan.progress_not_recorded", step=step, why=str(error))

    @property
    def _now(self) -> int:
        return self._ports.clock.now_ms()


async def announce(
    status: StatusStore, job: Job, learners: int, *, check_current: Callable[[], Awaitable[object]]
) -> None:
    """Writes to etcd that ``job.attempt`` is current. Raises Unavailable if the outcome is unknown.

    A greater number in etcd means that this Guardian is superseded, or that the key was written by no Guardian.
    ``check_current`` tells the two apart: it reads the document after the key, and raises in the first case. If another
    Guardian announces the next attempt in between, the revision compared here has changed.
    """
    key, number = attempt_key(job.id), job.attempt.number
    entry = await status.get(key)
    if entry is not None:
        announced = announced_attempt(entry.value)
        if announced == number:
            return
        if announced > number:
            await check_current()
    value = json.dumps({"attempt": number, "learners": learners})
    revision = entry.mod_revision if entry is not None else 0
    if await status.put_if(key, value, mod_revision=revision) is None:
        raise Unavailable("another process announces an attempt of this job")


async def check_current(jobs: JobStore, job: Job, claim: Claim) -> None:
    """Raises StaleFence unless the claim still holds and the job is in the attempt of ``job``."""
    current = await update(jobs, job.id, claim, lambda unchanged: unchanged)
    if current.attempt.number != job.attempt.number:
        raise StaleFence(f"job {job.id} is in attempt {current.attempt.number}, not {job.attempt.number}")


def _reason(error: InvalidRequest | ResourceExhausted) -> str:
    """The error's code as a reason: ``no-space`` -> ``NoSpace``."""
    return "".join(word.capitalize() for word in row(error).code.split("-"))

"""The Guardian of one job: an actor with one claim, one term and ``reconcile()``.

Level, not edge: each reconcile reads the document, looks at what is known of the learners, and takes the next step
towards what should be. It may be called any number of times, by anyone's hint, and killed between any two lines.

    admitted ─ provision (steps) ─ committed ─ running ─ verdict ─ stop ─ stored ─ terminal status ─ teardown ─ released

Going forward lives here and in ``provisioning``; from the verdict on, in ``ending``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from services.core.domain.errors import InvalidSpec, StaleFence, Unavailable, WeftError
from services.core.domain.job import Claim, Job, Verdict, moved
from services.core.domain.learner import LearnerStatus, decide_verdict, step_times
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import ADMITTED, Desired, Status
from services.core.ports.cluster import Observation
from services.core.use_cases.jobs import copy_history, update
from services.guardian import observed_state
from services.guardian.ending import Ending, Limits
from services.guardian.instrumentation import Instrumentation
from services.guardian.learner_view import LearnerView
from services.guardian.ports import GuardianPorts
from services.guardian.provisioning import Provisioning, announce, current
from services.guardian.settings import GuardianSettings

_RETRY_S: Final = 0.2
_RETRY_MOST_S: Final = 5.0
_DEAF_S: Final = 1.0


class Guardian:
    """``run()`` returns when the job is released; it raises StaleFence when another Guardian has taken it."""

    def __init__(
        self,
        job: Job,
        ports: GuardianPorts,
        settings: GuardianSettings,
        view: LearnerView,
        instrumentation: Instrumentation,
    ) -> None:
        self.job_id = job.id
        self.trace = job.trace
        self.claim: Claim = job.guardian
        self.generation = job.generation
        """Of the owner's wishes, as last read: the pool pokes us when the document shows another."""
        self._ports, self._settings, self._view = ports, settings, view
        self._poked = asyncio.Event()
        self._look = True
        self._seen: Observation = observed_state.NOTHING
        self._parsed: tuple[Mapping[str, Any], JobSpec | None] | None = None
        self._log = structlog.get_logger().bind(job=job.id, term=self.claim.term, trace=job.trace)
        self._provisioning = Provisioning(self.claim, ports, settings, self._log)
        self._ending = Ending(self.claim, ports, settings, instrumentation, self._log)

    def poke(self, *, look: bool = False) -> None:
        """Something happened; ``look``: on the cluster."""
        self._look = self._look or look
        self._poked.set()

    async def run(self) -> None:
        """Reconciles until the job is released."""
        delay: float | None = 0.0
        failures = 0
        while delay is not None:
            if failures:
                # What we do ourselves pokes us as well: a failure that is poked at must not become a spin.
                await self._ports.clock.sleep(min(delay, _DEAF_S))
                delay -= min(delay, _DEAF_S)
            try:
                async with asyncio.timeout(delay):
                    await self._poked.wait()
            except TimeoutError:
                self._look = True
            self._poked.clear()
            try:
                delay, failures = await self.reconcile(), 0
            except StaleFence:
                raise
            except WeftError as error:
                delay = min(_RETRY_S * 2 ** min(failures, 10), _RETRY_MOST_S)
                failures += 1
                self._look = True
                self._log.warning("guardian.retries", why=str(error), delay_s=delay)

    async def reconcile(self) -> float | None:
        """One step. Seconds until the next look without any hint; None: there is nothing left to guard."""
        job = await self._ports.jobs.get(self.job_id)
        if job is None:
            self._log.warning("guardian.job_gone")
            return None
        if not job.holds:
            await self._leave(job)
            return None
        if (job.guardian.term, job.guardian.nonce) != (self.claim.term, self.claim.nonce):
            raise StaleFence(f"job {job.id} has another Guardian (term {job.guardian.term})")
        self.generation = job.generation
        if self._look or job.desired is Desired.HALT or job.verdict is not None:
            # What is decided on a wish, or after a verdict, is decided on the cluster as it is now.
            self._seen = await self._ports.cluster.observe(job.id)
            self._look = False
        spec = self._spec(job)
        ranks, number = observed_state.roster(spec, job.attempt), job.attempt.number
        known = observed_state.learners(ranks, number, self._view.of(job.id, number), self._seen)
        if spec is not None and job.status in ADMITTED:
            await self._announce(job, spec)  # while stopping, too: helpers store only under a current attempt
        if job.verdict is not None:
            return await self._ending.step(job, job.verdict, Limits.of(spec), known, self._seen)
        if spec is None:
            return await self._decide(job, self._unreadable(job))
        return await self._forward(job, spec, known)

    async def _leave(self, job: Job) -> None:
        """The job is released. Its history is copied at once; the LCM's sweep would do it, too."""
        self._view.forget(job.id)
        await copy_history(self._ports.jobs, job)

    @property
    def _now(self) -> int:
        return self._ports.clock.now_ms()

    def _spec(self, job: Job) -> JobSpec | None:
        """The spec; None where it cannot be read. Parsed once: it does not change."""
        if self._parsed is None or self._parsed[0] != job.spec:
            try:
                self._parsed = (job.spec, parse_spec(job.spec))
            except InvalidSpec as error:
                self._log.error("job.unreadable_spec", why=str(error))
                self._parsed = (job.spec, None)
        return self._parsed[1]

    def _unreadable(self, job: Job) -> Verdict:
        if job.desired is Desired.KILL:
            return Verdict(to=Status.KILLED, reason="Killed", message="killed by its owner", time=self._now)
        message = "its stored spec cannot be read any more; submit it anew"
        return Verdict(to=Status.FAILED, reason="Misconfigured", message=message, time=self._now)

    async def _forward(self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus]) -> float:
        ranks, number = observed_state.roster(spec, job.attempt), job.attempt.number
        going = job.attempt.committed or observed_state.provisioned(ranks, number, known, self._seen)
        if job.attempt.committed:
            known = observed_state.with_vanished(ranks, number, known, self._seen, now=self._now)
        verdict = decide_verdict(job, spec, known, now=self._now)
        if job.desired is Desired.HALT and (verdict is None or verdict.to is Status.HALTED):
            return await self._halt(job, spec, self._with_observed(spec, known, going=going))
        if verdict is None:
            verdict = self._expired(job, spec, known) or (None if going else self._provisioning.late(job))
        if verdict is None and not going:
            verdict = await self._provisioning.go_on(job, spec)
            if verdict is None:
                self._seen = await self._ports.cluster.observe(job.id)
                going = observed_state.provisioned(ranks, number, known, self._seen)
                verdict = None if going else self._provisioning.lost(job, self._seen)
        noting = self._with_observed(spec, known, going=going)
        if verdict is not None:
            return await self._decide(job, verdict, noting)
        await self._announce(job, spec)
        return self._patience(await self._update(job, noting), spec)

    def _with_observed(self, spec: JobSpec, known: Mapping[str, LearnerStatus], *, going: bool) -> Callable[[Job], Job]:
        """What puts into the document what is known now; whatever else is written goes with it in one replace."""
        now = self._now
        return lambda job: observed_state.with_observed(job, known, expected=spec.learners, going=going, now=now)

    def _patience(self, job: Job, spec: JobSpec) -> float:
        """Until the next deadline, and never longer than a quiet job may go unobserved."""
        waits = [self._settings.observe_s]
        if spec.max_runtime is not None and job.attempt.started is not None:
            waits.append((job.attempt.started + spec.max_runtime - self._now) / 1000)
        return max(0.01, min(waits))

    def _expired(self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus]) -> Verdict | None:
        started = job.attempt.started or step_times(known.values()).get(Status.PROCESSING)
        if started is None:
            return self._not_begun(job, spec, known)
        if spec.max_runtime is None or self._now < started + spec.max_runtime:
            return None
        message = "it ran longer than its max_runtime; what it had was stored"
        return Verdict(to=Status.FAILED, reason="DeadlineExceeded", message=message, time=self._now)

    def _not_begun(self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus]) -> Verdict | None:
        waited_s = (self._now - (job.attempt.admitted or self._now)) / 1000
        if not job.attempt.committed or waited_s <= self._settings.start_timeout_s:
            return None
        ranks = observed_state.roster(spec, job.attempt)
        phases = sorted({known[name].phase.value if name in known else "silent" for name in ranks})
        at = ", ".join(phases)
        message = f"no process of it ran within {waited_s:.0f} s of its admission; its learners are {at}"
        return Verdict(to=Status.FAILED, reason="StartTimeout", message=message, time=self._now)

    async def _decide(self, job: Job, verdict: Verdict, noting: Callable[[Job], Job] = lambda job: job) -> float:
        """Writes the verdict, first cause wins: one that is there already stays."""

        def change(current: Job) -> Job:
            if current.verdict is not None or not current.holds:
                return current
            current = noting(current)
            heard = verdict.to in {Status.KILLED, Status.HALTED}
            return replace(
                current, verdict=verdict, attempt=replace(current.attempt, direction="stop"),
                observed_generation=current.generation if heard else current.observed_generation,
            )  # fmt: skip

        await self._update(job, change)
        self._log.info("job.verdict", to=verdict.to, reason=verdict.reason, learner=verdict.learner)
        return 0.0

    async def _halt(self, job: Job, spec: JobSpec, noting: Callable[[Job], Job]) -> float:
        """Learners are told to end; once all that are there have, the job is halted. (All succeeded: completed.)."""
        if job.status is not Status.HALTING:
            now = self._now

            def change(current: Job) -> Job:
                if current.status is Status.HALTING or current.verdict is not None:
                    return current
                halting = moved(noting(current), Status.HALTING, actor="guardian", now=now, reason="Halted")
                return replace(halting, observed_generation=halting.generation)

            job = await self._update(job, change)
        if not observed_state.unended(job.attempt.number, self._seen):
            ran = any(one.attempt == job.attempt.number and one.started is not None for one in self._seen.learners)
            message = "halted by its owner" if ran else "halted by its owner before it had started"
            verdict = Verdict(to=Status.HALTED, reason="Halted", message=message, time=self._now)
            return await self._decide(job, verdict, noting)
        if await self._ending.stop(job, cause="halt", grace_ms=spec.grace):
            return 0.0
        return self._settings.observe_s

    async def _announce(self, job: Job, spec: JobSpec) -> None:
        """Again, after etcd has forgotten it. Helpers can wait for it, so etcd being away stops nothing here."""
        if self._view.announced(job.id) == job.attempt.number:
            return
        try:
            await announce(
                self._ports.status, job, spec.learners, ours=lambda: current(self._ports.jobs, job, self.claim)
            )
        except Unavailable as error:
            self._log.info("attempt.not_announced", why=str(error))

    async def _update(self, job: Job, change: Callable[[Job], Job]) -> Job:
        return await update(self._ports.jobs, job.id, self.claim, change)

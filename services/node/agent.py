"""The node agent: provisions, observes, stops and removes the learners of this machine (the ``local`` cluster).

It guarantees: files are the truth, so a restarted agent knows all that its predecessor knew and disturbs no learner; a
stale call is refused (``fences``); an attempt is provisioned wholly or not at all; after ``teardown`` has returned,
everything of the attempt is gone. Calls for one job are serialized; calls for different jobs run side by side.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import shlex
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self
from weakref import WeakValueDictionary

import structlog

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest, NoSpace, Unavailable, WeftError
from services.core.domain.learner import Exit
from services.core.domain.plan import SCHEMA as PLAN_SCHEMA
from services.core.domain.plan import AttemptPlan
from services.core.domain.text import storable_name
from services.core.ports.cluster import LearnerProcess, Node, Observation
from services.core.runtime import sdk
from services.core.runtime.durable_files import sync_folder
from services.core.runtime.edges import log_unexpected
from services.core.runtime.home import AGENT
from services.core.runtime.learner_folder import JOB_FOLDER, LEARNER_FILE, RUN, LearnerDocument
from services.core.runtime.tree_removal import remove_tree
from services.core.runtime.undo import undo_on_failure
from services.core.strategies.registry import with_variables
from services.node import capacity, cgroups, reservation
from services.node.allocation import Pool, Taken, pick_gpus, pick_ports
from services.node.cgroups import Groups
from services.node.disk_reserve import ReserveWatch
from services.node.disk_watch import CacheWatch, DiskWatch
from services.node.fences import Fences
from services.node.frozen_count import FrozenCount
from services.node.instrumentation import Instrumentation
from services.node.isolation import Isolation, choose
from services.node.learner import (
    JobFolder,
    Learner,
    job_folders,
    owner,
    owner_below,
    read_gpus,
    read_learner,
    strange_entries,
)
from services.node.learner_supervisor import LearnerSupervisor, end_tasks, helper_environment
from services.node.leftovers import Leftovers
from services.node.port_watch import PortWatch
from services.node.processes import ProcessMatcher, kill_all
from services.node.settings import NodeSettings
from services.node.tenants import OnlyTenant
from services.node.traces import sweep, trace_of, traced
from services.node.users import Users

STEPS: Final = ("reserve", "learners", "activate")
_SHIMS_S: Final = 2.0
"""How long a teardown waits for the shims to end their learners, before it kills everything."""
_GONE_S: Final = 30.0
_RETRY_S: Final = 600.0
"""Between two tries to remove what could not be removed."""
log = structlog.get_logger()


class Agent:
    """Created by ``start``. Its methods are those of the Cluster port."""

    def __init__(self, settings: NodeSettings, instrumentation: Instrumentation) -> None:
        self._home = settings.installation
        self._settings = settings
        self._instrumentation = instrumentation
        self.node: Node = capacity.detect(settings)
        self._root = self._home / "node"
        self.free_space = capacity.free_space(settings)
        self._own_folder = self._root / AGENT
        self._fences = Fences(self._own_folder / "fences")
        self._uids = Pool(settings.node_uid_first, settings.node_uid_count) if os.geteuid() == 0 else None
        self._ports = Pool(settings.node_port_first, settings.node_port_count)
        # Before the probe of the sandbox, which runs as one of these users.
        left = traced(range(self._uids.first, self._uids.first + self._uids.count)) if self._uids else set[int]()
        self.isolation: Isolation = choose(settings, user=settings.node_uid_first if self._uids else None)
        self._leftovers = Leftovers(self._root, within_s=settings.node_remove_s)
        self._users = (
            Users(self._own_folder / "users", self._uids, self._trace_of, lambda _: left | self._leftovers.uids())
            if self._uids
            else None
        )
        self._picking = asyncio.Lock()
        """Held while a uid is chosen: looking through what is left of it takes time."""
        self._background: list[asyncio.Task[None]] = []
        self._only_tenant = OnlyTenant(self._own_folder)
        self._groups: Groups
        self._unreadable: dict[Path, str] = {}
        """Folders of learners whose ``learner.json`` cannot be read -> the error."""
        self._learners: dict[Path, Learner] = {}
        """All reserved learners. What they hold is taken."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watchers: set[asyncio.Queue[str | None]] = set()
        self._supervisor = LearnerSupervisor(
            helper_command=shlex.split(settings.node_helper_command),
            helper_env=helper_environment(os.environ),
            helper_backoff_s=settings.node_helper_backoff_s,
            helper_silence_s=settings.node_helper_silence_s,
            instrumentation=instrumentation,
            on_change=self._changed,
        )
        self._lock_fd = -1

    @classmethod
    async def start(cls, settings: NodeSettings, instrumentation: Instrumentation) -> Self:
        """An agent that has adopted all learners of this machine.

        WeftError if another agent runs for this WEFT_HOME, if learners could not reach their folders, or if required
        limits cannot be enforced.
        """
        agent = cls(settings, instrumentation)
        agent._make_own_folders()
        agent._detect_isolation()
        await asyncio.to_thread(sdk.install, agent._home / "sdk")
        await agent._adopt()
        agent._update_gauges()
        agent._start_watches()
        return agent

    def _start_watches(self) -> None:
        def learners() -> list[Learner]:
            return list(self._learners.values())

        counted = FrozenCount(self._own_folder)
        counted.thaw_left(learners())
        disk = DiskWatch(self._settings, self._instrumentation, learners, counted)
        reserve = ReserveWatch(self._settings, self._instrumentation, learners, counted, lambda: disk.last_round)
        caches = CacheWatch(self._settings, self._instrumentation, learners)
        loops = [self._retry_leftovers, disk.run, reserve.run, caches.run]
        if self._uids is not None:
            loops.append(PortWatch(self._home, self._instrumentation, learners).run)
        self._background = [asyncio.create_task(loop()) for loop in loops]

    async def close(self) -> None:
        """Learners, shims and helpers live on. Without any, the control groups are removed."""
        await end_tasks(self._background, within_s=0)
        await self._supervisor.close()
        if not job_folders(self._root):
            await asyncio.to_thread(Groups.remove_all, self._own_folder)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- the port ----------------------------------------------------------------

    async def do(self, step: str, plan: AttemptPlan) -> None:
        carry_out = {"reserve": self._reserve, "learners": self._spawn, "activate": self._activate}.get(step)
        if carry_out is None:
            raise InvalidRequest(f"there is no step '{step}'; there are: {', '.join(STEPS)}")
        reservation.check_names(plan)
        async with self._lock(plan.job):
            self._fences.advance(plan.job, plan.attempt, plan.term, makes=True)
            await carry_out(plan)

    async def observe(self, job: str) -> Observation:
        learners = [learner.observe() for learner in self._learners_of(job)]
        learners += [await self._observe_unreadable(folder) for folder in self._unreadable_of(job)]
        return Observation(learners=learners, attempts=JobFolder(self._root / job).attempts())

    async def stop(self, job: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        async with self._lock(job):
            self._fences.advance(job, attempt, term)
            learners = self._learners_of(job, attempt)

            async def stop_learner(learner: Learner) -> None:
                await asyncio.to_thread(
                    learner.mark_stop, generation=generation, cause=cause, grace_ms=grace_ms, now_ms=_now_ms()
                )
                self._supervisor.hint(learner)
                if not learner.spawned:
                    await self._supervisor.write_missing_exit(learner)

            await _gather(stop_learner(learner) for learner in learners)
        count = len(learners)
        log.info("attempt.stop_requested", job=job, attempt=attempt, cause=cause, grace_ms=grace_ms, learners=count)

    async def teardown(self, job: str, *, attempt: int, term: int) -> None:
        folder = JobFolder(self._root / job)
        async with self._lock(job):
            self._fences.advance(job, attempt, term)
            self._fences.seal(job, attempt, term)
            old = [number for number in folder.attempts() if number <= attempt]
            # By what is taken, not by the folders: a call that failed after it had removed them is repeated.
            learners = [learner for learner in self._learners_of(job) if learner.attempt <= attempt]
            await self._end(learners, all_of_job=len(learners) == len(self._learners_of(job)))
            await self._end_unreadable([path for path in self._unreadable_of(job) if int(path.parent.name) in old])
            uid = next((learner.document.uid for learner in learners), -1)
            if self._leaves_files and uid >= 0 and not self._learners_of_others(job, attempt):
                await asyncio.to_thread(_swept, uid)
            await asyncio.to_thread(_remove, folder, old, self._leftovers, uid)
            self._fences.write(job)
            for learner in learners:
                self._learners.pop(learner.folder, None)
        self._update_gauges()
        if learners:
            log.info("attempt.removed", job=job, attempt=attempt, learners=len(learners))
        self._changed(job)

    async def jobs(self) -> list[str]:
        """Including those whose learners cannot be read: callers search for leftovers."""
        return sorted(job.path.name for job in job_folders(self._root))

    async def watch(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1000)
        self._watchers.add(queue)
        try:
            yield ""
            while (job := await queue.get()) is not None:
                yield job
        finally:
            self._watchers.discard(queue)

    def end_watches(self) -> None:
        """Ends all streams of ``watch``, which would keep the server from closing."""
        for queue in self._watchers:
            _put(queue, None)

    # --- the steps ---------------------------------------------------------------

    async def _reserve(self, plan: AttemptPlan) -> None:
        folder = JobFolder(self._root / plan.job)
        if folder.attempt(plan.attempt).exists():
            return  # an attempt keeps what it was reserved with, even if the plan differs now
        if plan.schema < PLAN_SCHEMA:
            plan = with_variables(plan)  # of a Guardian that left it to the agent to render them
        if self.isolation.is_trusted:
            self._only_tenant.check(plan.tenant)
        async with self._picking:
            uid = os.getuid()
            if self._users is not None:
                uid = await asyncio.to_thread(self._users.pick, plan.job, plan.tenant, self._taken())
            # Counted as taken before the next await: another job's reserve may come in between.
            documents = self._allot(plan, uid)
            places = {folder.attempt(plan.attempt) / document.learner.name: document for document in documents}
            self._learners |= {place: Learner(place, document) for place, document in places.items()}

        def forget() -> None:
            for place in places:
                self._learners.pop(place, None)

        with undo_on_failure(forget):
            await asyncio.to_thread(self._make, folder, plan, documents)
        self._update_gauges()
        log.info("attempt.reserved", job=plan.job, attempt=plan.attempt, learners=len(documents), uid=uid)

    def _allot(self, plan: AttemptPlan, uid: int) -> list[LearnerDocument]:
        """The documents of all learners, with what they get of this machine."""
        taken, attempt = self._taken(), JobFolder(self._root / plan.job).attempt(plan.attempt)
        allotment = reservation.Allotment(
            uid=uid,
            gid=uid if self._uids else os.getgid(),
            gpus=pick_gpus(plan.learners, taken, self.node.gpus),
            ports=pick_ports(plan, taken, self._ports, reservation.port_is_free),
        )
        documents = reservation.documents(
            plan,
            allotment,
            home=self._home,
            isolation=self.isolation.name,
            objects_here=self._settings.object_store == "folder",
        )
        return [self._with_isolation(document, attempt / document.learner.name) for document in documents]

    def _with_isolation(self, document: LearnerDocument, folder: Path) -> LearnerDocument:
        """The document with the sandbox's command, the control groups and the limits."""
        isolation = self.isolation
        of_user = self._settings.node_pids * (len(document.plan.learners) if self._uids else 1)
        return replace(
            document,
            wrap=isolation.sandbox.wrap(document, folder) if isolation.sandbox else (),
            groups=self._groups.paths(document),
            private_tmp=isolation.private_tmp,
            seccomp=isolation.seccomp,
            processes=0 if "pids" in self._groups.enforced else of_user,
            objects_keep_free=capacity.objects_keep_free(self._settings, self._home / "objects"),
            data_keep_free=capacity.data_keep_free(self._settings),
        )

    def _make(self, folder: JobFolder, plan: AttemptPlan, documents: list[LearnerDocument]) -> None:
        for document in documents:
            self._groups.make(document)
        with undo_on_failure(lambda: cgroups.remove(cgroups.groups_of(documents))):
            reservation.make(folder, plan.attempt, documents, plan)

    async def _spawn(self, plan: AttemptPlan) -> None:
        runs = {learner.name: learner.run for learner in plan.learners}
        for learner in self._reserved(plan):
            run = runs.get(learner.name, 1)
            if run > learner.document.learner.run:
                await self._start_again(learner, run)
        learners = self._reserved(plan)
        for learner in learners:
            self._supervisor.supervise(learner)
        await _gather(self._supervisor.wait_for_shim(learner) for learner in learners)

    async def _start_again(self, learner: Learner, run: int) -> None:
        """Ends what is left of the learner, and makes it anew with the same resources. Unavailable if a process stays.

        The learners of a job may share a user, so only processes and groups of this one are ended.
        """
        await self._end([learner], all_of_job=False)
        renewed, last = await asyncio.to_thread(reservation.replace_learner, learner, run)
        self._groups.make(renewed.document)
        self._learners[renewed.folder] = renewed
        with suppress(OSError):  # what stays is removed with the attempt
            await asyncio.to_thread(remove_tree, last, within_s=self._settings.node_remove_s)
        log.info("learner.replaced", job=learner.job, attempt=learner.attempt, learner=learner.name, run=run)

    async def _activate(self, plan: AttemptPlan) -> None:
        await _gather(asyncio.to_thread(learner.activate) for learner in self._reserved(plan))

    def _reserved(self, plan: AttemptPlan) -> list[Learner]:
        learners = self._learners_of(plan.job, plan.attempt)
        if not learners:
            raise InvalidRequest(f"attempt {plan.attempt} of job {plan.job} has not been reserved on this machine")
        return learners

    # --- inside ------------------------------------------------------------------

    async def _end(self, learners: list[Learner], *, all_of_job: bool) -> None:
        """Ends all processes of these learners; ``all_of_job``: the job has no others. Unavailable if one survives."""
        if not learners:
            return
        for learner in learners:
            # Without a mark it is killed below, and what fills the disk is removed then. The folder may be gone.
            with suppress(NoSpace, FileNotFoundError):
                await asyncio.to_thread(learner.mark_stop, generation=0, cause="kill", grace_ms=0, now_ms=_now_ms())
            self._supervisor.hint(learner)
        released = [self._supervisor.release(learner) for learner in learners]
        tasks = [task for pair in released for task in pair]
        if tasks:  # a shim misses no process of its learner, whose subreaper it is
            await asyncio.wait([pair[0] for pair in released if pair], timeout=_SHIMS_S)
        users = frozenset(learner.document.uid for learner in learners)
        everything = ProcessMatcher(
            owners=users,
            job_dirs=frozenset(str(learner.job_dir) for learner in learners),
            folders=frozenset(str(learner.folder) for learner in learners),
            # bubblewrap has no environment by which it could be found.
            identities=tuple(process for learner in learners if (process := learner.process) is not None),
            uids=users if all_of_job and self._uids else frozenset(),
            groups=frozenset(cgroups.groups_of(learner.document for learner in learners)),
        )
        gone = await kill_all(everything.members, timeout_s=_GONE_S, users=everything.uids, groups=everything.groups)
        await end_tasks(tasks)
        if not gone:
            for learner in learners:
                self._supervisor.supervise(learner)
            raise _survivors()
        await asyncio.to_thread(cgroups.remove, list(everything.groups))

    def _unreadable_of(self, job: str) -> list[Path]:
        return [folder for folder in sorted(self._unreadable) if folder.parts[-3] == job]

    async def _observe_unreadable(self, folder: Path) -> LearnerProcess:
        """Running while any process of it lives, lost after that: nothing supervises its shim and its helper."""
        processes = await asyncio.to_thread(_matcher([folder]).members)
        end = None if processes else Exit(time=_now_ms(), lost=True)
        return LearnerProcess(
            name=folder.name,
            attempt=int(folder.parent.name),
            state="running" if processes else "exited",
            run=RUN,
            started=round(folder.stat().st_mtime * 1000),
            exit=end,
            readable=False,
            node=self.node.name,
        )

    async def _end_unreadable(self, folders: list[Path]) -> None:
        if folders and not await kill_all(_matcher(folders).members, timeout_s=_GONE_S):
            raise _survivors()
        for folder in folders:
            self._unreadable.pop(folder, None)

    def unreadable_files(self) -> dict[str, tuple[str, str]]:
        """Path -> (job, error) of all files of learners that cannot be read. Adopts learners that were repaired."""
        for folder in list(self._unreadable):
            del self._unreadable[folder]
            if folder.exists():
                self._adopt_learner(folder)
        files = {str(folder / LEARNER_FILE): (folder.parts[-3], error) for folder, error in self._unreadable.items()}
        for folder, learner in self._learners.items():
            files |= {str(folder / name): (learner.job, error) for name, error in learner.files.unreadable().items()}
        return files

    def leftovers(self) -> dict[str, tuple[str, str]]:
        """Path -> (job, why) of all that cannot be removed, and of entries that are none of Weft's."""
        strange = {storable_name(str(path)): ("", "it is no folder of a job") for path in strange_entries(self._root)}
        return {**self._leftovers.reasons(), **strange}

    async def _retry_leftovers(self) -> None:
        while True:
            with log_unexpected("leftovers.retry_failed"):
                await asyncio.to_thread(self._leftovers.retry)
            await asyncio.sleep(_RETRY_S)

    def _trace_of(self, uid: int) -> str:
        return "a folder in quarantine" if uid in self._leftovers.uids() else trace_of(uid)

    @property
    def _leaves_files(self) -> bool:
        """True if learners have users of their own, and reach folders of the machine in which everybody may write.

        With a /tmp of their own, too: there is /run/lock, and /dev/mqueue.
        """
        return self._uids is not None and self.isolation.sandbox is None

    def _learners_of_others(self, job: str, attempt: int) -> list[Learner]:
        return [learner for learner in self._learners_of(job) if learner.attempt > attempt]

    async def _adopt(self) -> None:
        """Takes over all learners that have a folder. Processes that live are found by its files, undisturbed."""
        jobs = job_folders(self._root)
        for job in jobs:
            for leftover in job.leftovers():
                await asyncio.to_thread(
                    self._leftovers.remove, leftover, job=job.path.name, attempt=0, uid=owner_below(leftover)
                )
            for new, place in (pair for number in job.attempts() for pair in job.half_replaced(number)):
                new.rename(place)
            for folder in job.learner_folders():
                self._adopt_learner(folder)
        self._fences.prune({job.path.name for job in jobs})
        await asyncio.to_thread(self._groups.sweep, [folder for job in jobs for folder in job.learner_folders()])

    def _adopt_learner(self, folder: Path) -> None:
        try:
            learner = read_learner(folder)
        except (*MALFORMED, OSError) as error:
            self._unreadable[folder] = str(error) or type(error).__name__
            return
        if learner is None:
            log.warning("learner.skipped", folder=str(folder), why="it is of a newer version, or has no learner.json")
            return
        self._learners[folder] = learner
        if not learner.ended:
            self._groups.make(learner.document)  # a reboot removes them
        if learner.spawned:
            self._supervisor.supervise(learner)
            log.info("learner.adopted", job=learner.job, learner=learner.name, state=learner.observe().state)

    def _detect_isolation(self) -> None:
        """Finds out which control groups can be made, and publishes the isolation."""
        self._groups, unenforced = Groups.find(
            self._own_folder,
            pids=self._settings.node_pids,
            wanted=self._settings.node_cgroups,
            of_helpers=cgroups.Limits(
                self._settings.node_helper_memory, self._settings.node_helper_cpus, self._settings.node_helper_pids
            ),
        )
        if self._settings.node_limits == "required":
            self.isolation.check_required(self._groups.enforced, unenforced)
        with suppress(NoSpace):  # it is for people only
            self.isolation.write(self._home / "run", self._groups.enforced, unenforced)
        log.info(
            "node.isolation_chosen",
            isolation=self.isolation.name,
            enforced=self._groups.enforced,
            why=[self.isolation.why, unenforced],
        )

    def _make_own_folders(self) -> None:
        """Makes the folders, passable for learners of other users, and takes the lock that keeps other agents out."""
        for path in (self._home.root, self._root, self._own_folder, self._own_folder / "fences"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._uids:
            self._home.root.chmod(stat.S_IMODE(self._home.root.stat().st_mode) | 0o111)
            self._root.chmod(0o711)
            for parent in self._home.root.resolve().parents:
                if not parent.stat().st_mode & stat.S_IXOTH:
                    raise WeftError(
                        f"learners run under users of their own, which cannot pass through {parent} to "
                        f"{self._home.root}; run `chmod o+x {parent}`, or set WEFT_HOME to a place they can reach"
                    )
        self._lock_fd = os.open(self._own_folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeftError(f"another node agent is running for {self._home.root}") from None

    def _learners_of(self, job: str, attempt: int | None = None) -> list[Learner]:
        learners = [
            learner for learner in self._learners.values() if learner.job == job and attempt in {None, learner.attempt}
        ]
        return sorted(learners, key=lambda learner: (learner.attempt, learner.document.learner.rank))

    def _taken(self) -> Taken:
        """What all learners hold, including those whose document cannot be read."""
        documents = [learner.document for learner in self._learners.values()]
        held = [dict.fromkeys(document.gpus, document.share) for document in documents]
        held += [read_gpus(folder) for folder in self._unreadable]
        gpus: dict[int, float] = {}
        for index, share in (item for indices in held for item in indices.items()):
            gpus[index] = gpus.get(index, 0.0) + share
        users = {owner(folder): folder.parts[-3] for folder in self._unreadable}
        return Taken(
            uids={**users, **{document.uid: document.plan.job for document in documents}},
            gpus=gpus,
            ports={port for document in documents for port in document.ports.values()},
        )

    def _update_gauges(self) -> None:
        self._instrumentation.count_gpus(self.node.gpus, sum(self._taken().gpus.values()))

    def _lock(self, job: str) -> asyncio.Lock:
        lock = self._locks.get(job)
        if lock is None:
            lock = self._locks[job] = asyncio.Lock()
        return lock

    def _changed(self, job: str) -> None:
        for queue in self._watchers:
            _put(queue, job)


def _matcher(folders: list[Path]) -> ProcessMatcher:
    """The processes of learners of which only the folder is known."""
    return ProcessMatcher(
        owners=frozenset(map(owner, folders)),
        job_dirs=frozenset(str(folder / JOB_FOLDER) for folder in folders),
        folders=frozenset(str(folder) for folder in folders),
    )


def _survivors() -> Unavailable:
    return Unavailable("processes of the attempt survive SIGKILL: they hang in the kernel", retry_after_s=5)


def _swept(uid: int) -> None:
    """Removes the user's temporary files. What cannot be removed keeps the uid from other tenants."""
    try:
        sweep(uid)
    except OSError as error:
        log.warning("tmp.not_swept", uid=uid, why=str(error))


def _remove(folder: JobFolder, attempts: Iterable[int], leftovers: Leftovers, uid: int) -> None:
    for number in attempts:
        half_removed = folder.half_removed(number)
        remove = functools.partial(leftovers.remove, job=folder.path.name, attempt=number, uid=uid)
        for path in (half_removed, folder.half_made(number)):
            if path.exists():
                remove(path)
        if folder.attempt(number).exists():
            folder.attempt(number).rename(half_removed)
            remove(half_removed)
    if folder.path.exists() and not any(folder.path.iterdir()):
        folder.path.rmdir()
        sync_folder(folder.path.parent)


async def _gather(calls: Iterable[Awaitable[None]]) -> None:
    """Awaits all calls concurrently. Raises the first error, once all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _put(queue: asyncio.Queue[str | None], job: str | None) -> None:
    """A reader that does not keep up gets "" in place of the ids that it has missed: observe all jobs again."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait("")
    queue.put_nowait(job)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""The node agent: the ``local`` cluster's hands on this machine.

What it keeps true: files are the truth (a restarted agent knows all that its predecessor knew, and disturbs nobody);
a call of the past is refused (``fences``); an attempt is provisioned wholly or not at all; what ``teardown`` has
answered is gone. Calls of one job come one after the other; those of different jobs do not wait for each other.
"""

from __future__ import annotations

import asyncio
import fcntl
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

from services.core.domain.errors import InvalidRequest, NoSpace, Unavailable, WeftError
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess, Node, Observation
from services.node import capacity, cgroups, reservation, sdk
from services.node.allocation import Pool, Taken, pick_gpus, pick_ports, pick_uid
from services.node.cgroups import Groups
from services.node.fences import Fences
from services.node.files import remove_tree, sync_folder
from services.node.instrumentation import Instrumentation
from services.node.isolation import Isolation, choose
from services.node.learner import (
    MALFORMED,
    RUN,
    JobFolder,
    Learner,
    LearnerDocument,
    owner,
    read_gpus,
    read_learner,
)
from services.node.learner_supervisor import LearnerSupervisor, end_tasks, helper_environment
from services.node.processes import Belonging, kill_all
from services.node.settings import NodeSettings

STEPS: Final = ("reserve", "learners", "activate")
_POLITELY_S: Final = 2.0
"""How long a teardown leaves it to the shims to end their learners."""
_GONE_S: Final = 30.0
log = structlog.get_logger()


class Agent:
    """Made by ``start``."""

    def __init__(self, settings: NodeSettings, instrumentation: Instrumentation) -> None:
        self._home = settings.installation
        self._settings = settings
        self._instrumentation = instrumentation
        self.node: Node = capacity.detect(settings)
        self._root = self._home / "node"
        self._own = self._root / ".agent"
        self._fences = Fences(self._own / "fences")
        self._uids = Pool(settings.node_uid_first, settings.node_uid_count) if os.geteuid() == 0 else None
        self._ports = Pool(settings.node_port_first, settings.node_port_count)
        self.isolation: Isolation = choose(
            settings.node_isolation, user=settings.node_uid_first if self._uids else None
        )
        self._groups: Groups
        self._unread: dict[Path, str] = {}
        """Folders of learners that nobody can make out, and why."""
        self._learners: dict[Path, Learner] = {}
        """All that are reserved: what is taken of the machine."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watchers: set[asyncio.Queue[str | None]] = set()
        self._supervisor = LearnerSupervisor(
            helper_command=shlex.split(settings.node_helper_command), helper_env=helper_environment(os.environ),
            helper_backoff_s=settings.node_helper_backoff_s, helper_silence_s=settings.node_helper_silence_s,
            instrumentation=instrumentation, on_change=self._changed,
        )  # fmt: skip
        self._lock_fd = -1

    @classmethod
    async def start(cls, settings: NodeSettings, instrumentation: Instrumentation) -> Self:
        """Takes up everything that is there. WeftError where another agent has this WEFT_HOME, or learners could not
        reach their folders.
        """
        agent = cls(settings, instrumentation)
        agent._open_places()
        agent._enclose()
        await asyncio.to_thread(sdk.install, agent._home / "sdk")
        await agent._adopt()
        agent._count()
        return agent

    async def close(self) -> None:
        await self._supervisor.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- the port ----------------------------------------------------------------

    async def do(self, step: str, plan: AttemptPlan) -> None:
        act = {"reserve": self._reserve, "learners": self._spawn, "activate": self._activate}.get(step)
        if act is None:
            raise InvalidRequest(f"there is no step '{step}'; there are: {', '.join(STEPS)}")
        reservation.check_names(plan)
        async with self._lock(plan.job):
            self._fences.pass_(plan.job, plan.attempt, plan.term, makes=True)
            await act(plan)

    async def observe(self, job: str) -> Observation:
        learners = [learner.observe() for learner in self._of(job)]
        learners += [await self._observe_unread(folder) for folder in self._unread_of(job)]
        return Observation(learners=learners, attempts=JobFolder(self._root / job).attempts())

    async def stop(self, job: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        async with self._lock(job):
            self._fences.pass_(job, attempt, term)
            learners = self._of(job, attempt)

            async def one(learner: Learner) -> None:
                await asyncio.to_thread(
                    learner.mark_stop, generation=generation, cause=cause, grace_ms=grace_ms, now_ms=_now_ms()
                )
                self._supervisor.hint(learner)
                if not learner.spawned:
                    await self._supervisor.settle(learner)

            await _all(one(learner) for learner in learners)
        log.info("attempt.stopping", job=job, attempt=attempt, cause=cause, grace_ms=grace_ms, learners=len(learners))

    async def teardown(self, job: str, *, attempt: int, term: int) -> None:
        folder = JobFolder(self._root / job)
        async with self._lock(job):
            self._fences.pass_(job, attempt, term)
            self._fences.seal(job, attempt, term)
            old = [number for number in folder.attempts() if number <= attempt]
            learners = [learner for number in old for learner in self._of(job, number)]
            await self._end(learners, alone=len(learners) == len(self._of(job)))
            await self._end_unread([folder for folder in self._unread_of(job) if folder.parent.name in map(str, old)])
            await asyncio.to_thread(_remove, folder, old)
            self._fences.settle(job)
            for learner in learners:
                self._learners.pop(learner.folder, None)
        self._count()
        if learners:
            log.info("attempt.gone", job=job, attempt=attempt, learners=len(learners))
        self._changed(job)

    async def jobs(self) -> list[str]:
        """Also of folders that nobody can read: whoever asks wants to know what is left behind."""
        return sorted(entry.name for entry in self._root.iterdir() if not entry.name.startswith("."))

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
        """They would keep the server from closing."""
        for queue in self._watchers:
            _put(queue, None)

    # --- the steps ---------------------------------------------------------------

    async def _reserve(self, plan: AttemptPlan) -> None:
        folder = JobFolder(self._root / plan.job)
        if folder.attempt(plan.attempt).exists():
            return
        taken = self._taken()
        uid = pick_uid(plan.job, taken, self._uids) if self._uids else os.getuid()
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
        made = [self._enclosed(one, folder.attempt(plan.attempt) / one.learner.name) for one in documents]
        # Counted as taken before the first await: another job's reserve may come in between.
        places = {folder.attempt(plan.attempt) / one.learner.name: one for one in made}
        self._learners |= {place: Learner(place, document) for place, document in places.items()}
        try:
            await asyncio.to_thread(self._make, folder, plan.attempt, made)
        except BaseException:
            for place in places:
                self._learners.pop(place, None)
            raise
        self._count()
        log.info("attempt.reserved", job=plan.job, attempt=plan.attempt, learners=len(made), uid=uid)

    def _enclosed(self, document: LearnerDocument, folder: Path) -> LearnerDocument:
        """With what keeps it apart from others on this machine."""
        wrap = self.isolation.sandbox.wrap(document, folder) if self.isolation.sandbox else ()
        return replace(document, wrap=wrap, groups=self._groups.paths(document))

    def _make(self, folder: JobFolder, attempt: int, made: list[LearnerDocument]) -> None:
        for one in made:
            self._groups.make(one)
        try:
            reservation.make(folder, attempt, made)
        except BaseException:
            cgroups.remove(path for one in made for path in one.groups)
            raise

    async def _spawn(self, plan: AttemptPlan) -> None:
        learners = self._reserved(plan)
        for learner in learners:
            self._supervisor.keep(learner)
        await _all(self._supervisor.ready(learner) for learner in learners)

    async def _activate(self, plan: AttemptPlan) -> None:
        await _all(asyncio.to_thread(learner.activate) for learner in self._reserved(plan))

    def _reserved(self, plan: AttemptPlan) -> list[Learner]:
        learners = self._of(plan.job, plan.attempt)
        if not learners:
            raise InvalidRequest(f"attempt {plan.attempt} of job {plan.job} has not been reserved on this machine")
        return learners

    # --- inside ------------------------------------------------------------------

    async def _end(self, learners: list[Learner], *, alone: bool) -> None:
        """Ends everything of these learners; ``alone``: the job has no others. Unavailable where something stays."""
        if not learners:
            return
        for learner in learners:
            with suppress(NoSpace):  # killed below without a mark; what fills the disk is about to be removed
                await asyncio.to_thread(learner.mark_stop, generation=0, cause="kill", grace_ms=0, now_ms=_now_ms())
            self._supervisor.hint(learner)
        released = [self._supervisor.release(learner) for learner in learners]
        tasks = [task for pair in released for task in pair]
        if tasks:  # a shim does it best: it is its learner's subreaper
            await asyncio.wait([pair[0] for pair in released if pair], timeout=_POLITELY_S)
        everything = Belonging(
            job_dirs=frozenset(str(learner.job_dir) for learner in learners),
            folders=frozenset(str(learner.folder) for learner in learners),
            uids=frozenset(one.document.uid for one in learners) if alone and self._uids else frozenset(),
            groups=frozenset(path for learner in learners for path in learner.document.groups),
        )
        gone = await kill_all(everything.members, timeout_s=_GONE_S)
        await end_tasks(tasks)
        if not gone:
            for learner in learners:
                self._supervisor.keep(learner)
            raise Unavailable("processes of the attempt survive SIGKILL: they hang in the kernel", retry_after_s=5)
        await asyncio.to_thread(cgroups.remove, list(everything.groups))

    def _unread_of(self, job: str) -> list[Path]:
        return [folder for folder in sorted(self._unread) if folder.parts[-3] == job]

    async def _observe_unread(self, folder: Path) -> LearnerProcess:
        """Running while anything of it lives. Nobody minds its shim and its helper: after that it is lost."""
        lives = await asyncio.to_thread(_belonging([folder]).members)
        end = None if lives else Exit(time=_now_ms(), lost=True)
        return LearnerProcess(
            name=folder.name, attempt=int(folder.parent.name), state="running" if lives else "exited", run=RUN,
            started=round(folder.stat().st_mtime * 1000), exit=end, node=self.node.name,
        )  # fmt: skip

    async def _end_unread(self, folders: list[Path]) -> None:
        if folders and not await kill_all(_belonging(folders).members, timeout_s=_GONE_S):
            raise Unavailable("processes of the attempt survive SIGKILL: they hang in the kernel", retry_after_s=5)
        for folder in folders:
            self._unread.pop(folder, None)

    def look_at_files(self) -> dict[str, tuple[str, str]]:
        """Path -> (job, why) of all files of learners that cannot be read; a learner that was mended is taken up."""
        for folder in list(self._unread):
            del self._unread[folder]
            if folder.exists():
                self._adopt_learner(folder)
        found = {str(folder / "learner.json"): (folder.parts[-3], why) for folder, why in self._unread.items()}
        for folder, learner in self._learners.items():
            found |= {str(folder / name): (learner.job, why) for name, why in learner.unreadable().items()}
        return found

    async def _adopt(self) -> None:
        """All folders that are there; whoever lives is found by its files and goes on undisturbed."""
        jobs = [JobFolder(entry) for entry in self._root.iterdir() if not entry.name.startswith(".")]
        for job in jobs:
            for leftover in job.leftovers():
                await asyncio.to_thread(remove_tree, leftover)
            for folder in job.learner_folders():
                self._adopt_learner(folder)
        self._fences.prune({job.path.name for job in jobs})
        await asyncio.to_thread(self._groups.sweep, [folder for job in jobs for folder in job.learner_folders()])

    def _adopt_learner(self, folder: Path) -> None:
        try:
            learner = read_learner(folder)
        except (*MALFORMED, OSError) as error:
            self._unread[folder] = str(error) or type(error).__name__
            return
        if learner is None:
            log.warning("learner.skipped", folder=str(folder), why="of a newer version, or not ours")
            return
        self._learners[folder] = learner
        if not learner.ended:
            self._groups.make(learner.document)  # a reboot takes them away
        if learner.spawned:
            self._supervisor.keep(learner)
            log.info("learner.adopted", job=learner.job, learner=learner.name, state=learner.observe().state)

    def _enclose(self) -> None:
        """What this machine can do to keep learners apart, found out and said."""
        self._groups, unenforced = Groups.find(
            self._own, pids=self._settings.node_pids, wanted=self._settings.node_cgroups
        )
        self.isolation.note(self._home / "run", self._groups.enforced, unenforced)
        log.info(
            "node.isolation",
            isolation=self.isolation.name,
            enforced=self._groups.enforced,
            why=[self.isolation.why, unenforced],
        )

    def _open_places(self) -> None:
        """The folders, passable for learners of other users; the lock that makes this agent the only one."""
        for path in (self._home.root, self._root, self._own, self._own / "fences"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._uids:
            for path in (self._home.root, self._root):
                path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o111)
            for parent in self._home.root.resolve().parents:
                if not parent.stat().st_mode & stat.S_IXOTH:
                    raise WeftError(
                        f"learners run under users of their own, which cannot pass through {parent} to "
                        f"{self._home.root}; run `chmod o+x {parent}`, or set WEFT_HOME to a place they can reach"
                    )
        self._lock_fd = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeftError(f"another node agent is running for {self._home.root}") from None

    def _of(self, job: str, attempt: int | None = None) -> list[Learner]:
        found = [one for one in self._learners.values() if one.job == job and attempt in {None, one.attempt}]
        return sorted(found, key=lambda one: (one.attempt, one.document.learner.rank))

    def _taken(self) -> Taken:
        documents = [one.document for one in self._learners.values()]
        holders = [dict.fromkeys(one.gpus, one.share) for one in documents] + [read_gpus(one) for one in self._unread]
        gpus: dict[int, float] = {}
        for index, share in (held for one in holders for held in one.items()):
            gpus[index] = gpus.get(index, 0.0) + share
        users = {owner(folder): folder.parts[-3] for folder in self._unread}
        return Taken(
            uids={**users, **{one.uid: one.plan.job for one in documents}},
            gpus=gpus,
            ports={port for one in documents for port in one.ports.values()},
        )

    def _count(self) -> None:
        self._instrumentation.count_gpus(self.node.gpus, sum(self._taken().gpus.values()))

    def _lock(self, job: str) -> asyncio.Lock:
        lock = self._locks.get(job)
        if lock is None:
            lock = self._locks[job] = asyncio.Lock()
        return lock

    def _changed(self, job: str) -> None:
        for queue in self._watchers:
            _put(queue, job)


def _belonging(folders: list[Path]) -> Belonging:
    """What lives of learners of which only the folder is known."""
    return Belonging(
        job_dirs=frozenset(str(folder / "job") for folder in folders),
        folders=frozenset(str(folder) for folder in folders),
    )


def _remove(folder: JobFolder, attempts: Iterable[int]) -> None:
    for number in attempts:
        gone = folder.half_removed(number)
        for path in (gone, folder.half_made(number)):
            if path.exists():
                remove_tree(path)
        if folder.attempt(number).exists():
            folder.attempt(number).rename(gone)
            remove_tree(gone)
    if folder.path.exists() and not any(folder.path.iterdir()):
        folder.path.rmdir()
        sync_folder(folder.path.parent)


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """All of them, side by side; the first error once all are over."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _put(queue: asyncio.Queue[str | None], job: str | None) -> None:
    """A reader that does not read is told to look at everything instead."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait("")
    queue.put_nowait(job)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

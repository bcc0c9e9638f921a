"""The observed state of learners, and the status of the job that follows from it. ``verdict`` decides how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.startup import Span
from services.core.domain.status import PHASE_ORDER, Phase, Status

if TYPE_CHECKING:
    from services.core.domain.spec import JobSpec


def learner_name(role: str, index: int) -> str:
    """Returns ``<role>-<index>``, e.g. ``worker-0``; ``index`` counts from 0 within the role."""
    return f"{role}-{index}"


def learner_names(spec: JobSpec) -> list[str]:
    """The names of all learners, in the order of their global ranks."""
    return [learner_name(name, index) for name, role in spec.roles.items() for index in range(role.count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a learner's process ended. Exactly one of ``code`` and ``signal`` is set, unless it was ``lost``."""

    time: int
    """Unix ms."""
    code: int | None = None
    signal: int | None = None
    stop_cause: str = ""
    """halt | kill | peer | deadline: why the platform stopped it. Empty: it ended by itself."""
    lost: bool = False
    """It disappeared with its parent process or its machine, so its exit code is unknown."""
    oom: bool = False
    """It was killed for lack of memory."""
    disk_exceeded: str = ""
    """It was ended because it wrote too much: what it exceeded, for people. Empty: it was not."""
    port_taken: str = ""
    """It was ended because it listened on a port of another job, for people. Empty: it was not."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def natural(self) -> bool:
        """Whether it ended by itself, without a stop by the platform."""
        return not self.stop_cause

    @property
    def ok(self) -> bool:
        """Whether it succeeded by itself. An exit with 0 after a stop by the platform is no success."""
        return self.natural and self.code == 0 and not self.lost

    @property
    def shell_code(self) -> int | None:
        """The exit code as a shell reports it: 128 + signal after a signal, e.g. 137 for SIGKILL."""
        return self.code if self.signal is None else 128 + self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """A helper's report of its learner: the value of ``/jobs/<id>/learners/<name>`` in the status store.

    (attempt, run, seq) rises with each report. A report with a lower one than the stored is refused.
    """

    name: str
    """``<role>-<index>``, e.g. ``worker-0``."""
    role: str
    rank: int
    """Global rank, from 0: WEFT_RANK."""
    attempt: int
    seq: int
    phase: Phase
    times: Mapping[str, int] = field(default_factory=dict)
    """Phase -> when it was entered, Unix ms."""
    exit: Exit | None = None
    """How the learner's process ended; None: it has not, or it never started."""
    reason: str = ""
    """Set where the helper failed: DataStoreDenied, EnvironmentFailed, CodeInvalid, NoSpace, ...; else empty."""
    message: str = ""
    """The failure of the helper, for people."""
    env_digest: str = ""
    data_digest: str = ""
    checkpoint: StoredCheckpoint | None = None
    """The newest of this attempt that is stored; None: there is none yet."""
    run: int = 1
    """Which start of the learner within the attempt it is about; ``LearnerPlan.run``."""
    startup: Mapping[str, Span] = field(default_factory=dict)
    """Step of the start-up -> when it began and ended for this learner."""
    schema: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int, int]:
        """Rises with each report of a learner."""
        return self.attempt, self.run, self.seq

    @property
    def helper_failed(self) -> bool:
        """Whether its helper failed before the process ran. Its phase is STORED although it only downloaded."""
        return bool(self.reason) and self.exit is None


def job_status(learners: Iterable[LearnerStatus], expected: int) -> Status:
    """Returns the status of a job from the phases of its learners: PENDING, DOWNLOADING, PROCESSING or STORING.

    PROCESSING once the first process runs; STORING once all learners store or have stored. ``expected``: how many
    learners the job has; of some there may be no report yet.
    """
    phases = [Phase.DOWNLOADING if learner.helper_failed else learner.phase for learner in learners]
    if not phases or all(phase is Phase.WAITING for phase in phases):
        return Status.PENDING
    if len(phases) == expected and all(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.STORING] for phase in phases):
        return Status.STORING
    if any(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.PROCESSING] for phase in phases):
        return Status.PROCESSING
    return Status.DOWNLOADING


def step_times(learners: Iterable[LearnerStatus]) -> dict[Status, int]:
    """Returns when the job entered each status, in Unix ms; statuses that no learner has reached are left out.

    DOWNLOADING and PROCESSING begin with the first learner, STORING with the last.
    """
    learners = list(learners)

    def times(phase: Phase) -> list[int]:
        return [learner.times[phase.value] for learner in learners if phase.value in learner.times]

    steps = {Status(phase.value): min(times(phase)) for phase in (Phase.DOWNLOADING, Phase.PROCESSING) if times(phase)}
    return steps | ({Status.STORING: max(times(Phase.STORING))} if times(Phase.STORING) else {})

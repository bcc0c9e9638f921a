"""What the cluster knows of a learner: its pod, and until the container has ended its helper's report: pure.

Once the learner's container has ended, the kubelet's record counts: exit code and OOMKilled, then the record of the
entry process in the termination message. The user's code may have written that message, so it counts only where it
agrees with the exit code, and a stop cause in it only where the platform has stopped the attempt. A stop that deletes
the pod reaches the entry process as the kubelet's SIGTERM, of which it does not know the cause: the owner's record of
deleted pods says it. While the entry process waits for the helper to store, the helper's report is the only record
there is, and the status store may lose it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from signal import SIGKILL
from typing import Any, Final, Self

from services.core.adapters.kubernetes import names, reasons
from services.core.domain.codec import MALFORMED, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.sizes import Size, as_devices
from services.core.domain.startup import Span, Step
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.pod_layout import HELPER_CONTAINER, LEARNER_CONTAINER, SCHEDULING_GATE

Document = Mapping[str, Any]
_CAUSES: Final = ("halt", "kill", "peer", "deadline")
_MOST_SIGNAL: Final = 64
_NOT_OBSERVED: Final = ("ContainerStatusUnknown", "Unknown")
"""Reasons of a container whose end was not observed: its machine, or the runtime, has started again. The exit codes
that the kubelet (137) and containerd (255) give it are not its command's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMark:
    """The stop of an attempt, or of one pod, as its annotation keeps it. Times are Unix ms, durations ms."""

    attempt: int
    generation: int
    cause: str
    grace_ms: int
    time: int

    @classmethod
    def of(cls, document: Document) -> Self | None:
        """The mark of an object; None if it has none, or a damaged one."""
        text = names.annotation(document, names.STOP)
        try:
            return load(cls, json.loads(text)) if text else None
        except MALFORMED:
            return None

    def overrides(self, earlier: StopMark | None) -> bool:
        """True if this stop is stronger: a kill, or less grace."""
        if earlier is None:
            return True
        kills = self.cause == "kill" and earlier.cause != "kill"
        return kills or (self.grace_ms < earlier.grace_ms and earlier.cause != "kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The observed state of a learner apart from its pod: report, stop, lost node, warnings."""

    now: int
    """Unix ms."""
    report: LearnerStatus | None = None
    """Its helper's, of the same attempt."""
    mark: StopMark | None = None
    """The stop of its attempt."""
    removed: bool = False
    """That stop deletes the pod, by the owner's record (``removals``)."""
    node_lost: bool = False
    """The cluster does not reach its node any more."""
    events: Sequence[Document] = ()
    """Warnings about it."""


def observe(pod: Document, context: Context) -> LearnerProcess:
    """The learner of a pod that this adapter has rendered."""
    report = context.report if context.report is not None and context.report.run == names.run_of(pod) else None
    context = replace(context, report=report)
    terminated = container_state(pod, LEARNER_CONTAINER, "terminated")
    message = _with_cause(pod, context, _message(terminated))
    problem = _end_by_cluster(pod, context, terminated, message)
    end = _end(pod, context, terminated, message, problem)
    started = _started(report, terminated, message)
    if started is None and end is not None and problem is None:
        problem = reasons.could_not_run(terminated or {})
    state = _state(pod, end, started)
    blocked = reasons.not_started(pod, context.events) if state in {"starting", "waiting"} and end is None else None
    last = _last_report(pod)
    size = _size(pod)
    return LearnerProcess(
        name=names.label(pod, names.LEARNER),
        attempt=names.attempt_of(pod),
        state=state,
        run=0 if started is None else names.run_of(pod),
        planned_run=names.run_of(pod),
        started=started,
        may_have_started=started is None and terminated is None and _start_is_unknown(pod, context),
        exit=end,
        stored=(report is not None and report.phase is Phase.STORED) or last.get("phase") == Phase.STORED.value,
        reason=problem.reason.value if problem else str(last.get("reason", "")),
        message=problem.message if problem else str(last.get("message", "")),
        can_store=not context.node_lost and not _has_ended(pod),
        readable=report is not None or terminated is not None or not has_begun(pod),
        node=str(pod["spec"].get("nodeName") or ""),
        cpus=size.cpus,
        memory=size.memory,
        gpus=size.gpus,
        devices=size.devices,
        blocked=blocked.reason.value if blocked else "",
        blocked_message=blocked.message if blocked else "",
        blocked_for_good=blocked.final if blocked else False,
        startup=_startup(pod),
        is_ending=problem is not None and not context.node_lost and terminated is None,
    )


def relevant(reports: Mapping[tuple[int, str], LearnerStatus]) -> object:
    """Returns what an observation depends on of the reports: equal values give equal observations."""
    return {
        learner: (
            report.run,
            _is_ready(report),
            report.phase is Phase.STORED,
            report.times.get(Phase.PROCESSING.value),
            report.exit,
        )
        for learner, report in reports.items()
    }


def never_created(name: str, attempt: int, mark: StopMark | None) -> LearnerProcess:
    """A learner of an attempt whose pods have not been created yet, or not all."""
    process = LearnerProcess(name=name, attempt=attempt, state="inert")
    return replace(process, state="exited", exit=_stopped_before(mark)) if mark is not None else process


def vanished(name: str, owner: Document, *, now: int) -> LearnerProcess:
    """A learner of an activated attempt whose pod is gone, and not by a stop. ``now``: Unix ms."""
    run = later_runs(owner).get(name, 1)
    return LearnerProcess(
        name=name, attempt=names.attempt_of(owner), state="exited", planned_run=run, exit=Exit(time=now, lost=True)
    )


def removals(owner: Document) -> dict[str, int]:
    """When a stop has deleted pods of this attempt, by learner, in Unix ms. Empty if the annotation is damaged."""
    try:
        removed = json.loads(names.annotation(owner, names.REMOVED) or "{}")
        return {str(name): int(time) for name, time in removed.items()}
    except MALFORMED:
        return {}


def later_runs(owner: Document) -> dict[str, int]:
    """The runs after the first that may have been created, by learner. Empty if the annotation is damaged."""
    try:
        runs = json.loads(names.annotation(owner, names.RUNS) or "{}")
        return {str(name): int(run) for name, run in runs.items()}
    except MALFORMED:
        return {}


def removed(name: str, attempt: int, time: int, mark: StopMark, report: LearnerStatus | None) -> LearnerProcess:
    """A learner whose pod a stop has deleted, and which is gone: the stop was its end, unless its helper knew one.

    ``time``: Unix ms of the deletion. ``report``: its helper's last one, of this attempt.
    """
    started = _started(report, None, None)
    end = report.exit if report is not None else None
    run = report.run if report is not None else 1
    return LearnerProcess(
        name=name,
        attempt=attempt,
        state="exited",
        run=0 if started is None else run,
        planned_run=run,
        started=started,
        exit=end or Exit(time=time, signal=_signal(mark), stop_cause=mark.cause),
        stored=report is not None and report.phase is Phase.STORED,
    )


def container_state(pod: Document, container: str, state: str) -> Document | None:
    """The state (``running``, ``waiting``, ``terminated``) of a container; None: it is in another one."""
    status = pod.get("status") or {}
    for entry in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if entry["name"] == container:
            present: Document | None = (entry.get("state") or {}).get(state)
            return present
    return None


def is_gated(pod: Document) -> bool:
    """True for an inert pod. One with another gate only, e.g. Kueue's, has been activated."""
    return any(entry["name"] == SCHEDULING_GATE for entry in pod["spec"].get("schedulingGates") or ())


def has_begun(pod: Document) -> bool:
    """True if its helper or its learner's container has started."""
    begun = ("running", "terminated")
    return any(
        container_state(pod, name, state) is not None
        for name in (HELPER_CONTAINER, LEARNER_CONTAINER)
        for state in begun
    )


def _has_ended(pod: Document) -> bool:
    """True if none of its containers runs or will run again, the helper's included."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _startup(pod: Document) -> Mapping[str, Span]:
    """When the pod was bound to a node, and when its containers ran. The kubelet's times are whole seconds."""
    created = _time_ms(pod["metadata"].get("creationTimestamp"))
    if created is None or is_gated(pod):
        return {}
    bound = next(
        (
            _time_ms(condition.get("lastTransitionTime"))
            for condition in (pod.get("status") or {}).get("conditions") or ()
            if condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        ),
        None,
    )
    spans = {Step.SCHEDULE.value: Span(began=created, ended=bound)}
    if bound is not None:
        starts = [_container_start(pod, name) for name in (HELPER_CONTAINER, LEARNER_CONTAINER)]
        running = [start for start in starts if start is not None]
        spans[Step.IMAGE.value] = Span(began=bound, ended=max(bound, *running) if len(running) == len(starts) else None)
    return spans


def _container_start(pod: Document, container: str) -> int | None:
    """When the container started, Unix ms; None: it has not."""
    for state in ("running", "terminated"):
        present = container_state(pod, container, state)
        if present is not None:
            return _time_ms(present.get("startedAt"))
    return None


def _state(pod: Document, end: Exit | None, started: int | None) -> str:
    if end is not None:
        return "exited"
    if started is not None:
        return "running"
    if is_gated(pod):
        return "inert"
    return "waiting" if _both_run(pod) else "starting"


def _both_run(pod: Document) -> bool:
    """True if its helper's and its learner's container run."""
    return all(container_state(pod, name, "running") is not None for name in (HELPER_CONTAINER, LEARNER_CONTAINER))


def _end_by_cluster(
    pod: Document, context: Context, terminated: Document | None, message: Exit | None
) -> reasons.Problem | None:
    """Why the cluster or its users, and not the learner's command or the platform, have ended the pod."""
    if _ended_before(pod, context, terminated, message):
        return None
    if context.node_lost:
        node = pod["spec"].get("nodeName")
        return reasons.Problem(reasons.PodReason.NODE_LOST, f"the cluster does not reach the node {node} any more")
    return reasons.ended(pod) or _deleted_by_others(pod, context)


def _deleted_by_others(pod: Document, context: Context) -> reasons.Problem | None:
    """The deletion of a pod that no stop of the platform deletes. Its command gets SIGTERM before the pod is gone."""
    if _deletion_ms(pod) is None or context.mark is not None or StopMark.of(pod) is not None or context.removed:
        return None
    return reasons.Problem(reasons.PodReason.POD_DELETED, "somebody has deleted the pod of the learner")


def _deletion_ms(pod: Document) -> int | None:
    """When the pod's deletion began, Unix ms; None: it is not deleted. The API server's times are whole seconds."""
    metadata = pod["metadata"]
    until = _time_ms(metadata.get("deletionTimestamp"))
    return None if until is None else until - 1000 * int(metadata.get("deletionGracePeriodSeconds") or 0)


def _ended_before(pod: Document, context: Context, terminated: Document | None, message: Exit | None) -> bool:
    """Whether the command had ended by itself before the cluster began to end the pod.

    Afterwards its code says nothing: many programs answer SIGTERM with a checkpoint and exit code 0. The kubelet tells
    of an eviction of its own only after the end, and when it began is not known: then a success counts.
    """
    deletion = _deletion_ms(pod)
    if terminated is not None:
        if message is None:
            return False
        return terminated.get("exitCode") == 0 if deletion is None else message.time < deletion
    if context.node_lost or deletion is None or context.report is None or context.report.exit is None:
        return False
    return context.report.exit.time < deletion


def _end(
    pod: Document,
    context: Context,
    terminated: Document | None,
    message: Exit | None,
    by_cluster: reasons.Problem | None,
) -> Exit | None:
    own_mark = StopMark.of(pod)
    if own_mark is not None and not has_begun(pod):
        return _stopped_before(own_mark)
    if terminated is not None:
        time = _time_ms(terminated.get("finishedAt")) or context.now
        unstarted = reasons.could_not_run(terminated)
        if unstarted is not None and unstarted.final:
            oom = unstarted.reason is reasons.PodReason.OUT_OF_MEMORY
            return Exit(time=time, code=int(terminated.get("exitCode", 128)), oom=oom)
        if unstarted is not None:
            return Exit(time=time, lost=True)
        if by_cluster is not None:
            return _ended_by(by_cluster, time)
        if terminated.get("reason") in _NOT_OBSERVED:
            return Exit(time=time, lost=True)
        return _recorded(terminated, message, time, context.mark)
    if by_cluster is not None:
        return _ended_by(by_cluster, context.now)
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Failed":  # without a container that ended: the kubelet did not start it
        return Exit(time=context.now, lost=True)
    return context.report.exit if context.report is not None else None


def _ended_by(problem: reasons.Problem, time: int) -> Exit:
    """A learner that has exceeded a bound of its own is ended for its own fault; any other one is lost."""
    if problem.reason is reasons.PodReason.DISK_EXCEEDED:
        return Exit(time=time, signal=SIGKILL, disk_exceeded=problem.text)
    return Exit(time=time, lost=True)


def _recorded(terminated: Document, message: Exit | None, time: int, mark: StopMark | None) -> Exit:
    """The end by the kubelet's record, and by the entry process's as far as the two agree."""
    code = int(terminated.get("exitCode", 0))
    oom = terminated.get("reason") == "OOMKilled"
    if message is not None:
        cause = message.stop_cause if mark is not None and message.stop_cause in _CAUSES else ""
        ended = message.time if 0 < message.time <= time + 1000 else time
        return Exit(time=ended, code=message.code, signal=message.signal, stop_cause=cause, oom=oom or message.oom)
    signal = code - 128 if 128 < code <= 128 + _MOST_SIGNAL else None  # the entry process itself was ended by it
    cause = mark.cause if mark is not None and mark.time <= time and not oom else ""
    return Exit(time=time, code=None if signal else code, signal=signal, stop_cause=cause, oom=oom)


def _message(terminated: Document | None) -> Exit | None:
    """The entry process's record in the termination message; None if there is none that agrees with the exit code."""
    try:
        document = json.loads(str((terminated or {}).get("message") or ""))
        end = load(Exit, {name: value for name, value in document.items() if name not in {"schema", "run", "extra"}})
    except MALFORMED:
        return None
    agrees = terminated is not None and end.shell_code == terminated.get("exitCode") and not end.lost
    return end if agrees and 0 <= end.time <= MAX_TIME_MS else None


def _with_cause(pod: Document, context: Context, message: Exit | None) -> Exit | None:
    """The entry process's record; without a cause it has that of the stop which had deleted the pod before the end."""
    deletion = _deletion_ms(pod)
    if message is None or message.stop_cause or context.mark is None or not context.removed or deletion is None:
        return message
    return replace(message, stop_cause=context.mark.cause) if deletion <= message.time else message


def _started(report: LearnerStatus | None, terminated: Document | None, message: Exit | None) -> int | None:
    """When the command started, Unix ms; None: it did not. A stop before the start leaves no report of one."""
    if report is not None and Phase.PROCESSING.value in report.times:
        return report.times[Phase.PROCESSING.value]
    if terminated is None or message is None or (message.stop_cause and message.signal):
        return None
    return _time_ms(terminated.get("startedAt"))


def _start_is_unknown(pod: Document, context: Context) -> bool:
    """Whether its command may run although no report says so. A stop ends it, and then its end is recorded.

    While both containers run, a report of the start may be under way, or lost. A kubelet starts a container before its
    status says so: of a container that waits by its status, the helper's report decides, and a lost one may have said
    that all is ready.
    """
    if context.node_lost or _has_ended(pod) or (context.report is not None and context.report.exit is not None):
        return False
    return _both_run(pod) or (has_begun(pod) and (context.report is None or _is_ready(context.report)))


def _is_ready(report: LearnerStatus) -> bool:
    """True once a helper has reported that its learner's process can start."""
    return PHASE_ORDER[report.phase] >= PHASE_ORDER[Phase.READY]


def _last_report(pod: Document) -> Document:
    """``{phase, reason, message}`` of the helper's termination message; empty before its end."""
    terminated = container_state(pod, HELPER_CONTAINER, "terminated") or {}
    try:
        document = json.loads(str(terminated.get("message") or ""))
    except MALFORMED:
        return {}
    return document if isinstance(document, dict) else {}


def _stopped_before(mark: StopMark | None) -> Exit | None:
    """The end of a learner that was stopped before it started: the signal that it would have got."""
    if mark is None:
        return None
    return Exit(time=mark.time, signal=_signal(mark), stop_cause=mark.cause)


def _signal(mark: StopMark) -> int:
    """The first signal of a stop."""
    return 9 if mark.grace_ms == 0 else 15


def _size(pod: Document) -> Size:
    """What the learner holds by the pod's annotation; nothing if it is damaged. Earlier versions named no devices."""
    try:
        size = json.loads(names.annotation(pod, names.SIZE))
        devices = as_devices({str(name): int(count) for name, count in size.get("devices", {}).items()})
        return Size(float(size["gpus"]), float(size["cpus"]), int(size["memory"]), devices)
    except MALFORMED:
        return Size(0, 0, 0)


def _time_ms(text: object) -> int | None:
    """Unix ms of a time as the API writes it; None for none, and for the zero time."""
    try:
        time = round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
    return time if time > 0 else None

"""Why a pod does not start or has ended without its command's doing: a stable reason, what happened, what to do.

The texts come from the kubelet, the scheduler and the container runtime, and change between versions; the fields that
classify them (reasons of conditions, states and events) are stable. Tests keep real texts of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.domain.registry_credentials import HOW_TO_SET

_MOST_TEXT: Final = 600


class PodReason(StrEnum):
    """Users see it; a value never changes its meaning."""

    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    IMAGE_UNUSABLE = "ImageUnusable"
    OUT_OF_MEMORY = "OOMKilled"
    CONFIG_MISSING = "ConfigMissing"
    MOUNT_FAILED = "MountFailed"
    SANDBOX_FAILED = "SandboxFailed"
    NODE_REFUSED = "NodeRefused"
    EVICTED = "Evicted"
    DISK_EXCEEDED = "DiskExceeded"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    POD_DEADLINE = "PodDeadlineExceeded"
    POD_DELETED = "PodDeleted"


ADVICE: Final[Mapping[PodReason, str]] = {
    PodReason.UNSCHEDULABLE: "wait until other pods end, ask for less, or have nodes added",
    PodReason.IMAGE_PULL_FAILED: "check the image's name and tag, and that the nodes may pull it",
    PodReason.IMAGE_UNUSABLE: "the image needs /bin/sh, coreutils or busybox, and must run as any user",
    PodReason.OUT_OF_MEMORY: "raise resources.memory: a container cannot even start in so little",
    PodReason.CONFIG_MISSING: "submit the job again; tell the operator if it happens twice",
    PodReason.MOUNT_FAILED: "tell the operator: a volume cannot be mounted on that node",
    PodReason.SANDBOX_FAILED: "tell the operator: the node cannot start containers or give them a network",
    PodReason.NODE_REFUSED: "it is tried again on the nodes that are left",
    PodReason.EVICTED: "write less, or ask for more memory; else tell the operator: the node was short of it",
    PodReason.DISK_EXCEEDED: "write less, or remove files while it trains; the bound is WEFT_KUBERNETES_SCRATCH",
    PodReason.PREEMPTED: "it is tried again; a job of higher priority needed the place",
    PodReason.NODE_LOST: "it is tried again on another node, from its last checkpoint",
    PodReason.POD_DEADLINE: "the cluster limits how long pods run: tell the operator",
    PodReason.POD_DELETED: "it is tried again, from its last checkpoint",
}


_PRIVATE_ADVICE: Final = (
    "check the image's name; if its registry is private, name a secret in image_pull_secret, or the operator gives the "
    "platform credentials (WEFT_KUBERNETES_PULL_SECRET_FILE or WEFT_KUBERNETES_PULL_SECRETS)"
)
_REFUSED: Final = re.compile(
    r"denied|unauthorized|authorization failed|insufficient_scope|forbidden|no basic auth", re.IGNORECASE
)
"""In a registry's answer that credentials may change. Many answer so, too, if there is no such image."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What keeps a pod from starting, or has ended it."""

    reason: PodReason
    text: str
    """The cluster's own words."""
    final: bool = False
    """Waiting cannot help."""
    pulled_with: str = ""
    """Of an image: the tenant's secret with the credentials of its registry; empty: none."""

    @property
    def advice(self) -> str:
        """For people: what to do."""
        if self.reason is PodReason.IMAGE_PULL_FAILED and _REFUSED.search(self.text):
            if self.pulled_with:
                set_again = HOW_TO_SET.format(name=self.pulled_with)
                return (
                    f"check the image's name and the secret '{self.pulled_with}' of image_pull_secret; "
                    f"set it again with {set_again}, and submit the job again"
                )
            return _PRIVATE_ADVICE
        return ADVICE[self.reason]

    @property
    def message(self) -> str:
        """For people: what happened and what to do."""
        text = " ".join(self.text.split())[:_MOST_TEXT].rstrip(".")
        return f"{text}; {self.advice}" if text else self.advice


_WAITING: Final[Mapping[str, PodReason]] = {
    "ErrImagePull": PodReason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": PodReason.IMAGE_PULL_FAILED,
    "InvalidImageName": PodReason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": PodReason.IMAGE_PULL_FAILED,
    "ImageInspectError": PodReason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": PodReason.IMAGE_PULL_FAILED,
    "SignatureValidationFailed": PodReason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": PodReason.CONFIG_MISSING,
}
"""Reason of a container that waits -> ours."""
_STARTS: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
"""Reasons of a container that could not be created or started. Only its text says whether the job is the cause."""
_OF_MEMORY: Final = re.compile(
    r"memory limit .{0,40}too low|unable to set memory limit|init was OOM-killed"
    r"|memory\.(?:max|limit_in_bytes|memsw\.limit_in_bytes): device or resource busy",
    re.IGNORECASE,
)
"""In the text of a container that needs more memory to start than the job gives it."""
_OF_IMAGE: Final = re.compile(
    # runc, with the quotes of a log or not; then crun, then gVisor.
    r'exec:? (?:\\*"[^"]+":|/[^:]+:|user process caused:?) \\*"?(?:stat [^:]+: )?'
    r"(?:executable file not found|no such file or directory|permission denied|is a directory|not a directory)"
    r"|executable file \S+ not found|open executable: permission denied|error finding executable"
    r"|exec format error|no command specified"
    # The image's WORKDIR. That "/" cannot be entered is no fault of an image.
    r"|cwd must be an absolute path"
    r"|chdir to (?:cwd \()?\W*/\w.{0,300}?(?:permission denied|no such file or directory|not a directory)"
    # A file of the image is where a folder is mounted.
    r"|(?:to rootfs at|mount ?point for) .{0,400}(?:not a directory|must be mounted on ordinary directory)"
    r"|unable to find (?:user|group)|no users found|no matching entries in (?:passwd|group)|invalid USER value"
    r"|runAsNonRoot|image will run as root|breaks non-root policy",
    re.IGNORECASE,
)
"""In the text of a container that was not started because of its image."""
_OF_RUNTIME: Final = re.compile(
    r"unable to retrieve OCI runtime error|failed to start shim|fork/exec|running (?:\w+ )?hook"
    r'|exec: \\*"(?:[^"]*/)?(?:runc|crun|runsc|kata-runtime|nvidia-[\w.-]+|containerd-shim[\w.-]*)\\*"',
    re.IGNORECASE,
)
"""In a text about a program of the node, e.g. NVIDIA's runtime. Its words are otherwise those about the image's."""
_REQUIREMENT: Final = "nvidia-container-cli: requirement error"
"""The image needs a newer driver than the node's. It says so in a hook of the runtime."""
_EVENTS: Final[Mapping[str, PodReason]] = {
    "FailedMount": PodReason.MOUNT_FAILED,
    "FailedAttachVolume": PodReason.MOUNT_FAILED,
    "FailedMapVolume": PodReason.MOUNT_FAILED,
    "FailedCreatePodSandBox": PodReason.SANDBOX_FAILED,
    "NetworkNotReady": PodReason.SANDBOX_FAILED,
}
"""Reason of an event -> ours: the pod's own status does not show these."""
_ENDED: Final[Mapping[str, PodReason]] = {
    "Evicted": PodReason.EVICTED,
    "NodeLost": PodReason.NODE_LOST,
    "DeadlineExceeded": PodReason.POD_DEADLINE,
    "Terminated": PodReason.NODE_LOST,
    "NodeShutdown": PodReason.NODE_LOST,
    "Shutdown": PodReason.NODE_LOST,
    "Preempting": PodReason.PREEMPTED,
    "UnexpectedAdmissionError": PodReason.NODE_REFUSED,
    "NodeAffinity": PodReason.NODE_REFUSED,
}
"""Reason of a failed pod -> ours. Those that begin with OutOf (OutOfcpu ...) are refusals of the node, too."""
_DISRUPTED: Final[Mapping[str, PodReason]] = {
    "PreemptionByScheduler": PodReason.PREEMPTED,
    "DeletionByTaintManager": PodReason.NODE_LOST,
    "DeletionByPodGC": PodReason.NODE_LOST,
    "EvictionByEvictionAPI": PodReason.EVICTED,
    "TerminationByKubelet": PodReason.EVICTED,
}
"""Reason of the condition DisruptionTarget -> ours."""
_OWN_BOUND: Final = re.compile(r'Usage of EmptyDir volume "(?:job|tmp|runs|shm)" exceeds the limit')
"""Of an eviction for what the learner itself has written. Without this text it is one of the node's."""
_NEVER_PULLED: Final = re.compile(
    r"not found|manifest unknown|name unknown|denied|unauthorized|authorization failed|insufficient_scope|forbidden"
    r"|couldn't parse image|invalid reference|no such host|does not exist",
    re.IGNORECASE,
)
_FINAL_WAITS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
_NOT_READ_YET: Final = re.compile(r"failed to sync (?:configmap|secret) cache|context deadline exceeded", re.IGNORECASE)
"""Of a CreateContainerConfigError: a kubelet that has not read the secret or config map yet. It tries again."""


def not_started(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]] = ()) -> Problem | None:
    """What keeps a pod from starting now; None: nothing that is known. ``events``: its warnings, of any age."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition.get("reason") == "Unschedulable":
                return Problem(PodReason.UNSCHEDULABLE, str(condition.get("message", "")))
            if any(entry["name"] == names.KUEUE_SCHEDULING_GATE for entry in pod["spec"].get("schedulingGates") or ()):
                return Problem(PodReason.UNSCHEDULABLE, "Kueue has not admitted the gang")
            return None
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting") or {}
        text = str(waiting.get("message") or waiting.get("reason"))
        reason = _reason_of_container(str(waiting.get("reason")), text)
        if reason is not None:
            if waiting["reason"] == "ImagePullBackOff":
                text = _pull_error(text, container)
            is_final = _is_final(reason, str(waiting["reason"]), text)
            return Problem(reason, text, final=is_final, pulled_with=names.annotation(pod, names.PULLED_WITH))
    return _event_problem(events)


def ended(pod: Mapping[str, Any]) -> Problem | None:
    """Why the cluster itself has ended a pod or is ending it; None: it did not, or the pod's own command ended it."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = _DISRUPTED.get(str(condition.get("reason")), PodReason.EVICTED)
            text = str(status.get("message") or condition.get("message", ""))
            return Problem(_of_eviction(text) if status.get("reason") == "Evicted" else reason, text)
    if status.get("phase") != "Failed" or not status.get("reason"):
        return None
    name = str(status["reason"])
    refused = PodReason.NODE_REFUSED if name.startswith("OutOf") else None
    text = str(status.get("message", ""))
    reason_of_pod = _of_eviction(text) if name == "Evicted" else _ENDED.get(name, refused)
    return Problem(reason_of_pod, text) if reason_of_pod is not None else None


def _of_eviction(text: str) -> PodReason:
    """A learner that exceeds the bound of its own volume has failed; a node that is short of something has not room."""
    return PodReason.DISK_EXCEEDED if _OWN_BOUND.search(text) else PodReason.EVICTED


def could_not_run(terminated: Mapping[str, Any]) -> Problem | None:
    """Why a container ended without ever having run; None: it ran. Final if the job is the cause, not the node."""
    text = str(terminated.get("message", ""))
    reason = _reason_of_container(str(terminated.get("reason")), text)
    return Problem(reason, text, final=reason is not PodReason.SANDBOX_FAILED) if reason is not None else None


def _reason_of_container(name: str, text: str) -> PodReason | None:
    """Our reason for one of the kubelet's, which stands in a container's state with this text; None: not a problem."""
    if name not in _STARTS:
        return _WAITING.get(name)
    if _OF_MEMORY.search(text):
        return PodReason.OUT_OF_MEMORY
    is_of_image = _OF_IMAGE.search(text) and not _OF_RUNTIME.search(text)
    return PodReason.IMAGE_UNUSABLE if is_of_image or _REQUIREMENT in text else PodReason.SANDBOX_FAILED


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _pull_error(text: str, container: Mapping[str, Any]) -> str:
    """The cause. In a back-off older kubelets say only ``Back-off pulling image "x"``."""
    return text if "Err" in text or "failed" in text else f"{text} ({container.get('image', '')})"


def _is_final(reason: PodReason, waiting: str, text: str) -> bool:
    if waiting in _FINAL_WAITS:
        return _NOT_READ_YET.search(text) is None
    if reason is PodReason.IMAGE_PULL_FAILED:
        return _NEVER_PULLED.search(text) is not None
    return reason in {PodReason.IMAGE_UNUSABLE, PodReason.OUT_OF_MEMORY}


def _event_problem(events: Sequence[Mapping[str, Any]]) -> Problem | None:
    known = [event for event in events if event.get("reason") in _EVENTS]
    if not known:
        return None
    last = max(known, key=_event_time)
    return Problem(_EVENTS[last["reason"]], str(last.get("message", "")))


def _event_time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")

"""Containers that a node could not create or start: by their text, whether the image or the node is the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from services.core.adapters.kubernetes import reasons
from services.core.adapters.kubernetes.observed import Context, observe
from services.core.domain.failure import describe_failure, is_infrastructure
from services.core.domain.learner import Exit
from services.core.domain.status import Phase
from tests.testbed.kubernetes.learner_pods import ENDED_MS, NOW, RUNNING, Document, ended, pod, report

TASK: Final = "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
RUNC: Final = f"{TASK}runc create failed: unable to start container process: "
INIT: Final = f"{RUNC}error during container init: "
HOOK: Final = (
    f"{INIT}error running hook #0: error running hook: exit status 1, stdout: , "
    "stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: "
)
RUNTIME: Final = (
    f"{TASK}unable to retrieve OCI runtime error (open /run/containerd/io.containerd.runtime.v2.task/k8s.io/7a5db1/"
    "log.json: no such file or directory): "
)
CRIO: Final = 'container create failed: time="2027-01-15T07:59:50Z" level=error msg="'

OF_IMAGE: Final = [
    f'{INIT}exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown',
    f'{RUNC}exec: "sh": executable file not found in $PATH: unknown',
    f'{RUNC}exec: "/bin/sh": permission denied: unknown',
    f'{RUNC}exec: "/bin/sh": is a directory: unknown',
    f"{INIT}exec /bin/sh: exec format error: unknown",
    f'{TASK}container_linux.go:380: starting container process caused: exec: "/bin/sh": permission denied: unknown',
    f'{TASK}standard_init_linux.go:228: exec user process caused "no such file or directory": unknown',
    (
        f'{CRIO}runc create failed: unable to start container process: exec: \\"/bin/sh\\": stat /bin/sh: no such '
        'file or directory"'
    ),
    f"{TASK}crun: executable file `/bin/sh` not found: No such file or directory: unknown",
    "container create failed: open executable: Permission denied",
    f'{TASK}creating container: error finding executable "sh" in PATH [/usr/bin /bin]: no such file or directory',
    f'{INIT}chdir to cwd ("/home/nonroot") set in config.json failed: permission denied',
    f"{TASK}Cwd must be an absolute path: unknown",
    f"{TASK}crun: chdir to `/root`: Permission denied: unknown",
    (
        f'{INIT}error mounting "/var/lib/kubelet/pods/u/volume-subpaths/job/learner/3" to '
        'rootfs at "/job": create mountpoint for /job mount: not a directory: unknown'
    ),
    'failed to generate container "1e0d" spec: failed to generate spec: no command specified',
    "failed to create containerd container: mount callback failed on /var/lib/containerd/tmpmounts/m1: no users found",
    "unable to find user weft: no matching entries in passwd file",
    "container has runAsNonRoot and image will run as root (pod: weft-j1-1-worker-0, container: learner)",
    (
        f"{HOOK}requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version, or "
        "use an earlier cuda container: unknown"
    ),
]
OF_MEMORY: Final = [
    f"{RUNC}container init was OOM-killed (memory limit too low?): unknown",
    (
        f"{INIT}error setting cgroup config for procHooks process: unable to set memory limit to 4194304 (current "
        "usage: 5132288, peak usage: 5132288): unknown"
    ),
    (
        f"{INIT}setting cgroup config for procHooks process caused: failed to write 4194304: write /sys/fs/cgroup/"
        "memory/kubepods/u/memory.limit_in_bytes: device or resource busy: unknown"
    ),
    "set memory limit 4194304 too low; should be at least 12582912",
]
OF_NODE: Final = [
    f"{HOOK}initialization error: nvml error: driver not loaded: unknown",
    f"{HOOK}device error: GPU-4f6a: unknown device: unknown",
    f"{HOOK}mount error: file creation failed: /run/nvidia-persistenced/socket: no such device or address: unknown",
    f'{RUNTIME}exec: "nvidia-container-runtime": executable file not found in $PATH: unknown',
    f"{RUNTIME}fork/exec /usr/bin/nvidia-container-runtime: no such file or directory: unknown",
    f"{RUNTIME}fork/exec /usr/local/bin/runc: exec format error: unknown",
    (
        'failed to create containerd task: failed to start shim: exec: "containerd-shim-runc-v2": executable file not '
        "found in $PATH"
    ),
    (
        f"{INIT}error running createContainer hook #1: fork/exec /usr/bin/nvidia-cdi-hook: no "
        "such file or directory: unknown"
    ),
    (
        "failed to create containerd task: mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/7a5db1: no space "
        "left on device: unknown"
    ),
    (
        f"{RUNC}unable to apply cgroup configuration: failed to write 4242: open /sys/fs/cgroup/kubepods.slice/"
        "cgroup.procs: no such file or directory: unknown"
    ),
    (
        f"{INIT}error setting cgroup config for procHooks process: bpf_prog_query("
        "BPF_CGROUP_DEVICE) failed: operation not permitted: unknown"
    ),
    (
        f"{INIT}unable to apply apparmor profile: apparmor failed to apply profile: write "
        "/proc/self/attr/apparmor/exec: no such file or directory: unknown"
    ),
    f'{INIT}chdir to cwd ("/") set in config.json failed: permission denied: unknown',
    f'{RUNC}exec: "/bin/sh": stat /bin/sh: input/output error: unknown',
    (
        'failed to generate container "1e0d" spec: failed to generate spec: failed to inject CDI devices: unresolvable '
        "CDI devices nvidia.com/gpu=0"
    ),
    (
        "failed to reserve container name learner_weft-j1-1-worker-0_weft-acme_u_0: name "
        '"learner_weft-j1-1-worker-0_weft-acme_u_0" is reserved for "818fcfef09165d91ac8c86ed88714bb159a8358c"'
    ),
    "context deadline exceeded",
    "",
]


def starting(reason: str, text: str) -> Document:
    return pod(RUNNING, {"waiting": {"reason": reason, "message": text}})


@pytest.mark.parametrize("text", OF_IMAGE)
def test_job_whose_image_cannot_be_started_has_failed_by_its_own_fault(text: str) -> None:
    process = observe(pod(RUNNING, ended(128, text, "StartError"), phase="Failed"), Context(now=NOW))
    assert (process.reason, process.started, process.exit) == ("ImageUnusable", None, Exit(time=ENDED_MS, code=128))
    assert process.message.endswith(reasons.ADVICE[reasons.PodReason.IMAGE_UNUSABLE])


@pytest.mark.parametrize("text", OF_MEMORY)
def test_job_with_too_little_memory_for_a_container_is_not_tried_again_for_ever(text: str) -> None:
    process = observe(pod(RUNNING, ended(128, text, "StartError"), phase="Failed"), Context(now=NOW))
    assert (process.reason, process.exit) == ("OOMKilled", Exit(time=ENDED_MS, code=128, oom=True))
    assert process.message.endswith("raise resources.memory: a container cannot even start in so little")
    waiting = observe(starting("CreateContainerError", text), Context(now=NOW))
    assert (waiting.blocked, waiting.blocked_for_good) == ("OOMKilled", True)


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
@pytest.mark.parametrize("text", OF_NODE)
def test_job_on_a_node_that_cannot_start_its_container_uses_no_retry(text: str, reason: str) -> None:
    """A job on a node whose GPU driver was not loaded was FAILED at once, with advice about its image."""
    process = observe(pod(RUNNING, ended(128, text, reason), phase="Failed"), Context(now=NOW))
    assert (process.reason, process.started, process.exit) == ("SandboxFailed", None, Exit(time=ENDED_MS, lost=True))
    assert process.message.endswith("tell the operator: the node cannot start containers or give them a network")
    learner = replace(report(Phase.READY), exit=process.exit, reason=process.reason, message=process.message)
    assert is_infrastructure(learner)
    assert describe_failure(learner) == (process.reason, process.message)


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError"])
@pytest.mark.parametrize("text", OF_IMAGE)
def test_attempt_whose_image_cannot_be_started_is_undone_at_once(text: str, reason: str) -> None:
    process = observe(starting(reason, text), Context(now=NOW))
    assert (process.state, process.blocked, process.blocked_for_good) == ("starting", "ImageUnusable", True)


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError"])
@pytest.mark.parametrize("text", OF_NODE)
def test_attempt_goes_on_while_the_kubelet_tries_a_container_again(text: str, reason: str) -> None:
    """A busy containerd ("context deadline exceeded", "is reserved for") undid attempts that would have started."""
    process = observe(starting(reason, text), Context(now=NOW))
    assert (process.state, process.blocked, process.blocked_for_good) == ("starting", "SandboxFailed", False)
    assert process.blocked_message.endswith(reasons.ADVICE[reasons.PodReason.SANDBOX_FAILED])

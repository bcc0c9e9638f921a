"""What a test sees of jobs whose learners are pods, and how it ends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from services.core.runtime.pod_layout import HELPER_CONTAINER
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.processes import Process
from tests.waiting import HANG_S, eventually
from weft._job import Job
from weft._records import HistoryEvent


def pods(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    return cluster.objects("/api/v1/pods", selector=f"weft.dev/job={job.id}")


def lines(job: Job) -> list[str]:
    """Of stdout: a shell tells on stderr which of its children was ended."""
    return sorted(line.text for line in job.logs() if line.stream == "stdout")


def history(job: Job) -> list[str]:
    """For the message of a failure."""
    return [f"{event.attempt} {event.to} {event.reason} {event.message}" for event in job.history()]


def await_event(cluster: Cluster, job: Job, condition: Callable[[HistoryEvent], bool]) -> HistoryEvent:
    """Waits for an event of the job's history."""
    try:
        return eventually(lambda: [event for event in job.history() if condition(event)])[0]
    except AssertionError:
        states = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in pods(cluster, job)]
        raise AssertionError(f"{history(job)}; pods: {states}") from None


def kill_and_await_gone(cluster: Cluster, job: Job) -> float:
    """Kills the job. Returns the seconds until none of its pods is left."""
    began = time.monotonic()
    job.kill()
    eventually(lambda: not pods(cluster, job))
    took_s = time.monotonic() - began
    assert job.wait(HANG_S).status == "KILLED", history(job)
    return took_s


def containers(pod: dict[str, Any]) -> list[str]:
    """Ids of its containers; one that was restarted has another id. Empty until the kubelet has reported it."""
    status = pod["status"]
    return [entry.get("containerID", "") for entry in (*status["initContainerStatuses"], *status["containerStatuses"])]


def end_command(cluster: Cluster, pod: dict[str, Any]) -> None:
    """For a command that waits for this file in JOB_STATE_DIR."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    cluster.kubectl("--namespace", namespace, "exec", name, "--container=learner", "--", "touch", "/weft/job/end")


def restarts(cluster: Cluster, job: Job) -> int:
    """How often its only learner's helper was started anew."""
    (pod,) = pods(cluster, job)
    (helper,) = (entry for entry in pod["status"]["initContainerStatuses"] if entry["name"] == HELPER_CONTAINER)
    return int(helper["restartCount"])


def helper_process(cluster: Cluster, job: Job) -> Process:
    """Waits until the helper of the job's only learner runs."""
    process = eventually(lambda: Process.of(_helper_pid(cluster, job)))
    assert process is not None
    return process


def _helper_pid(cluster: Cluster, job: Job) -> int:
    """The process of its only learner's helper, on this machine; 0 if there is none at the moment."""
    uids = [pod["metadata"]["uid"] for pod in pods(cluster, job)]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            mounts = (folder / "mountinfo").read_text()
        except OSError:
            continue
        if b"services.helper" in command and any(uid in mounts for uid in uids):
            return int(folder.name)
    return 0


def values_of(item: dict[str, Any]) -> list[str]:
    """Those of a Secret, in base64."""
    return list(item.get("data", {}).values()) if item["kind"] == "Secret" else []


def files_with(words: Sequence[str], cluster: Cluster, pod: dict[str, Any], container: str) -> str:
    """Names of files, environments and command lines in the container that have one of the words."""
    places = "/weft /tmp /var/tmp /dev/shm /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    script = f"test -d /weft && {{ grep -rlsF -D skip -f - {places} || true; }}"
    run = ("exec", pod["metadata"]["name"], f"--container={container}", "--stdin", "--", "sh", "-c", script)
    return cluster.kubectl("--namespace", pod["metadata"]["namespace"], *run, text="\n".join(words))

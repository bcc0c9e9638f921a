"""Where the files of a learner lie in its pod (docs/adr/0019-learners-as-pods.md).

The Kubernetes adapter mounts the volumes there, and the helper and the entry script read and write them.
"""

from __future__ import annotations

from typing import Final

ROOT: Final = "/weft"
"""The folder of all mounts."""
PLAN: Final = "/weft/plan"
"""Read-only, for the helper: ``PLAN_FILE``, ``ADDRESSES_FILE`` and ``AUTHORITY_FILE`` of the attempt's owner object."""
PLAN_FILE: Final = "plan.json"
ADDRESSES_FILE: Final = "addresses.json"
"""Name of a service -> its address, e.g. ``{"metrics": "tls:10.0.0.1:7001"}``."""
AUTHORITY_FILE: Final = "authority.pem"
"""The installation's authority, by which the helper knows the metrics service."""
TOKEN: Final = "/weft/token"  # noqa: S105 - a folder
"""Read-only, for the helper: ``TOKEN_FILE``."""
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
PRIVATE: Final = "/weft/private"
"""The helper's spool and records. The learner does not have it."""
CONTROL: Final = "/weft/control"
"""Written by the helper, read-only for the learner: ``go``, ``stop.json``, ``prepared.json``, ``stored``, a pipe."""
WAKE_FILE: Final = "wake"
"""In the control volume: a named pipe. The entry script reads its files at once when the helper writes to it."""
RUNS: Final = "/weft/runs"
"""Written by the entry script, read-only for the helper: ``<run>/start.json``, ``<run>/exit.json``, its output."""
ENDING_FILE: Final = "ending"
"""In the run's folder: the kubelet has sent SIGTERM to the learner's container."""
ENTRY: Final = "/weft/entry"
"""Read-only, for the learner: ``ENTRY_FILE``."""
ENTRY_FILE: Final = "entry.sh"
JOB: Final = "/weft/job"
"""JOB_STATE_DIR: the learner's own folders, named as on one machine (``learner_folder.JOB_FOLDERS``).

It is a folder of its volume, in both containers. The kubelet makes it before the helper starts.
"""
JOB_VOLUME: Final = "/weft/job-volume"
"""All of that volume, for the helper alone: what it fetches is made beside the learner's folder, and handed over by a
rename, which works within one mount only.
"""
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - the container's own
"""For temporary files of the learner, on one volume. Beside its volumes the learner's container is read-only."""
VOLUMES: Final = "/weft/volumes"
"""Read-only, in both containers: a folder for each claim of the job's inputs, named after it."""
RESULTS: Final = "/weft/results"
"""Written by the helper, which alone has it: the claim that the job's results are stored on."""
RESULTS_VOLUME: Final = "results"
"""Name of that claim's volume. Inputs of the same claim are read-only mounts of it."""

SDK: Final = f"{CONTROL}/sdk"
"""The part of the SDK that training code imports. The helper copies it here from its image."""

LEARNER_VARIABLE: Final = "WEFT_POD_LEARNER"
"""In both containers: the learner's name."""
RUN_VARIABLE: Final = "WEFT_POD_RUN"
"""In the helper's container: which start of the learner within the attempt the pod is."""
COMMAND_VARIABLE: Final = "WEFT_POD_COMMAND"
"""In the learner's container: the user's command, for ``/bin/sh -c``."""
STORE_TIMEOUT_VARIABLE: Final = "WEFT_POD_STORE_TIMEOUT_S"
"""In the learner's container: the entry script waits at most so long for ``stored`` after the command's end."""
GRACE_VARIABLE: Final = "WEFT_POD_GRACE_S"
"""In the learner's container: after a SIGTERM from the kubelet the command gets so long before SIGKILL."""
FILE_BYTES_VARIABLE: Final = "WEFT_POD_FILE_BYTES"
"""In the learner's container: the largest file that the command's processes can write, in bytes."""
PROBE_VARIABLE: Final = "WEFT_POD_PROBE"
"""In the helper's container of a probe pod, JSON ``{"urls": [...]}``: it tries the ways to the platform, and ends."""
HELPER_CONTAINER: Final = "helper"
LEARNER_CONTAINER: Final = "learner"
SCHEDULING_GATE: Final = "weft.dev/gang"
"""The scheduling gate of an inert pod."""

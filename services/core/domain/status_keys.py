"""The keys of the status store (etcd). Only this module builds and parses them (contracts.md, "Status store").

/jobs/<id>/attempt                 number of the current attempt
/jobs/<id>/guardian                holder and term, on the holder's lease
/jobs/<id>/plan/<nn>               progress of a provisioning step, for display
/jobs/<id>/learners/<role>-<rank>  status of a learner
/jobs/<id>/fence                   highest (attempt, term) that has acted on the job's pods
/jobs/<id>/stop                    the stop of the job's pods, for their helpers
/lcm/leader                        the leading dispatcher
/lcm/woken                         a life-cycle manager that does not lead has got a hint
/members/<service>/<id>            a live process of a service
"""

from __future__ import annotations

from typing import Final, NamedTuple

JOBS: Final = "/jobs/"
MEMBERS: Final = "/members/"
LEADER: Final = "/lcm/leader"
WOKEN: Final = "/lcm/woken"
_ATTEMPT: Final = "attempt"
_LEARNERS: Final = "learners"
_STOP: Final = "stop"


class JobKey(NamedTuple):
    """A parsed key below /jobs/. ``name`` is a learner's or a step's; empty for kinds without one."""

    job_id: str
    kind: str
    """``attempt``, ``guardian``, ``plan``, ``learners``, ``stop``, or any other text (keys of newer versions)."""
    name: str

    @property
    def is_attempt(self) -> bool:
        return self.kind == _ATTEMPT and not self.name

    @property
    def is_learner(self) -> bool:
        return self.kind == _LEARNERS and bool(self.name)

    @property
    def is_stop(self) -> bool:
        return self.kind == _STOP and not self.name


def parse_job_key(key: str) -> JobKey:
    """Splits a key below ``JOBS``. Never raises: a key without a kind has an empty one."""
    job_id, _, rest = key.removeprefix(JOBS).partition("/")
    kind, _, name = rest.partition("/")
    return JobKey(job_id, kind, name)


def job_prefix(job_id: str) -> str:
    """The prefix of all keys of a job."""
    return f"{JOBS}{job_id}/"


def attempt_key(job_id: str) -> str:
    """Holds the number of the current attempt."""
    return f"{JOBS}{job_id}/{_ATTEMPT}"


def guardian_key(job_id: str) -> str:
    """Holds the job's Guardian, on the lease of its process."""
    return f"{JOBS}{job_id}/guardian"


def plan_key(job_id: str, step: int) -> str:
    """Holds the progress of a provisioning step; ``step`` counts from 0."""
    return f"{JOBS}{job_id}/plan/{step:02d}"


def fence_key(job_id: str) -> str:
    """Holds the highest (attempt, term) that has acted on the job's pods (Kubernetes only)."""
    return f"{JOBS}{job_id}/fence"


def stop_key(job_id: str) -> str:
    """Holds the stop of an attempt for the helpers of its pods: ``{attempt, generation, cause, grace_ms, time}``."""
    return f"{JOBS}{job_id}/{_STOP}"


def learners_prefix(job_id: str) -> str:
    """The prefix of the statuses of a job's learners."""
    return f"{JOBS}{job_id}/{_LEARNERS}/"


def learner_key(job_id: str, name: str) -> str:
    """Holds a learner's status."""
    return f"{JOBS}{job_id}/{_LEARNERS}/{name}"


def member_key(service: str, member: str) -> str:
    """Exists while the process lives. An empty ``member`` gives the prefix of a service's processes."""
    return f"{MEMBERS}{service}/{member}"

"""Settings of the guardian service."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class GuardianSettings(Settings):
    max_guardians: int = Field(default=2_000, gt=0, description="The most Guardians in one process.")
    guarded_job: str = Field(
        default="",
        description="Id of the one job that this process guards; it ends when the job is released. Default: it guards "
        "every job, as one of a pool. Set by the lcm (`WEFT_KUBERNETES_GUARDIAN_LAUNCHER`).",
    )
    provision_timeout_s: float = Field(
        default=600,
        gt=0,
        description="An attempt that is not provisioned after so many seconds is rolled back and queued again.",
    )
    start_timeout_s: float = Field(
        default=86_400,
        gt=0,
        description="A provisioned attempt whose first process does not run after so many seconds fails, e.g. because"
        " a download never ends or a helper reports nothing.",
    )
    provision_tries: int = Field(
        default=5, gt=0, description="After so many roll-backs in a row the job fails with the last reason."
    )
    outage_backoff_s: float = Field(
        default=60,
        ge=1,
        description="Longest pause before another attempt of a job that an outage ended (a full disk, a package index"
        " or data store that is away), in seconds. The pauses begin with one second and double.",
    )
    peer_grace_s: float = Field(
        default=5,
        ge=0,
        description="The most seconds between SIGTERM and SIGKILL for learners whose peer failed: they cannot finish,"
        " and hold hardware. If a pod is evicted or deleted, it and its peers have their whole grace to save a"
        " checkpoint.",
    )
    observe_s: float = Field(default=5, gt=0, description="A job without events is reconciled so often, in seconds.")
    summary_timeout_s: float = Field(
        default=2,
        gt=0,
        description="How long the end of a job waits for its last metrics, in seconds: its hardware waits as well.",
    )

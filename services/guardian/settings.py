"""Settings of the guardian service."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class GuardianSettings(Settings):
    max_guardians: int = Field(default=2_000, gt=0, description="Guardians that one process hosts at most.")
    provision_timeout_s: float = Field(
        default=600, gt=0, description="An attempt that is not provisioned by then is rolled back and queued again."
    )
    start_timeout_s: float = Field(
        default=86_400, gt=0,
        description="A provisioned attempt whose first process does not run by then fails, with what its learners were"
        " at: data that never ends, a helper that never says anything.",
    )  # fmt: skip
    provision_tries: int = Field(
        default=5, gt=0, description="After so many roll-backs in a row the job fails, with the last reason."
    )
    peer_grace_s: float = Field(
        default=5, ge=0,
        description="Learners whose peer failed get at most this long: they cannot finish, and hold hardware.",
    )  # fmt: skip
    observe_s: float = Field(
        default=5, gt=0, description="How often the cluster is asked about a quiet job, without any hint, in seconds."
    )
    summary_timeout_s: float = Field(
        default=2, gt=0,
        description="How long a job's last metrics are waited for at its end, in seconds: its hardware waits as well.",
    )  # fmt: skip

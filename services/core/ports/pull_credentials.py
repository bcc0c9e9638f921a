"""Credentials with which a job's image is pulled: the cluster's adapter gets them where it needs them.

They are in no plan, record or message; the cluster's own Secret is their only copy.
"""

from __future__ import annotations

from typing import Protocol


class PullCredentials(Protocol):
    async def docker_config(self, job: str, *, attempt: int, term: int) -> str:
        """Returns the Docker config file, JSON text, with what the job's ``image_pull_secret`` has for its image.

        ``term``: of the job's Guardian. Raises StaleFence if the attempt is over or the job has a later Guardian,
        SecretInvalid if the secret is missing, damaged or without credentials of the image's registry, and
        SecretsUnavailable if it cannot be read now.
        """
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...

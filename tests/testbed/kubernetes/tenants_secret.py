"""The credentials of a job's image, as the api gives them to a Guardian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.core.domain.registry_credentials import docker_config

PASSWORD: Final = "canary-of-the-registry"


@dataclass
class TenantsSecret:
    """The secret ``registry`` of a tenant, with the credentials of the image's registry."""

    image: str
    password: str = PASSWORD
    calls: int = 0
    """How often the credentials were given."""

    async def docker_config(self, job: str, *, attempt: int, term: int) -> str:
        self.calls += 1
        return docker_config({"username": "ada", "password": self.password}, self.image)

    async def close(self) -> None:
        """Nothing is open."""

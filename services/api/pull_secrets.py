"""Gives the guardian the credentials with which a job's image is pulled, out of the tenant's secret.

What a Guardian may read is decided by the job document, not by the request: the secret that the job's spec names, of
the job's own tenant, for the registry of the job's image, while the attempt is the current one and its Guardian is the
one that has claimed the job (docs/adr/0008-secrets.md). The secret is read at each call, so a changed one counts for
the next attempt.
"""

from __future__ import annotations

import structlog

from services.core.domain.errors import (
    InvalidRequest,
    NotFound,
    SecretInvalid,
    SecretsUnavailable,
    StaleFence,
    Unavailable,
)
from services.core.domain.registry_credentials import HOW_TO_SET, docker_config
from services.core.domain.spec import parse_spec
from services.core.domain.status import ADMITTED
from services.core.ports.job_store import JobStore
from services.core.ports.secret_store import SecretStore
from services.core.use_cases.tenant_secrets import read_needed_secret

log = structlog.get_logger()


class PullSecrets:
    def __init__(self, jobs: JobStore, secrets: SecretStore) -> None:
        self._jobs, self._secrets = jobs, secrets

    async def docker_config(self, job_id: str, *, attempt: int, term: int) -> str:
        """A Docker config file, as JSON text, with the credentials of the image's registry.

        Raises StaleFence for an attempt that is over or a superseded Guardian, NotFound for a job that does not exist
        or names no secret, SecretInvalid for a secret that is missing, damaged or without these credentials, and
        SecretsUnavailable if a store is away.
        """
        try:
            job = await self._jobs.get(job_id)
        except Unavailable:
            raise SecretsUnavailable("the platform cannot read jobs now") from None
        if job is None:
            raise NotFound("there is no such job")
        if job.attempt.number != attempt or job.status not in ADMITTED:
            raise StaleFence(f"attempt {attempt} of job {job_id} is over")
        if job.guardian.term != term:
            raise StaleFence(f"job {job_id} has another Guardian (term {job.guardian.term})")
        spec = parse_spec(job.spec)
        name, image = spec.image_pull_secret, spec.image
        if name is None or image is None:
            raise NotFound("the job names no secret to pull its image with")
        config = await self._read(job.tenant, name, image)
        log.info("pull_credentials.given", job=job_id, tenant=job.tenant, secret=name, attempt=attempt)
        return config

    async def _read(self, tenant: str, name: str, image: str) -> str:
        how = f"set it with {HOW_TO_SET.format(name=name)}, and submit the job again"
        try:
            secret = await read_needed_secret(self._secrets, tenant, name)
        except SecretInvalid as invalid:
            raise SecretInvalid(f"image_pull_secret: {invalid.message}; {how}") from None
        try:
            return docker_config(secret.values, image)
        except InvalidRequest as wrong:
            raise SecretInvalid(f"image_pull_secret: the secret '{name}' {wrong.message}; {how}") from None

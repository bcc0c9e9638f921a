"""Signs URLs by which a learner's helper reads the job's data from the tenant's own S3 store.

The tenant's secret stays here: the helper gets a URL for one object, or for one page of the list of the input's
objects, for some minutes (docs/adr/0008-secrets.md). What a helper may read is decided by the job document and by the
learner's own token, not by the helper nor by the metrics service, which hands the request on. The secret is read at
each call, so a changed one counts at once. Signing sends nothing: the helper checks the store's address against what
the operator allows, and connects.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.core.adapters.s3.bucket import Bucket, Credentials
from services.core.adapters.s3.signing import Signer
from services.core.domain.errors import PermissionDenied, SecretInvalid, SecretsUnavailable, StaleFence, Unavailable
from services.core.domain.s3_data import (
    HOW_TO_SET,
    REGION,
    SESSION_TOKEN,
    S3Objects,
    s3_location,
    s3_objects,
    wrong_credentials,
)
from services.core.domain.spec import parse_spec
from services.core.domain.status import ADMITTED
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock
from services.core.ports.job_store import JobStore
from services.core.ports.secret_store import SecretStore
from services.core.use_cases.tenant_secrets import read_needed_secret

_KEPT: Final = 1_000
"""Inputs whose data store is cached; each takes about 500 bytes."""
_CURRENT_S: Final = 5.0
"""So long the job document is not read again: an input of 100,000 objects makes as many calls."""
_PAGE: Final = "1000"
"""Objects in a page of a list."""


class _Source(NamedTuple):
    """Where the objects of an input are, and the name of the secret that reads them."""

    objects: S3Objects
    region: str
    secret: str
    until: float
    """Boot time at which the job document is read again."""


class DataUrls:
    def __init__(self, jobs: JobStore, secrets: SecretStore, clock: Clock) -> None:
        self._jobs, self._secrets, self._clock = jobs, secrets, clock
        self._sources: dict[tuple[str, int, str], _Source] = {}

    async def sign(self, learner: LearnerIdentity, *, mount: str, key: str, after: str) -> str:
        """A URL for the object ``key``, or without one for the page of the list after the token ``after``.

        Raises PermissionDenied for what the job's inputs do not name and for a secret that is missing, damaged or
        lacks a key; StaleFence for an attempt that is over; Unavailable if a store is away.
        """
        source = await self._source(learner, mount)
        objects = source.objects
        if (key and not objects.has(key)) or (not key and not objects.is_folder):
            raise PermissionDenied("this object is in no input of the job")
        credentials = await self._credentials(learner.tenant, source.secret)
        signer = Signer(Bucket(objects.bucket, "", objects.endpoint, source.region, credentials))
        if key:
            return signer.sign("GET", key, {})
        query = {"list-type": "2", "prefix": objects.key, "max-keys": _PAGE}
        return signer.sign("GET", "", {**query, "continuation-token": after} if after else query)

    async def _source(self, learner: LearnerIdentity, mount: str) -> _Source:
        place = (learner.job, learner.attempt, mount)
        known = self._sources.pop(place, None)
        now = self._clock.boottime()
        if known is None or known.until <= now:
            known = await self._read_source(learner, mount, now + _CURRENT_S)
        self._sources[place] = known  # last: the oldest are dropped first
        while len(self._sources) > _KEPT:
            del self._sources[next(iter(self._sources))]
        return known

    async def _read_source(self, learner: LearnerIdentity, mount: str, until: float) -> _Source:
        """What the job document says of the input. Raises PermissionDenied if it has none of type s3 there."""
        job = await self._jobs.get(learner.job)
        if job is not None and job.tenant == learner.tenant:
            if job.attempt.number != learner.attempt or job.status not in ADMITTED:
                raise StaleFence(f"attempt {learner.attempt} of job {learner.job} is over")
            spec = parse_spec(job.spec)
            stores = {store.id: store for store in spec.data_stores}
            for entry in spec.inputs:
                store = stores[entry.store]
                if (entry.mount or entry.store) == mount and store.type == "s3":
                    location = s3_location(store.url or "", store.endpoint, store.region)
                    objects = s3_objects(location, entry.path)
                    return _Source(objects, store.region or REGION, store.secret or "", until)
        raise PermissionDenied("the job has no input of type s3 in this folder")

    async def _credentials(self, tenant: str, name: str) -> Credentials:
        how = f"set it with {HOW_TO_SET.format(name=name)}, and submit the job again"
        try:
            secret = await read_needed_secret(self._secrets, tenant, name)
        except SecretInvalid as invalid:
            raise PermissionDenied(f"{invalid.message}; {how}") from None
        except SecretsUnavailable as away:  # helpers of an older version do not know this error
            raise Unavailable(away.message) from None
        if wrong := wrong_credentials(secret.values):
            raise PermissionDenied(f"the secret '{name}' {wrong} any more; {how}")
        values = secret.values
        return Credentials(values["access_key"], values["secret_key"], values.get(SESSION_TOKEN, ""))

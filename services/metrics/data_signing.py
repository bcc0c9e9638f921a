"""Gets URLs by which a learner's helper reads the job's data from the tenant's own S3 store.

The api makes them: it alone has the key that opens tenants' secrets (docs/adr/0008-secrets.md). It decides by the
learner's token, which is handed on, so this service can get nothing for learners that did not call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from services.core.adapters.rpc.client import Channels, Credential, translating
from services.core.domain.errors import Unauthenticated, Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.core.gen.weft.v1 import data_urls_pb2, data_urls_pb2_grpc
from services.core.runtime.address import Address
from services.metrics.signing import Signing

_CALL_S: Final = 10.0
"""The helper asks again after it."""
log = structlog.get_logger()


class DataSigning:
    def __init__(self, signing: Signing, address: Callable[[], Address], credential: Credential) -> None:
        """``address``: of the api for other services, read for each call: a restarted platform may have moved.

        ``credential``: for calls of the api.
        """
        self._signing, self._address = signing, address
        self._channels = Channels(credential)

    async def url(self, learner: LearnerIdentity, token: str, *, mount: str, key: str, after: str) -> str:
        """A URL for the object ``key``, or without one for the page of the list after the token ``after``.

        ``token``: the learner's. Raises PermissionDenied for what the job's inputs do not name and for a secret that
        cannot be used; StaleFence if the attempt is not current; Unavailable if the api or a store is away.
        """
        await self._signing.authorize(learner, [])
        stub = data_urls_pb2_grpc.DataUrlsStub(self._channels.to(self._address()))
        request = data_urls_pb2.SignInputRequest(learner=token, mount=mount, key=key, after=after)
        try:
            with translating("the api"):
                return str((await stub.SignInput(request, timeout=_CALL_S)).url)
        except Unauthenticated as refused:  # keys or clocks of the services: no fault of the job, which waits
            log.warning("input.not_signed", job=learner.job, why=refused.message)
            raise Unavailable("the api does not accept the metrics service's call") from None

    async def close(self) -> None:
        await self._channels.close()

"""Gets the credentials of jobs' images from the api, which alone has the key that opens tenants' secrets.

See docs/adr/0008-secrets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from services.core.adapters.rpc.client import Channels, Credential, translating
from services.core.domain.errors import Internal, PermissionDenied, SecretsUnavailable, Unauthenticated, Unavailable
from services.core.gen.weft.v1 import pull_secrets_pb2, pull_secrets_pb2_grpc
from services.core.runtime.address import Address

_CALL_S: Final = 10.0
log = structlog.get_logger()


class ApiPullCredentials:
    def __init__(self, address: Callable[[], Address], credential: Credential) -> None:
        """``address``: of the api for other services, read for each call: a restarted platform may have moved.

        ``credential``: for calls of the api.
        """
        self._address = address
        self._channels = Channels(credential)

    async def docker_config(self, job: str, *, attempt: int, term: int) -> str:
        """See ``services.core.ports.pull_credentials``. No refusal of the service itself is a fault of the job."""
        stub = pull_secrets_pb2_grpc.PullSecretsStub(self._channels.to(self._address()))
        request = pull_secrets_pb2.DockerConfigRequest(job=job, attempt=attempt, term=term)
        try:
            with translating("the api"):
                return str((await stub.DockerConfig(request, timeout=_CALL_S)).config)
        except SecretsUnavailable:
            raise
        except (Unavailable, Unauthenticated, PermissionDenied, Internal) as refused:
            log.warning("pull_credentials.not_read", job=job, why=refused.message)
            raise SecretsUnavailable("the api does not give the credentials of the image now") from None

    async def close(self) -> None:
        await self._channels.close()

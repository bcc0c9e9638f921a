"""The api's gRPC server for other services, at the address ``api-inner``: URLs of inputs, credentials of images."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from services.api.data_urls import DataUrls
from services.api.pull_secrets import PullSecrets
from services.core.adapters.rpc.server import Guard, VerifiesLearners, serve
from services.core.gen.weft.v1 import data_urls_pb2 as pb
from services.core.gen.weft.v1 import data_urls_pb2_grpc, pull_secrets_pb2, pull_secrets_pb2_grpc
from services.core.runtime.address import Address

_SHUTDOWN_S: Final = 2.0
"""For calls that run; each takes milliseconds."""


class DataUrlsServicer(data_urls_pb2_grpc.DataUrlsServicer):
    """Two proofs are needed: that the metrics service calls, and the token of the learner for which it calls."""

    def __init__(self, urls: DataUrls, learners: VerifiesLearners) -> None:
        self._urls, self._learners = urls, learners

    async def SignInput(self, request: pb.SignInputRequest, context: Any) -> pb.SignInputReply:
        learner = self._learners.verify(request.learner)
        url = await self._urls.sign(learner, mount=request.mount, key=request.key, after=request.after)
        return pb.SignInputReply(url=url)


class PullSecretsServicer(pull_secrets_pb2_grpc.PullSecretsServicer):
    def __init__(self, secrets: PullSecrets) -> None:
        self._secrets = secrets

    async def DockerConfig(
        self, request: pull_secrets_pb2.DockerConfigRequest, context: Any
    ) -> pull_secrets_pb2.DockerConfigReply:
        config = await self._secrets.docker_config(request.job, attempt=request.attempt, term=request.term)
        return pull_secrets_pb2.DockerConfigReply(config=config)


@asynccontextmanager
async def serving_inner(
    address: Address, guard: Guard, urls: DataUrls, secrets: PullSecrets, learners: VerifiesLearners
) -> AsyncGenerator[None]:
    """Within it the server serves. Raises WeftError if the address is taken or unprotected."""

    def register(server: grpc.aio.Server) -> None:
        data_urls_pb2_grpc.add_DataUrlsServicer_to_server(DataUrlsServicer(urls, learners), server)
        pull_secrets_pb2_grpc.add_PullSecretsServicer_to_server(PullSecretsServicer(secrets), server)

    server = await serve(address, guard, register)
    try:
        yield
    finally:
        await server.stop(_SHUTDOWN_S)

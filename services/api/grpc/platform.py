"""weft.v1.Platform and weft.v1.Keys."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from services.api import use_cases
from services.api.grpc.auth_interceptor import PUBLIC, current, needs
from services.api.grpc.messages import made, params, replied
from services.api.params import KeyParams, TenantParams
from services.api.services import ApiServices
from services.core.gen.weft.v1 import platform_pb2, platform_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Platform(platform_pb2_grpc.PlatformServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs(PUBLIC)
    async def GetVersion(self, request: Empty, context: Context) -> platform_pb2.PlatformVersion:
        return made(platform_pb2.PlatformVersion, use_cases.get_version())

    @needs("platform:read")
    async def GetQueue(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.GetQueueReply:
        found = await use_cases.get_queue(self._services, current().principal, params(TenantParams, request).tenant)
        return made(platform_pb2.GetQueueReply, found)

    @needs("platform:read")
    async def GetCluster(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.ClusterState:
        found = await use_cases.get_cluster(self._services, current().principal, params(TenantParams, request).tenant)
        return made(platform_pb2.ClusterState, found)

    @needs("platform:read")
    async def GetFrameworks(self, request: Empty, context: Context) -> platform_pb2.GetFrameworksReply:
        return made(platform_pb2.GetFrameworksReply, use_cases.get_frameworks())

    @needs("platform:read")
    async def GetSizes(self, request: Empty, context: Context) -> platform_pb2.GetSizesReply:
        return made(platform_pb2.GetSizesReply, use_cases.get_sizes())

    @needs("platform:operate")
    async def GetQuarantine(self, request: Empty, context: Context) -> platform_pb2.GetQuarantineReply:
        return made(platform_pb2.GetQuarantineReply, await use_cases.get_quarantine(self._services))


class Keys(platform_pb2_grpc.KeysServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs("platform:read")
    async def WhoAmI(self, request: Empty, context: Context) -> platform_pb2.KeyHolder:
        return made(platform_pb2.KeyHolder, use_cases.whoami(current().principal))

    @needs("keys:read")
    async def ListKeys(self, request: Empty, context: Context) -> platform_pb2.ListKeysReply:
        return made(platform_pb2.ListKeysReply, await use_cases.list_keys(self._services, current().principal))

    @needs("keys:write")
    async def CreateKey(self, request: platform_pb2.CreateKeyRequest, context: Context) -> platform_pb2.ApiKey:
        call = current()
        done = await use_cases.create_key(
            self._services, call.principal, params(KeyParams, request, at=""), key=call.key
        )
        return replied(platform_pb2.ApiKey, done, context)

    @needs("keys:write")
    async def RevokeKey(self, request: platform_pb2.RevokeKeyRequest, context: Context) -> Empty:
        await use_cases.revoke_key(self._services, current().principal, request.key_id)
        return Empty()

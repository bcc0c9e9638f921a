"""weft.v1.Platform and weft.v1.Keys."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from services.api.grpc.auth_interceptor import PUBLIC, current, needs
from services.api.grpc.messages import changed, message, params
from services.api.services import ApiServices
from services.api.use_cases import keys, platform
from services.core.gen.weft.v1 import platform_pb2, platform_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Platform(platform_pb2_grpc.PlatformServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs(PUBLIC)
    async def GetVersion(self, request: Empty, context: Context) -> platform_pb2.PlatformVersion:
        return message(platform_pb2.PlatformVersion, platform.get_version())

    @needs("platform:read")
    async def GetQueue(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.GetQueueReply:
        wanted = params(platform.TenantParams, request)
        return message(
            platform_pb2.GetQueueReply, await platform.get_queue(self._services, current().principal, wanted)
        )

    @needs("platform:read")
    async def GetCluster(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.ClusterState:
        wanted = params(platform.TenantParams, request)
        return message(
            platform_pb2.ClusterState, await platform.get_cluster(self._services, current().principal, wanted)
        )

    @needs("platform:read")
    async def GetStorage(self, request: platform_pb2.GetStorageRequest, context: Context) -> platform_pb2.TenantStorage:
        wanted = params(platform.StorageParams, request)
        return message(
            platform_pb2.TenantStorage, await platform.get_storage(self._services, current().principal, wanted)
        )

    @needs("platform:read")
    async def GetFrameworks(self, request: Empty, context: Context) -> platform_pb2.GetFrameworksReply:
        return message(platform_pb2.GetFrameworksReply, platform.get_frameworks(self._services))

    @needs("platform:read")
    async def GetSizes(self, request: Empty, context: Context) -> platform_pb2.GetSizesReply:
        return message(platform_pb2.GetSizesReply, platform.get_sizes())

    @needs("platform:operate")
    async def GetQuarantine(self, request: Empty, context: Context) -> platform_pb2.GetQuarantineReply:
        return message(platform_pb2.GetQuarantineReply, await platform.get_quarantine(self._services))


class Keys(platform_pb2_grpc.KeysServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs("platform:read")
    async def WhoAmI(self, request: Empty, context: Context) -> platform_pb2.KeyHolder:
        return message(platform_pb2.KeyHolder, keys.whoami(current().principal))

    @needs("keys:read")
    async def ListKeys(self, request: Empty, context: Context) -> platform_pb2.ListKeysReply:
        return message(platform_pb2.ListKeysReply, await keys.list_keys(self._services, current().principal))

    @needs("keys:write")
    async def CreateKey(self, request: platform_pb2.CreateKeyRequest, context: Context) -> platform_pb2.ApiKey:
        call = current()
        wanted = params(keys.KeyParams, request, at="")
        return changed(
            platform_pb2.ApiKey, await keys.create_key(self._services, call.principal, wanted, key=call.key), context
        )

    @needs("keys:write")
    async def RevokeKey(self, request: platform_pb2.RevokeKeyRequest, context: Context) -> Empty:
        await keys.revoke_key(self._services, current().principal, request.key_id)
        return Empty()

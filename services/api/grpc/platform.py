"""weft.v1.Platform and weft.v1.Keys."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from services.api import actions
from services.api.asked import KeyAsked, OfTenant
from services.api.gateway import Gateway
from services.api.grpc.gate import PUBLIC, current, needs
from services.api.grpc.messages import asked, made, replied
from services.core.gen.weft.v1 import platform_pb2, platform_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Platform(platform_pb2_grpc.PlatformServicer):
    def __init__(self, uses: Gateway) -> None:
        self._uses = uses

    @needs(PUBLIC)
    async def GetVersion(self, request: Empty, context: Context) -> platform_pb2.PlatformVersion:
        return made(platform_pb2.PlatformVersion, actions.get_version())

    @needs("platform:read")
    async def GetQueue(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.GetQueueReply:
        found = await actions.get_queue(self._uses, current().who, asked(OfTenant, request).tenant)
        return made(platform_pb2.GetQueueReply, found)

    @needs("platform:read")
    async def GetCluster(self, request: platform_pb2.OfTenantRequest, context: Context) -> platform_pb2.ClusterState:
        found = await actions.get_cluster(self._uses, current().who, asked(OfTenant, request).tenant)
        return made(platform_pb2.ClusterState, found)

    @needs("platform:read")
    async def GetFrameworks(self, request: Empty, context: Context) -> platform_pb2.GetFrameworksReply:
        return made(platform_pb2.GetFrameworksReply, actions.get_frameworks())

    @needs("platform:read")
    async def GetSizes(self, request: Empty, context: Context) -> platform_pb2.GetSizesReply:
        return made(platform_pb2.GetSizesReply, actions.get_sizes())

    @needs("platform:operate")
    async def GetQuarantine(self, request: Empty, context: Context) -> platform_pb2.GetQuarantineReply:
        return made(platform_pb2.GetQuarantineReply, await actions.get_quarantine(self._uses))


class Keys(platform_pb2_grpc.KeysServicer):
    def __init__(self, uses: Gateway) -> None:
        self._uses = uses

    @needs("platform:read")
    async def WhoAmI(self, request: Empty, context: Context) -> platform_pb2.KeyHolder:
        return made(platform_pb2.KeyHolder, actions.whoami(current().who))

    @needs("keys:read")
    async def ListKeys(self, request: Empty, context: Context) -> platform_pb2.ListKeysReply:
        return made(platform_pb2.ListKeysReply, await actions.list_keys(self._uses, current().who))

    @needs("keys:write")
    async def CreateKey(self, request: platform_pb2.CreateKeyRequest, context: Context) -> platform_pb2.ApiKey:
        call = current()
        done = await actions.create_key(self._uses, call.who, asked(KeyAsked, request, at=""), key=call.key)
        return replied(platform_pb2.ApiKey, done, context)

    @needs("keys:write")
    async def RevokeKey(self, request: platform_pb2.RevokeKeyRequest, context: Context) -> Empty:
        await actions.revoke_key(self._uses, current().who, request.key_id)
        return Empty()

"""weft.v1.Platform, weft.v1.Keys and weft.v1.Secrets."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from services.api.grpc.auth_interceptor import PUBLIC, current, needs
from services.api.grpc.messages import changed, message, params
from services.api.services import ApiServices
from services.api.use_cases import keys, platform, tenant_secrets, usage
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
    async def GetUsage(self, request: platform_pb2.GetUsageRequest, context: Context) -> platform_pb2.GetUsageReply:
        wanted = params(usage.UsageParams, request)
        return message(platform_pb2.GetUsageReply, await usage.get_usage(self._services, current().principal, wanted))

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


class Secrets(platform_pb2_grpc.SecretsServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs("secrets:read")
    async def ListSecrets(
        self, request: platform_pb2.ListSecretsRequest, context: Context
    ) -> platform_pb2.ListSecretsReply:
        wanted = params(tenant_secrets.OfTenantParams, request)
        return message(
            platform_pb2.ListSecretsReply,
            await tenant_secrets.list_secrets(self._services, current().principal, wanted),
        )

    @needs("secrets:write")
    async def SetSecret(self, request: platform_pb2.SetSecretRequest, context: Context) -> platform_pb2.TenantSecret:
        wanted = params(tenant_secrets.OfTenantParams, platform_pb2.ListSecretsRequest(tenant=_tenant(request)))
        secret = params(tenant_secrets.SecretParams, platform_pb2.SetSecretRequest(values=request.values), at="")
        return message(
            platform_pb2.TenantSecret,
            await tenant_secrets.set_secret(self._services, current().principal, request.name, wanted, secret),
        )

    @needs("secrets:write")
    async def DeleteSecret(self, request: platform_pb2.DeleteSecretRequest, context: Context) -> Empty:
        wanted = params(tenant_secrets.OfTenantParams, platform_pb2.ListSecretsRequest(tenant=_tenant(request)))
        await tenant_secrets.delete_secret(self._services, current().principal, request.name, wanted)
        return Empty()


def _tenant(request: platform_pb2.SetSecretRequest | platform_pb2.DeleteSecretRequest) -> str | None:
    return request.tenant if request.HasField("tenant") else None

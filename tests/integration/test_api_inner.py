"""The api's address for other services: who gets URLs of tenants' own stores and credentials of images there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.data_urls import DataUrls
from services.api.grpc.inner import serving_inner
from services.api.pull_secrets import PullSecrets
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.identity import LearnerTokenVerifier
from services.core.adapters.rpc.client import Credential, connect, translating
from services.core.adapters.rpc.pull_credentials import ApiPullCredentials
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import (
    PermissionDenied,
    SecretInvalid,
    SecretsUnavailable,
    StaleFence,
    Unauthenticated,
    Unavailable,
    WeftError,
)
from services.core.domain.job import admitted
from services.core.domain.service_access import SERVICES
from services.core.domain.status_keys import attempt_key
from services.core.domain.tokens import LearnerIdentity
from services.core.gen.weft.v1 import data_urls_pb2, data_urls_pb2_grpc, pull_secrets_pb2, pull_secrets_pb2_grpc
from services.core.runtime.address import Address
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, stored_name
from services.metrics.attempts import Attempts
from services.metrics.data_signing import DataSigning
from services.metrics.signing import Signing
from tests.documents import NOW, a_job
from tests.testbed.identities import SIGNER, credential, guard, learner_credential, public_keys
from tests.testbed.memory import MemoryJobStore
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.server import free_address
from tests.waiting import HANG_S

STORE = {"id": "s", "type": "s3", "url": "s3://photos/set", "endpoint": "https://s3.example.org", "secret": "s3"}
SPEC = {
    "name": "n",
    "command": "true",
    "data_stores": [STORE],
    "inputs": [{"store": "s"}],
    "image": "registry.example.org/train:1",
    "image_pull_secret": "registry",
}
TERM = 3


class Inner:
    def __init__(self, address: Address, learner: LearnerIdentity, secrets: FolderSecretStore) -> None:
        self.address, self.learner, self.secrets = address, learner, secrets
        self.token = SIGNER.mint(learner)

    async def sign(self, caller: Credential, token: str) -> str:
        channel = connect(self.address, caller)
        request = data_urls_pb2.SignInputRequest(learner=token, mount="s", key="set/a")
        try:
            with translating():
                return str((await data_urls_pb2_grpc.DataUrlsStub(channel).SignInput(request, timeout=HANG_S)).url)
        finally:
            await channel.close()

    async def docker_config(self, caller: Credential, *, attempt: int = 1, address: Address | None = None) -> str:
        credentials = ApiPullCredentials(lambda: address or self.address, caller)
        try:
            return await credentials.docker_config(self.learner.job, attempt=attempt, term=TERM)
        finally:
            await credentials.close()


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[Inner]:
    jobs, secrets = MemoryJobStore(), FolderSecretStore(tmp_path)
    job = admitted(a_job(spec=SPEC), placement={"worker-0": "local"}, dispatcher_term=1, now=NOW)
    await jobs.insert(replace(job, guardian=replace(job.guardian, term=TERM)))
    secret = StoredSecret(created=1, changed=1, changed_by="", values={"access_key": "a", "secret_key": "b"})
    await secrets.put(stored_name("acme", "s3"), encoded(secret))
    login = StoredSecret(created=1, changed=1, changed_by="", values={"username": "ada", "password": "canary"})
    await secrets.put(stored_name("acme", "registry"), encoded(login))
    address = Address(free_address())
    urls, pull = DataUrls(jobs, secrets, SystemClock()), PullSecrets(jobs, secrets)
    async with serving_inner(address, guard("api"), urls, pull, LearnerTokenVerifier(public_keys())):
        yield Inner(address, LearnerIdentity(job.id, "acme", 1, "worker", 0, "worker-0"), secrets)


async def test_metrics_service_gets_a_url_with_the_token_of_a_learner(inner: Inner) -> None:
    url = await inner.sign(credential("metrics", "api"), inner.token)
    assert url.startswith("https://s3.example.org/photos/set/a?")


async def test_metrics_service_gets_no_url_without_the_token_of_a_learner(inner: Inner) -> None:
    own = credential("metrics", "api").authorization().removeprefix("Bearer ")
    forged = f"{inner.token[:-4]}AAAA"
    for token in ("", "x", own, forged):
        with pytest.raises(Unauthenticated):
            await inner.sign(credential("metrics", "api"), token)


@pytest.mark.parametrize("caller", sorted(SERVICES - {"metrics"}))
async def test_no_other_service_gets_a_url(inner: Inner, caller: str) -> None:
    with pytest.raises(PermissionDenied, match=f"the service {caller} may not call"):
        await inner.sign(credential(caller, "api"), inner.token)


async def test_helper_gets_no_url_from_the_api_itself(inner: Inner) -> None:
    with pytest.raises(WeftError, match="needs the token of a service"):
        await inner.sign(learner_credential(inner.learner), inner.token)


async def test_job_waits_while_the_api_is_away_or_refuses_the_metrics_service(inner: Inner) -> None:
    status = MemoryStatusStore()
    await status.put(attempt_key(inner.learner.job), json.dumps({"attempt": 1, "learners": 1}))
    signing = Signing(Attempts(status), None)
    place = {"mount": "s", "key": "set/a", "after": ""}
    for address, audience, why in (
        (inner.address, "lcm", "the api does not accept"),
        (Address(free_address()), "api", "the api does not answer"),
    ):
        data = DataSigning(signing, lambda address=address: address, credential("metrics", audience))  # type: ignore[misc]
        try:
            with pytest.raises(Unavailable, match=why):
                await data.url(inner.learner, inner.token, **place)
        finally:
            await data.close()


async def test_guardian_gets_the_credentials_of_an_image_and_the_reason_of_a_refusal(inner: Inner) -> None:
    guardian = credential("guardian", "api")
    config = json.loads(await inner.docker_config(guardian))
    assert config["auths"]["registry.example.org"]["password"] == "canary"
    with pytest.raises(StaleFence):
        await inner.docker_config(guardian, attempt=2)
    await inner.secrets.delete(stored_name("acme", "registry"))
    with pytest.raises(SecretInvalid, match="there is no secret 'registry' any more"):
        await inner.docker_config(guardian)


@pytest.mark.parametrize("caller", sorted(SERVICES - {"guardian"}))
async def test_no_other_service_gets_credentials_of_images(inner: Inner, caller: str) -> None:
    request = pull_secrets_pb2.DockerConfigRequest(job=inner.learner.job, attempt=1, term=TERM)
    channel = connect(inner.address, credential(caller, "api"))
    try:
        with pytest.raises(PermissionDenied, match=f"the service {caller} may not call"), translating():
            await pull_secrets_pb2_grpc.PullSecretsStub(channel).DockerConfig(request, timeout=HANG_S)
    finally:
        await channel.close()


async def test_job_waits_while_the_api_is_away_or_refuses_the_guardian(inner: Inner) -> None:
    for caller, address in (
        (credential("guardian", "api"), Address(free_address())),
        (credential("guardian", "lcm"), None),
        (credential("metrics", "api"), None),
    ):
        with pytest.raises(SecretsUnavailable, match="the api does not give the credentials of the image now"):
            await inner.docker_config(caller, address=address)

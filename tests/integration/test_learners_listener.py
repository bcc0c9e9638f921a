"""The port of the metrics service for pods: TLS by which helpers know the service, learners' tokens and no others."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.core.adapters.certificates import issue
from services.core.adapters.identity import LearnerTokenVerifier
from services.core.adapters.rpc.client import connect, translating
from services.core.adapters.rpc.server import Guard, serve
from services.core.domain.errors import Unauthenticated, Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.core.gen.weft.v1.metrics_pb2 import HelloReply, HelloRequest
from services.core.gen.weft.v1.metrics_pb2_grpc import IntakeStub, add_IntakeServicer_to_server
from services.core.runtime.address import TLS, Address, TlsAuthority, TlsFiles
from services.helper.metrics_client import IntakeClient
from tests.testbed.identities import SIGNER, credential, public_keys
from tests.testbed.intake import Intake
from tests.testbed.server import free_address, free_port
from tests.waiting import HANG_S, until

TOKEN = SIGNER.mint(LearnerIdentity(job="j", tenant="t", attempt=1, role="worker", rank=0, name="worker-0"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Listener:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def client(self, *, host: str = "127.0.0.1", authority: Path | None = None, token: str = TOKEN) -> IntakeClient:
        """As the helper of a pod makes it."""
        addresses = self.folder / f"{host}.json"
        addresses.write_text(json.dumps({"metrics": f"{TLS}{host}:{self.port}"}))
        return IntakeClient(addresses, token, TlsAuthority(authority or self.folder / "tls" / "authority.pem"))


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncGenerator[Listener]:
    """With a certificate for this machine's loopback names."""
    issue(tmp_path / "tls", ["metrics-learners"], datetime.now(UTC))
    made = Listener(tmp_path, free_port())
    files = TlsFiles.of(tmp_path / "tls", "metrics-learners")
    only_learners = Guard("metrics", None, LearnerTokenVerifier(public_keys(), None))
    intake = Intake(free_address())
    server = await serve(
        Address(f"{TLS}127.0.0.1:{made.port}", files),
        only_learners,
        lambda server: add_IntakeServicer_to_server(intake, server),
        client_certificates=False,
    )
    yield made
    await server.stop(0)


async def hello(client: IntakeClient) -> HelloReply:
    """The answer. A helper calls again where there is none after five seconds."""

    async def answered() -> HelloReply | None:
        with suppress(Unavailable):
            return await client.hello()
        return None

    reply = await until(answered)
    assert reply is not None
    return reply


async def test_helper_with_a_token_and_the_authority_is_served_without_a_certificate_of_its_own(
    listener: Listener,
) -> None:
    client = listener.client()
    assert (await hello(client)).current
    await client.close()


async def test_call_with_a_forged_learner_token_is_refused(listener: Listener) -> None:
    client = listener.client(token=f"{TOKEN[:-4]}AAAA")
    with pytest.raises(Unauthenticated):
        await hello(client)
    await client.close()


async def test_token_of_a_service_opens_nothing_there(listener: Listener) -> None:
    address = Address(f"{TLS}127.0.0.1:{listener.port}", TlsAuthority(listener.folder / "tls" / "authority.pem"))
    channel = connect(address, credential("api", "metrics"))
    with pytest.raises(Unauthenticated), translating():
        await IntakeStub(channel).Hello(HelloRequest(protocol=1), timeout=HANG_S)
    await channel.close()


async def test_helper_refuses_a_service_with_the_certificate_of_another_authority(
    listener: Listener, tmp_path: Path
) -> None:
    issue(tmp_path / "other", ["metrics-learners"], datetime.now(UTC))
    client = listener.client(authority=tmp_path / "other" / "authority.pem")
    with pytest.raises(Unavailable):
        await client.hello()
    await client.close()


async def test_helper_refuses_a_certificate_for_another_name(listener: Listener) -> None:
    client = listener.client(host="127.0.0.2")  # the same machine, and not in the certificate
    with pytest.raises(Unavailable):
        await client.hello()
    await client.close()


def test_certificate_is_made_anew_when_the_advertised_host_changes(tmp_path: Path) -> None:
    assert issue(tmp_path, ["metrics-learners"], NOW, hosts={"metrics-learners": "10.0.0.5"}) == ["metrics-learners"]
    assert issue(tmp_path, ["metrics-learners"], NOW, hosts={"metrics-learners": "10.0.0.5"}) == []
    assert issue(tmp_path, ["metrics-learners"], NOW, hosts={"metrics-learners": "gpu.example"}) == ["metrics-learners"]

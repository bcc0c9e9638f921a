"""The settings that choose adapters: an unknown name ends the service at its start, with the names that exist."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from services.core.bootstrap import wiring
from services.core.bootstrap.kubernetes_offers import devices, library_images
from services.core.domain.errors import InvalidRequest, Unauthenticated, Unavailable
from services.core.domain.service_access import SERVICES
from services.core.domain.tokens import LearnerIdentity
from services.core.frameworks.images import LibraryImages
from services.core.ports.object_urls import ObjectRequest
from services.core.runtime.settings import Settings
from services.local.pods import settings_of_cluster
from tests.testbed.identities import identity
from tests.testbed.memory.status_store import MemoryStatusStore


def test_unknown_cluster_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"WEFT_CLUSTER=slurm .*; there are: local, kubernetes"):
        wiring.cluster(Settings(home=tmp_path, cluster="slurm"), identity("lcm"), MemoryStatusStore())


def test_kubernetes_without_the_helpers_image_is_refused_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="WEFT_KUBERNETES_HELPER_IMAGE"):
        wiring.cluster(Settings(home=tmp_path, cluster="kubernetes"), identity("lcm"), MemoryStatusStore())


async def test_kubernetes_is_chosen_by_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KUBERNETES_HELPER_IMAGE", "registry.example/helper:1")
    monkeypatch.setenv("WEFT_KUBERNETES_KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("WEFT_KUBERNETES_METRICS_ADDRESS", "tls:10.0.0.1:7001")
    cluster = wiring.cluster(Settings(home=tmp_path, cluster="kubernetes"), identity("lcm"), MemoryStatusStore())
    with pytest.raises(Unavailable, match=r"cannot be read from .*none"):
        await cluster.ping()
    await cluster.close()


def test_library_images_are_known_to_services_that_have_settings_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pods = Settings(home=tmp_path, cluster="kubernetes")
    assert library_images(in_pods) is None
    monkeypatch.setenv("WEFT_KUBERNETES_HELPER_IMAGE", "registry.example/helper:1")
    monkeypatch.setenv("WEFT_KUBERNETES_FRAMEWORK_REGISTRY", "registry.example/team")
    monkeypatch.setenv("WEFT_KUBERNETES_FRAMEWORK_IMAGES", '{"jax-0.10": "mine/jax:1"}')
    assert library_images(in_pods) == LibraryImages(registry="registry.example/team", named={"jax-0.10": "mine/jax:1"})
    assert library_images(Settings(home=tmp_path)) is None


def test_devices_are_known_to_services_that_have_settings_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pods = Settings(home=tmp_path, cluster="kubernetes")
    assert devices(in_pods) is None
    monkeypatch.setenv("WEFT_KUBERNETES_HELPER_IMAGE", "registry.example/helper:1")
    assert devices(in_pods) == ()
    monkeypatch.setenv("WEFT_KUBERNETES_DEVICES", '["rdma/hca"]')
    assert devices(in_pods) == ("rdma/hca",)
    assert devices(Settings(home=tmp_path)) is None


def test_library_images_come_from_the_registry_of_weft_up_and_without_one_from_none(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").touch()
    flags = {"kind": "kubernetes", "kubeconfig": str(tmp_path / "kubeconfig")}
    assert "WEFT_KUBERNETES_FRAMEWORK_REGISTRY" not in settings_of_cluster(flags)
    named = settings_of_cluster({**flags, "registry": "registry.example/team"})
    assert named["WEFT_KUBERNETES_FRAMEWORK_REGISTRY"] == "registry.example/team"


LEARNER = LearnerIdentity(job="j1", tenant="acme", attempt=2, role="worker", rank=3, name="worker-3")


def token_of_an_older_installation(secret: bytes) -> str:
    body = base64.urlsafe_b64encode(json.dumps(asdict(LEARNER), separators=(",", ":")).encode()).rstrip(b"=")
    return f"{body.decode()}.{hmac.new(secret, b'weft learner token v1' + bytes(1) + body, hashlib.sha256).hexdigest()}"


async def test_learners_that_run_during_the_upgrade_keep_their_tokens(tmp_path: Path) -> None:
    settings, secret = Settings(home=tmp_path), b"s" * 32
    await wiring.installation_secrets(settings).put(wiring.SHARED_SECRET, secret)
    metrics = await wiring.guard(settings, await wiring.identity(settings, "metrics"), learners=True)
    token = token_of_an_older_installation(secret)
    assert metrics.identify("weft.v1.Intake", f"Learner {token}") == LEARNER
    new = (await wiring.learner_token_signer(settings)).mint(LEARNER)
    assert metrics.identify("weft.v1.Intake", f"Learner {new}") == LEARNER


async def test_secret_that_all_services_shared_opens_no_service_any_more(tmp_path: Path) -> None:
    settings, secret = Settings(home=tmp_path), b"s" * 32
    await wiring.installation_secrets(settings).put(wiring.SHARED_SECRET, secret)
    lcm = await wiring.guard(settings, await wiring.identity(settings, "lcm"))
    for authorization in (f"Bearer {secret.hex()}", f"Learner {token_of_an_older_installation(secret)}"):
        with pytest.raises(Unauthenticated):
            lcm.identify("weft.v1.Queue", authorization)


async def test_new_installation_has_no_shared_secret(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    metrics = await wiring.guard(settings, await wiring.identity(settings, "metrics"), learners=True)
    with pytest.raises(Unauthenticated):
        metrics.identify("weft.v1.Intake", f"Learner {token_of_an_older_installation(b'')}")
    assert await wiring.installation_secrets(settings).get(wiring.SHARED_SECRET) is None


async def test_services_that_start_at_the_same_time_all_publish_their_keys(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, wiring.identity(settings, name)) for name in SERVICES))
    lcm = await wiring.identity(settings, "lcm")
    for name in SERVICES:
        credential = (await wiring.identity(settings, name)).credential("lcm")
        assert lcm.verifier().verify(credential.authorization().removeprefix("Bearer ")) == name


async def test_unknown_service_gets_no_identity(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="learner-tokens is no service"):
        await wiring.identity(Settings(home=tmp_path), "learner-tokens")


def test_urls_for_helpers_are_signed_with_credentials_of_their_own(tmp_path: Path) -> None:
    for name in ("store", "signing"):
        lines = ["[default]", f"aws_access_key_id = {name}-id", f"aws_secret_access_key = {name}-key"]
        (tmp_path / name).write_text("\n".join(lines))
    place = {"home": tmp_path, "object_store": "s3://bucket", "s3_credentials_file": tmp_path / "store"}
    request = ObjectRequest("get", "tenants/acme/x")

    def signed_by(**more: Path) -> str:
        urls = wiring.object_urls(Settings(**{**place, **more}))  # type: ignore[arg-type]
        assert urls is not None
        (credential,) = parse_qs(urlsplit(urls.url(request)).query)["X-Amz-Credential"]
        return credential.partition("/")[0]

    assert signed_by() == "store-id"
    assert signed_by(s3_signing_credentials_file=tmp_path / "signing") == "signing-id"

"""Tokens of services and of learners: which are accepted, and which are refused."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jwt
import pytest

from services.core.adapters.identity import (
    KeyPair,
    LearnerTokenSigner,
    LearnerTokenVerifier,
    PublicKeys,
    ServiceCredential,
    ServiceTokenVerifier,
)
from services.core.adapters.identity.keys import OVERLAP_MS
from services.core.adapters.identity.learner_tokens import OWNER
from services.core.adapters.identity.tokens import LEEWAY_S, LIFE_S
from services.core.adapters.rpc.server import Guard
from services.core.domain.errors import PermissionDenied, Unauthenticated, WeftError
from services.core.domain.service_access import CALLERS, LEARNER_SERVICES, SERVICES
from services.core.domain.tokens import LearnerIdentity
from tests.testbed.identities import SIGNER, guard, pair, public_keys

LEARNER = LearnerIdentity(job="j1", tenant="ac.me ü", attempt=2, role="worker", rank=3, name="worker-3")
NOW = 1_800_000_000
QUEUE = "weft.v1.Queue"


class Clock:
    """Unix seconds, set by the test."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def token(claims: dict[str, Any] | None = None, *, signer: KeyPair | None = None, **headers: Any) -> str:
    """A token of the api for the lcm, made now, with these changes."""
    signer = signer or pair("api")
    body = {"iss": "api", "aud": "lcm", "iat": NOW, "exp": NOW + LIFE_S, **(claims or {})}
    return jwt.encode(body, signer.private, "EdDSA", headers={"kid": signer.id, **headers})


def unsigned(algorithm: str, claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = ({"alg": algorithm, "typ": "JWT", "kid": pair("api").id}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


def verifier(clock: Clock | None = None, audience: str = "lcm") -> ServiceTokenVerifier:
    return ServiceTokenVerifier(public_keys(), audience, now_s=clock or Clock())


CLAIMS = {"iss": "api", "aud": "lcm", "iat": NOW, "exp": NOW + LIFE_S}


def test_token_of_a_service_is_accepted_by_the_service_it_was_made_for() -> None:
    credential = ServiceCredential(pair("api"), "lcm", now_s=Clock())
    assert verifier().verify(credential.authorization().removeprefix("Bearer ")) == "api"


def test_token_for_another_audience_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="not for lcm"):
        verifier().verify(token({"aud": "node"}))


def test_token_for_several_audiences_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(token({"aud": ["node", "lcm"]}))


def test_service_token_replayed_to_another_service_is_refused() -> None:
    credential = ServiceCredential(pair("guardian"), "metrics", now_s=Clock())
    stolen = credential.authorization().removeprefix("Bearer ")
    assert verifier(audience="metrics").verify(stolen) == "guardian"
    with pytest.raises(Unauthenticated, match="not for node"):
        verifier(audience="node").verify(stolen)


def test_expired_token_is_refused_although_it_was_accepted_before() -> None:
    clock = Clock()
    lcm, made = verifier(clock), token()
    clock.now = NOW + LIFE_S + LEEWAY_S - 1
    assert lcm.verify(made) == "api"
    clock.now += 1
    with pytest.raises(Unauthenticated, match="expired"):
        lcm.verify(made)


def test_token_of_the_future_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="not valid yet"):
        verifier(Clock(NOW - LEEWAY_S - 1)).verify(token())


def test_token_with_a_long_life_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="at most"):
        verifier().verify(token({"exp": NOW + LIFE_S + 1}))


@pytest.mark.parametrize("missing", ["iss", "aud", "iat", "exp"])
def test_token_without_a_claim_is_refused(missing: str) -> None:
    claims = {name: value for name, value in CLAIMS.items() if name != missing}
    made = jwt.encode(claims, pair("api").private, "EdDSA", headers={"kid": pair("api").id})
    with pytest.raises(Unauthenticated):
        verifier().verify(made)


@pytest.mark.parametrize("time", ["soon", 1e400, None, [], True])
def test_token_with_a_malformed_time_is_refused(time: Any) -> None:
    for claim in ("iat", "exp"):
        with pytest.raises(Unauthenticated):
            verifier().verify(unsigned_or_signed({**CLAIMS, claim: time}))


def unsigned_or_signed(claims: dict[str, Any]) -> str:
    """Signed with the api's key, also where the library refuses to make such a token."""
    text = unsigned("EdDSA", claims).rpartition(".")[0]
    signature = base64.urlsafe_b64encode(pair("api").private.sign(text.encode())).rstrip(b"=").decode()
    return f"{text}.{signature}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE"])
def test_token_with_alg_none_is_refused(algorithm: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(unsigned(algorithm, CLAIMS))


@pytest.mark.parametrize("form", ["raw", "base64"])
def test_hs256_token_with_the_public_key_as_secret_is_refused(form: str) -> None:
    public = pair("api").public_bytes
    secret = public if form == "raw" else base64.b64encode(public)
    made = jwt.encode(CLAIMS, secret, "HS256", headers={"kid": pair("api").id})
    with pytest.raises(Unauthenticated):
        verifier().verify(made)


def test_token_with_a_wrong_issuer_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(token({"iss": "guardian"}))


def test_token_that_names_the_key_of_another_service_is_refused() -> None:
    made = token({"iss": "guardian"}, kid=pair("guardian").id)
    with pytest.raises(Unauthenticated):
        verifier().verify(made)


def test_token_of_another_installation_is_refused() -> None:
    stranger = KeyPair.from_seed("api", b"another installation".ljust(32))
    with pytest.raises(Unauthenticated, match="does not know"):
        verifier().verify(token(signer=stranger))


def test_token_with_a_changed_claim_is_refused() -> None:
    head, _, signature = token({"aud": "node"}).split(".")
    body = unsigned("EdDSA", CLAIMS).split(".")[1]
    with pytest.raises(Unauthenticated):
        verifier().verify(f"{head}.{body}.{signature}")


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "ü", "x" * 100_000, "Bearer", "e30.e30.e30", "W10.W10."])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(text)
    with pytest.raises(Unauthenticated):
        LearnerTokenVerifier(public_keys()).verify(text)


def test_learner_token_at_an_inner_service_is_refused() -> None:
    made = SIGNER.mint(LEARNER)
    for authorization in (f"Learner {made}", f"Bearer {made}"):
        with pytest.raises(Unauthenticated):
            guard("node").identify("weft.v1.Node", authorization)
    with pytest.raises(PermissionDenied):
        guard("metrics").identify("weft.v1.Telemetry", f"Learner {made}")
    assert guard("metrics").identify("weft.v1.Intake", f"Learner {made}") == LEARNER


def test_key_for_learner_tokens_makes_no_service_token() -> None:
    signer = pair(OWNER)
    for issuer in (OWNER, "api"):
        with pytest.raises(Unauthenticated):
            verifier().verify(token({"iss": issuer}, signer=signer))


def test_key_of_a_service_makes_no_learner_token() -> None:
    made = LearnerTokenSigner(pair("metrics")).mint(LEARNER)
    with pytest.raises(Unauthenticated):
        LearnerTokenVerifier(public_keys()).verify(made)


def test_service_token_is_refused_where_learners_are_expected() -> None:
    credential = ServiceCredential(pair("api"), "metrics")
    with pytest.raises(PermissionDenied):
        guard("metrics").identify("weft.v1.Intake", credential.authorization())


def test_every_call_outside_the_table_is_refused() -> None:
    for server, table in CALLERS.items():
        for caller in SERVICES:
            authorization = ServiceCredential(pair(caller), server).authorization()
            for grpc_service in {name for services in CALLERS.values() for name in services} - LEARNER_SERVICES:
                if caller in table.get(grpc_service, frozenset()):
                    assert guard(server).identify(grpc_service, authorization) is None
                else:
                    with pytest.raises(PermissionDenied):
                        guard(server).identify(grpc_service, authorization)


@pytest.mark.parametrize("authorization", ["", "Bearer", "Basic eDp5", "bearer x", "Learner"])
def test_call_without_a_token_is_refused(authorization: str) -> None:
    with pytest.raises(Unauthenticated):
        guard("lcm").identify(QUEUE, authorization)


def test_token_is_used_until_a_minute_before_it_expires() -> None:
    clock = Clock()
    credential = ServiceCredential(pair("api"), "lcm", now_s=clock)
    first = credential.authorization()
    clock.now = NOW + LIFE_S - 61
    assert credential.authorization() == first
    clock.now = NOW + LIFE_S - 60
    renewed = credential.authorization()
    assert renewed != first
    assert verifier(clock).verify(renewed.removeprefix("Bearer ")) == "api"


def test_token_is_made_anew_after_the_clock_was_set_back() -> None:
    clock = Clock()
    credential = ServiceCredential(pair("api"), "lcm", now_s=clock)
    credential.authorization()
    clock.now = NOW - 3600
    assert verifier(clock).verify(credential.authorization().removeprefix("Bearer ")) == "api"


@pytest.mark.parametrize("wrong_s", [-3600, 3600, 90, -86_400 * 365])
def test_caller_with_a_wrong_clock_uses_the_servers_time_after_a_refusal(wrong_s: int) -> None:
    credential = ServiceCredential(pair("api"), "lcm", now_s=Clock(NOW + wrong_s))
    server = verifier()
    if abs(wrong_s) > LIFE_S:
        with pytest.raises(Unauthenticated):
            server.verify(credential.authorization().removeprefix("Bearer "))
    assert credential.correct(NOW * 1000)
    assert server.verify(credential.authorization().removeprefix("Bearer ")) == "api"
    assert not credential.correct(NOW * 1000)


# --- keys ---


def keys_at(folder: Path, clock: Clock) -> PublicKeys:
    return PublicKeys(folder / "public-keys.json", now_s=clock)


def test_old_and_new_key_are_accepted_in_the_overlap_of_a_rotation(tmp_path: Path) -> None:
    clock = Clock()
    old, new = KeyPair.from_seed("api", b"o" * 32), KeyPair.from_seed("api", b"n" * 32)
    served = keys_at(tmp_path, clock)  # as a service that runs during the rotation reads them
    lcm = ServiceTokenVerifier(served, "lcm", now_s=clock)
    keys_at(tmp_path, clock).publish(old)
    assert lcm.verify(token(signer=old)) == "api"
    keys_at(tmp_path, clock).publish(new)
    assert lcm.verify(token(signer=new)) == "api"
    assert lcm.verify(token(signer=old)) == "api"
    clock.now = NOW + OVERLAP_MS / 1000 + 1
    times = {"iat": int(clock.now), "exp": int(clock.now) + LIFE_S}
    assert lcm.verify(token(times, signer=new)) == "api"
    with pytest.raises(Unauthenticated):
        lcm.verify(token(times, signer=old))


def test_key_that_is_published_again_stays_as_it_is(tmp_path: Path) -> None:
    keys = keys_at(tmp_path, Clock())
    keys.publish(pair("api"))
    before = (tmp_path / "public-keys.json").stat().st_ino
    keys.publish(pair("api"))
    assert (tmp_path / "public-keys.json").stat().st_ino == before
    assert (tmp_path / "public-keys.json").stat().st_mode & 0o077 == 0


def test_removed_key_is_refused_although_its_token_was_accepted_before(tmp_path: Path) -> None:
    file = tmp_path / "public-keys.json"
    keys = keys_at(tmp_path, Clock())
    keys.publish(pair("api"))
    lcm = ServiceTokenVerifier(keys, "lcm", now_s=Clock())
    made = token()
    assert lcm.verify(made) == "api"
    file.write_text('{"schema": 1, "keys": []}')
    keys.refresh(now=True)  # a second later it would look by itself
    with pytest.raises(Unauthenticated):
        lcm.verify(made)


def test_damaged_file_of_public_keys_leaves_the_known_keys_valid(tmp_path: Path) -> None:
    file = tmp_path / "public-keys.json"
    keys = keys_at(tmp_path, Clock())
    keys.publish(pair("api"))
    for damage in (
        "",
        "{",
        "[]",
        '{"keys": 3}',
    ):
        file.write_text(damage)
        keys.refresh(now=True)
        assert keys.find(pair("api").id) is not None
        with pytest.raises(WeftError, match="restart the platform"):
            keys.publish(pair("lcm"))


def test_entry_with_the_id_of_another_key_does_not_replace_it(tmp_path: Path) -> None:
    keys = keys_at(tmp_path, Clock())
    keys.publish(pair("api"))
    file = tmp_path / "public-keys.json"
    document = json.loads(file.read_text())
    stranger = KeyPair.from_seed("api", b"s" * 32)
    entry = {"id": pair("api").id, "owner": "api", "key": base64.b64encode(stranger.public_bytes).decode()}
    file.write_text(json.dumps({**document, "keys": [*document["keys"], entry]}))
    keys.refresh(now=True)
    public = keys.find(pair("api").id)
    assert public is not None
    assert public.key.public_bytes_raw() == pair("api").public_bytes


def test_private_key_of_a_wrong_length_is_named_in_the_error() -> None:
    with pytest.raises(WeftError, match="private key of lcm has 3 bytes"):
        KeyPair.from_seed("lcm", b"abc")
    assert "private" not in repr(pair("lcm"))


def test_learner_token_is_the_same_each_time_it_is_made() -> None:
    made = SIGNER.mint(LEARNER)
    assert made == SIGNER.mint(LearnerIdentity(**asdict(LEARNER)))
    assert LearnerTokenVerifier(public_keys()).verify(made) == LEARNER


def test_learner_tokens_with_a_malformed_identity_are_refused() -> None:
    signer = pair(OWNER)
    malformed: list[Any] = [{}, [], "x", {"job": 3}, None]
    for learner in malformed:
        claims = {"iss": OWNER, "aud": "intake", "learner": learner}
        made = jwt.encode(claims, signer.private, "EdDSA", headers={"kid": signer.id})
        with pytest.raises(Unauthenticated):
            LearnerTokenVerifier(public_keys()).verify(made)


def test_guard_of_a_service_without_learners_knows_no_learners() -> None:
    lcm = Guard("lcm", verifier(Clock()))
    with pytest.raises(Unauthenticated):
        lcm.identify(QUEUE, f"Learner {SIGNER.mint(LEARNER)}")

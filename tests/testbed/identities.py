"""Identities of services for tests: the same fixed key pairs in every process and in every installation of a test.

A server in a test's own process authenticates with ``guard``; a client calls with ``credential``. ``install`` gives the
same keys to an installation whose services run as processes of their own.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path

from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.identity import (
    Identity,
    KeyPair,
    LearnerTokenSigner,
    LearnerTokenVerifier,
    PublicKeys,
    ServiceCredential,
)
from services.core.adapters.identity.learner_tokens import OWNER
from services.core.adapters.rpc.client import LearnerCredential
from services.core.adapters.rpc.server import Guard
from services.core.domain.service_access import SERVICES
from services.core.domain.tokens import LearnerIdentity
from tests.waiting import in_thread


def seed(owner: str) -> bytes:
    """The private key of an owner."""
    return hashlib.sha256(f"tests' key of {owner}".encode()).digest()


def pair(owner: str) -> KeyPair:
    return KeyPair.from_seed(owner, seed(owner))


SIGNER = LearnerTokenSigner(pair(OWNER))


@cache
def public_keys() -> PublicKeys:
    """Those of all owners, for servers in this process."""
    folder = tempfile.mkdtemp(prefix="weft-test-keys-")
    atexit.register(shutil.rmtree, folder)
    keys = PublicKeys(Path(folder) / "public-keys.json")
    for owner in (*sorted(SERVICES), OWNER):
        keys.publish(pair(owner))
    return keys


def identity(service: str) -> Identity:
    return Identity(pair(service), public_keys())


def credential(caller: str, audience: str) -> ServiceCredential:
    """For calls of the service ``audience`` by the service ``caller``."""
    return identity(caller).credential(audience)


def operations_headers(service: str) -> dict[str, str]:
    """For reading the operations address of a service."""
    return {"Authorization": credential("api", service).authorization()}


def learner_credential(learner: LearnerIdentity) -> LearnerCredential:
    return LearnerCredential(SIGNER.mint(learner))


def guard(service: str) -> Guard:
    """What authenticates the callers of a service; the metrics service's helpers, too."""
    learners = LearnerTokenVerifier(public_keys()) if service == "metrics" else None
    return Guard(service, identity(service).verifier(), learners)


def install(home: Path) -> None:
    """Gives the keys to the installation in ``home``, which has none yet."""
    secrets = FolderSecretStore(home / "secrets")
    keys = PublicKeys(home / "secrets" / "public-keys.json")
    for owner in sorted(SERVICES):
        in_thread(lambda owner=owner: secrets.put(f"identity-{owner}", seed(owner)))  # type: ignore[misc]
        keys.publish(pair(owner))
    in_thread(lambda: secrets.put(OWNER, seed(OWNER)))
    keys.publish(pair(OWNER))

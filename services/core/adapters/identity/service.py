"""The identity of a service: its key pair, made at its first start, and the public keys of the others."""

from __future__ import annotations

import os

from services.core.adapters.identity.keys import SEED_BYTES, KeyPair, PublicKeys
from services.core.adapters.identity.tokens import ServiceCredential, ServiceTokenVerifier
from services.core.domain.errors import InvalidRequest
from services.core.domain.service_access import SERVICES
from services.core.ports.secret_store import SecretStore


class Identity:
    """A service's own name and keys: its credentials for calls of other services, and the verifier of its callers."""

    def __init__(self, pair: KeyPair, keys: PublicKeys) -> None:
        self._pair, self.keys = pair, keys

    @property
    def name(self) -> str:
        """The service: lcm, guardian, ..."""
        return self._pair.owner

    def credential(self, audience: str) -> ServiceCredential:
        """For calls of the service ``audience``."""
        return ServiceCredential(self._pair, audience)

    def verifier(self) -> ServiceTokenVerifier:
        """For calls of this service."""
        return ServiceTokenVerifier(self.keys, self.name)


async def open_identity(secrets: SecretStore, keys: PublicKeys, service: str) -> Identity:
    """Returns the service's identity. Makes its key pair if it has none, and publishes its public key.

    Raises InvalidRequest for a name that is no service.
    """
    if service not in SERVICES:
        raise InvalidRequest(f"{service} is no service; there are: {', '.join(sorted(SERVICES))}")
    pair = await own_key_pair(secrets, service, name=f"identity-{service}")
    keys.publish(pair)
    return Identity(pair, keys)


async def own_key_pair(secrets: SecretStore, owner: str, *, name: str) -> KeyPair:
    """Returns the key pair whose private key is the secret ``name``; made at the first call."""
    return KeyPair.from_seed(owner, await secrets.get_or_create(name, os.urandom(SEED_BYTES)))

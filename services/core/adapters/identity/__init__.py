"""Identities of services and tokens of learners, signed with Ed25519 (docs/adr/0015-identities.md)."""

from services.core.adapters.identity.keys import KeyPair, PublicKeys
from services.core.adapters.identity.learner_tokens import LearnerTokenSigner, LearnerTokenVerifier
from services.core.adapters.identity.service import Identity, open_identity
from services.core.adapters.identity.tokens import ServiceCredential, ServiceTokenVerifier

__all__ = [
    "Identity",
    "KeyPair",
    "LearnerTokenSigner",
    "LearnerTokenVerifier",
    "PublicKeys",
    "ServiceCredential",
    "ServiceTokenVerifier",
    "open_identity",
]

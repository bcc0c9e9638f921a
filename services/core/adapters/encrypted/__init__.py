"""Secrets in a record store, each under a key of its own, those under a master key (docs/adr/0008-secrets.md)."""

from services.core.adapters.encrypted.master_keys import MasterKeyFile, MasterKeys
from services.core.adapters.encrypted.store import EncryptedSecretStore

__all__ = ["EncryptedSecretStore", "MasterKeyFile", "MasterKeys"]

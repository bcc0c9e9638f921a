"""Secrets in a record store, encrypted by data keys, which a master key encrypts (docs/adr/0008-secrets.md)."""

from services.core.adapters.encrypted.master_keys import MasterKeyFile, MasterKeys
from services.core.adapters.encrypted.store import EncryptedSecretStore

__all__ = ["EncryptedSecretStore", "MasterKeyFile", "MasterKeys"]

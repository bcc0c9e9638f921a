"""Objects and secrets in folders, for one machine: ``FolderObjectStore(root)``, ``FolderSecretStore(root)``."""

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.folder.secrets import FolderSecretStore

__all__ = ["FolderObjectStore", "FolderSecretStore"]

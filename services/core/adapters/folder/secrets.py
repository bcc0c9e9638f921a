"""SecretStore: the files of ``services.core.adapters.folder.secret_files``, read and written in threads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.core.adapters.folder.secret_files import SecretFiles


class FolderSecretStore:
    """See ``services.core.ports.secret_store.SecretStore``. Creates the folder if it is missing."""

    def __init__(self, root: Path) -> None:
        self._files = SecretFiles(root)

    async def get(self, name: str) -> bytes | None:
        return await asyncio.to_thread(self._files.get, name)

    async def put(self, name: str, value: bytes) -> None:
        await asyncio.to_thread(self._files.put, name, value)

    async def get_or_create(self, name: str, value: bytes) -> bytes:
        return await asyncio.to_thread(self._files.get_or_create, name, value)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._files.delete, name)

    async def names(self, prefix: str = "") -> list[str]:
        return await asyncio.to_thread(self._files.names, prefix)

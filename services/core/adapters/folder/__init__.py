"""Objects and secrets in folders, for one machine: ``objects.FolderObjectStore``, ``secrets.FolderSecretStore``.

Nothing is imported here: `weft status` reads a secret's file, and asyncio takes as long to import as all that it needs.
"""

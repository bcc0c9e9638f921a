"""What the client has learned of a MongoDB replica set."""

from __future__ import annotations

from services.core.adapters.mongo.connection import close, connect, translated


async def members(uri: str) -> list[str]:
    """host:port of each member that has data. Raises Unavailable if there is no primary."""
    database = connect(uri)
    try:
        with translated():
            await database.client.admin.command("ping")
            servers = database.client.topology_description.server_descriptions().values()
    finally:
        await close(database)
    return sorted("{}:{}".format(*server.address) for server in servers if server.is_readable)

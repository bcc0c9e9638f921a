"""What a MongoDB server says of itself and of its replica set."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.adapters.mongo.connection import close, connect, translated


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """``members``: host:port of each; empty for a server that is no replica set."""

    members: tuple[str, ...]
    primary: str


async def describe(uri: str) -> ReplicaSet:
    """Asks the primary. Raises Unavailable if there is none."""
    database = connect(uri)
    try:
        with translated():
            hello = await database.client.admin.command("hello")
    finally:
        await close(database)
    members = (*hello.get("hosts", ()), *hello.get("passives", ()))
    return ReplicaSet(tuple(members), str(hello.get("primary", "")))

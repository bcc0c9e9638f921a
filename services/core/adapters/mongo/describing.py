"""The MongoDB replica set of the job store, for operators: its members, and how long its fail-over takes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from pymongo.errors import AutoReconnect, OperationFailure

from services.core.adapters.mongo.connection import Database, close, connect, translated
from services.core.domain.errors import InvalidRequest, Unavailable

_STEP_DOWN_S: Final = 60
"""For so long the primary does not stand for election again."""
_CATCH_UP_S: Final = 10
_ELECTED_S: Final = 60.0
_POLL_S: Final = 0.2
_UNAUTHORIZED: Final = 13


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    name: str
    """Empty: the server is no member of a replica set, or its client does not use it as one."""
    members: list[str]
    """host:port of each member that has data."""
    primary: str
    """host:port; empty where the name is."""
    write_concern: str
    """With which Weft writes."""


async def replica_set(uri: str) -> ReplicaSet:
    """Raises Unavailable if there is no primary."""
    async with _connected(uri) as database:
        return await _describe(database)


async def step_down(uri: str) -> tuple[str, str, float]:
    """Asks the primary to step down. Returns (the primary before, the new one, seconds until a majority wrote to it).

    Raises Unavailable if no other member is primary within a minute, and InvalidRequest if the user may not ask.
    """
    async with _connected(uri) as database:
        before = (await _describe(database)).primary
        began = time.monotonic()
        command = {"replSetStepDown": _STEP_DOWN_S, "secondaryCatchUpPeriodSecs": _CATCH_UP_S}
        async with translated():
            try:
                await database.client.admin.command(command)
            except AutoReconnect:
                pass  # older servers close the connection instead of an answer
            except OperationFailure as error:
                if error.code != _UNAUTHORIZED:
                    raise
                raise InvalidRequest(
                    "the user of WEFT_JOB_STORE lacks the right `replSetStateChange`; grant it the role "
                    "`clusterManager` for this trial, or ask the primary yourself: rs.stepDown()"
                ) from None
        while time.monotonic() < began + _ELECTED_S:
            await asyncio.sleep(_POLL_S)
            try:
                primary = (await _describe(database)).primary
                if primary and primary != before:
                    await _write(database)
                    return before, primary, time.monotonic() - began
            except Unavailable:
                continue
        raise Unavailable(
            f"{before} stepped down, and no other member was primary within {_ELECTED_S:.0f} s; rs.status() shows "
            "members that are away, far behind, or without votes or priority"
        )


async def _describe(database: Database) -> ReplicaSet:
    client = database.client
    async with translated():
        await client.admin.command("ping")
        primary = await client.primary
        topology = client.topology_description
        readable = [server.address for server in topology.server_descriptions().values() if server.is_readable]
    concern = client.write_concern.document
    return ReplicaSet(
        name=topology.replica_set_name or "",
        members=sorted(f"{host}:{port}" for host, port in readable),
        primary="{}:{}".format(*primary) if primary is not None else "",
        write_concern=", ".join(f"{name}: {value}" for name, value in sorted(concern.items())),
    )


async def _write(database: Database) -> None:
    """Returns when a majority has a document that is removed again."""
    key = {"_id": uuid.uuid4().hex}
    async with translated():
        await database["scratch"].insert_one(key)
        await database["scratch"].delete_one(key)


@asynccontextmanager
async def _connected(uri: str) -> AsyncGenerator[Database]:
    database = connect(uri)
    try:
        yield database
    finally:
        await close(database)

"""Checks at start-up, on a scratch document, whether a server with MongoDB's protocol is safe for jobs.

Weft depends on compare-and-set: exactly one of many writers of one revision wins. Some servers of the protocol read
first and write afterwards (FerretDB 1.24 on SQLite let 7 of 16 win), and so lose updates silently. The absence of a job
is decided by linearizable reads, which only members of a replica set answer.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from services.core.adapters.mongo.connection import Database, Document, close, connect, translated, unsure
from services.core.domain.errors import InvalidRequest, WeftError

RACERS: Final = 16
_ROUNDS: Final = 12
"""On an unsafe server, one race in fifteen has a single winner by chance, and such races come in rows: five in a
row were seen once in about a thousand starts on a busy machine. A safe server takes about 5 ms for each."""


async def trusted(uri: str) -> Database:
    """A connection to a server that has passed ``check_store``. Raises its errors."""
    database = connect(uri)
    try:
        await check_store(database)
    except WeftError:
        await close(database)
        raise
    return database


async def check_store(database: Database) -> None:
    """Raises InvalidRequest if two compare-and-sets win, or if linearizable reads are refused."""
    scratch = database["scratch"]
    key = {"_id": uuid.uuid4().hex}
    async with translated():
        await scratch.insert_one({**key, "rev": 1})
    try:
        async with translated():
            await _check_linearizable(scratch, key)
            # Opens the connections before the first race: connecting takes longer than a race.
            await asyncio.gather(*(scratch.find_one(key) for _ in range(RACERS)))
        for rev in range(1, 1 + _ROUNDS):
            async with translated():
                await _race(scratch, key, rev)
    finally:
        async with translated():
            await scratch.delete_one(key)


async def _check_linearizable(scratch: AsyncCollection[Document], key: Document) -> None:
    try:
        await scratch.with_options(read_concern=ReadConcern("linearizable")).find_one(key)
    except OperationFailure as error:
        if unsure(error):
            raise
        raise InvalidRequest(
            "the MongoDB of WEFT_JOB_STORE answers no linearizable reads, which jobs need; make it a replica set "
            f"(one member is enough: mongod --replSet weft, then rs.initiate()). Its error: {error.details or error}"
        ) from error


async def _race(scratch: AsyncCollection[Document], key: Document, rev: int) -> None:
    async def write(racer: int) -> Any:
        return await scratch.replace_one({**key, "rev": rev}, {**key, "rev": rev + 1, "by": racer})

    winners = sum(result.matched_count for result in await asyncio.gather(*map(write, range(RACERS))))
    if winners != 1:
        raise InvalidRequest(
            f"the server of WEFT_JOB_STORE let {winners} of {RACERS} compare-and-sets of one revision win: it would "
            "lose jobs silently. Use a real MongoDB (5.0 or later), or WEFT_JOB_STORE=sqlite on one machine"
        )

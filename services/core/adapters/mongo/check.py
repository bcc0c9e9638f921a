"""Whether a server that calls itself MongoDB can be trusted with jobs: found out at start-up, on a scratch document.

All that Weft promises rests on compare-and-set: of many writers of one revision exactly one wins. Servers that only
speak the protocol may find first and write afterwards (FerretDB 1.24 on SQLite let 7 of 16 win); they lose updates
without a word. The absence of a job is decided by linearizable reads, which only members of a replica set answer.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from services.core.adapters.mongo.connection import UNSURE, Database, Document, close, connect, translated
from services.core.domain.errors import InvalidRequest, WeftError

RACERS: Final = 16
_ROUNDS: Final = 12
"""One race in fifteen has a single winner by chance, even there, and such races come in rows: on a busy machine five in
a row were met once in about a thousand starts. A sound server takes some 5 ms for each."""


async def trusted(uri: str) -> Database:
    """A connection to a store that has passed the check."""
    database = connect(uri)
    try:
        await check_store(database)
    except WeftError:
        await close(database)
        raise
    return database


async def check_store(database: Database) -> None:
    """InvalidRequest where the store lets two compare-and-sets win, or cannot answer a linearizable read."""
    scratch = database["scratch"]
    key = {"_id": uuid.uuid4().hex}
    with translated():
        await scratch.insert_one({**key, "rev": 1})
    try:
        with translated():
            await _ask_linearizable(scratch, key)
            # All run at once from the first race on: making the connections would take longer than a race does.
            await asyncio.gather(*(scratch.find_one(key) for _ in range(RACERS)))
        for rev in range(1, 1 + _ROUNDS):
            with translated():
                await _race(scratch, key, rev)
    finally:
        with translated():
            await scratch.delete_one(key)


async def _ask_linearizable(scratch: AsyncCollection[Document], key: Document) -> None:
    try:
        await scratch.with_options(read_concern=ReadConcern("linearizable")).find_one(key)
    except UNSURE:
        raise
    except OperationFailure as error:
        raise InvalidRequest(
            "the MongoDB of WEFT_JOB_STORE answers no linearizable reads, which jobs need; make it a replica set "
            f"(one member is enough: mongod --replSet weft, then rs.initiate()). It said: {error.details or error}"
        ) from error


async def _race(scratch: AsyncCollection[Document], key: Document, rev: int) -> None:
    async def one(racer: int) -> Any:
        return await scratch.replace_one({**key, "rev": rev}, {**key, "rev": rev + 1, "by": racer})

    winners = sum(result.matched_count for result in await asyncio.gather(*map(one, range(RACERS))))
    if winners != 1:
        raise InvalidRequest(
            f"the server of WEFT_JOB_STORE let {winners} of {RACERS} compare-and-sets of one revision win: it would "
            "lose jobs without a word. Use a real MongoDB (5.0 or later), or WEFT_JOB_STORE=sqlite on one machine"
        )

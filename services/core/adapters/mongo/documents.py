"""Documents with a revision: inserted once, replaced by compare-and-set, with a certain outcome over lost replies.

If a reply is lost, it is unknown whether the write took place. So each write carries an id of its own (``write``) and
is sent again until there is a reply (``until_answered``; the driver repeats no writes). An insert of an existing key,
and a replace of an old revision, change nothing, so at most one of the copies takes effect, however late. The id then
shows whose write it was. One case remains: our write took place, and another writer replaced it before we looked. It is
reported as failed (StaleRevision, Duplicate); callers read again in any case. A delete names the ``_id`` that it read
first: a replace keeps it, and a document that is inserted under the same key later has another one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pymongo import IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from services.core.adapters.mongo.connection import TIMEOUT_S, Document, translated, unsure
from services.core.domain.errors import Duplicate, NotFound, StaleRevision

_LINEARIZABLE: Final = ReadConcern("linearizable")
_RETRY_S: Final = 0.1
_WRITE_ID: Final = {"rev": 1, "write": 1}


class Documents:
    """One collection. ``key`` is a filter that identifies one document by a unique index."""

    def __init__(self, collection: AsyncCollection[Document]) -> None:
        self.collection = collection
        self._linearizable = collection.with_options(read_concern=_LINEARIZABLE)

    async def get(self, key: Mapping[str, Any]) -> Document | None:
        """The document, or None."""
        async with translated():
            return await self._find(key)

    async def _find(self, key: Mapping[str, Any], fields: Mapping[str, int] | None = None) -> Document | None:
        """None only after a linearizable read: a deposed primary lacks late inserts."""
        document = await self.collection.find_one(key, fields)
        return await self._linearizable.find_one(key, fields) if document is None else document

    async def insert(self, key: Mapping[str, Any], document: Document) -> None:
        """Inserts the document. Raises Duplicate if its key, or another unique one, is taken."""
        document = {**document, "write": uuid.uuid4().hex}

        async def write() -> None:
            try:
                await self.collection.insert_one({**document})  # a copy: the driver adds an _id to it
            except DuplicateKeyError as error:
                stored = await self._find(key, _WRITE_ID)
                if stored is None and _is_of(error, key):
                    raise AutoReconnect(f"{_name(key)} was deleted during its insert") from error
                if stored is None or stored.get("write") != document["write"]:
                    raise Duplicate(f"{_name(key)}, or a unique key of it, exists already") from error

        await until_answered(write)

    async def replace(self, key: Mapping[str, Any], rev: int, document: Document) -> None:
        """Replaces the document if it is at ``rev``. Raises NotFound or StaleRevision."""
        document = {**document, "write": uuid.uuid4().hex}

        async def write() -> None:
            if (await self.collection.replace_one({**key, "rev": rev}, document)).matched_count:
                return
            stored = await self._find(key, _WRITE_ID)
            if stored is None:
                raise NotFound(f"there is no {_name(key)}")
            if stored.get("write") != document["write"]:
                raise StaleRevision(f"{_name(key)} is at revision {stored.get('rev')}, not {rev}")

        await until_answered(write)

    async def delete(self, key: Mapping[str, Any]) -> None:
        """Deletes the document that has the key now, if there is one; not one that is inserted meanwhile."""
        target: Document | None = None

        async def write() -> None:
            nonlocal target
            if target is None:
                target = await self._linearizable.find_one(key, {"_id": 1})
            if target is not None:
                await self.collection.delete_one({**key, **target})

        await until_answered(write)


async def create_indexes(collection: AsyncCollection[Document], indexes: Sequence[IndexModel]) -> None:
    """Creates those that are missing, however long the server takes: it reads the whole collection.

    With a time limit, the server would give up the build, and each further start would begin it again.
    """
    async with translated(limited=False):
        await collection.create_indexes([*indexes])


async def until_answered(write: Callable[[], Awaitable[None]]) -> None:
    """Repeats the write while its outcome is unknown, within the time of one call; then raises Unavailable.

    A repeated write must change nothing that the first has changed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S - _RETRY_S
    async with translated():
        while True:
            try:
                return await write()
            except PyMongoError as error:
                if not unsure(error) or loop.time() > deadline:
                    raise
            await asyncio.sleep(_RETRY_S)


def _is_of(error: DuplicateKeyError, key: Mapping[str, Any]) -> bool:
    """True if the server names the index of this key, not another unique one."""
    pattern: Mapping[str, Any] = (error.details or {}).get("keyPattern", {})
    return pattern.keys() == key.keys()


def _name(key: Mapping[str, Any]) -> str:
    return " ".join(map(str, key.values()))

"""Documents with a revision: inserted once, replaced by compare-and-set, and an honest answer when the line breaks.

Where an answer is lost, nobody knows whether the write took place. So each write carries a mark of its own (``write``)
and is sent again until there is an answer: an insert of a key that is there, and a replace of a revision that is
over, change nothing, so at most one of these takes effect, however late. Then the mark says whose write it was. One
case remains: ours took place, and another built on it before we looked. That is answered as if it had not
(StaleRevision, Duplicate): callers read again in any case, and find it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from services.core.adapters.mongo.connection import TIMEOUT_S, UNSURE, Document, translated
from services.core.domain.errors import Duplicate, NotFound, StaleRevision

_LINEARIZABLE: Final = ReadConcern("linearizable")
_AGAIN_S: Final = 0.1
_MARK: Final = {"rev": 1, "write": 1}


class Documents:
    """One collection. ``key`` is a filter that identifies one document by a unique index."""

    def __init__(self, collection: AsyncCollection[Document]) -> None:
        self.collection = collection
        self._linearizable = collection.with_options(read_concern=_LINEARIZABLE)

    async def one(self, key: Mapping[str, Any]) -> Document | None:
        """The document. None only after a linearizable read: a primary that was deposed knows of no late inserts."""
        with translated():
            found = await self.collection.find_one(key)
            return await self._linearizable.find_one(key) if found is None else found

    async def insert(self, key: Mapping[str, Any], document: Document) -> None:
        """Duplicate where its key, or another unique one, is taken."""
        document = {**document, "write": uuid.uuid4().hex}

        async def write() -> None:
            try:
                await self.collection.insert_one({**document})  # a copy: the driver writes an _id into it
            except DuplicateKeyError as error:
                there = await self.collection.find_one(key, _MARK)
                if there is None or there.get("write") != document["write"]:
                    raise Duplicate(f"{_name(key)}, or a unique key of it, is there already") from error

        await _until_answered(write)

    async def replace(self, key: Mapping[str, Any], rev: int, document: Document) -> None:
        """Replaces the document if it is at ``rev``. NotFound, StaleRevision."""
        document = {**document, "write": uuid.uuid4().hex}

        async def write() -> None:
            if (await self.collection.replace_one({**key, "rev": rev}, document)).matched_count:
                return
            there = await self.collection.find_one(key, _MARK)
            if there is None:
                raise NotFound(f"there is no {_name(key)}")
            if there.get("write") != document["write"]:
                raise StaleRevision(f"{_name(key)} is at revision {there.get('rev')}, not {rev}")

        await _until_answered(write)


async def _until_answered(write: Callable[[], Awaitable[None]]) -> None:
    """Repeats the write while its outcome is unknown, within the time of one call; then Unavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S - _AGAIN_S
    with translated():
        while True:
            try:
                return await write()
            except UNSURE:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(_AGAIN_S)


def _name(key: Mapping[str, Any]) -> str:
    return " ".join(map(str, key.values()))

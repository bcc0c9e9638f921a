"""Job stores for tests: several processes can use one, and a test can damage its documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest
from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from services.core.adapters.mongo import MongoJobStore
from services.core.adapters.sqlite import SqliteJobStore
from services.core.ports.job_store import JobStore
from tests.testbed.memory import MemoryJobStore


async def open_store(place: str) -> JobStore:
    """Opens the store at a path or a URI."""
    return await (MongoJobStore.open(place) if "://" in place else SqliteJobStore.open(Path(place)))


class World(Protocol):
    """One set of jobs and the stores that are open on it."""

    async def another(self) -> JobStore:
        """Opens another store on the same jobs, as another process would."""
        ...

    async def plant(self, job_id: str, text: str) -> None:
        """Replaces the job's stored document by this text, past the store."""
        ...

    async def close(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryJobStore()

    async def another(self) -> JobStore:
        return self.store

    async def plant(self, job_id: str, text: str) -> None:
        self.store.plant(job_id, text)

    async def close(self) -> None:
        await self.store.close()


class OnSqlite:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = str(path)
        self.stores: list[SqliteJobStore] = []

    async def another(self) -> SqliteJobStore:
        self.stores.append(await SqliteJobStore.open(self.path))
        return self.stores[-1]

    async def plant(self, job_id: str, text: str) -> None:
        self._execute("UPDATE jobs SET doc = ? WHERE id = ?", (text, job_id))

    async def plant_event(self, seq: int, text: str) -> None:
        self._execute("UPDATE history SET event = ? WHERE seq = ?", (text, seq))

    def _execute(self, statement: str, values: tuple[str | int, ...]) -> None:
        connection = apsw.Connection(self.place)
        connection.execute(statement, values)
        assert connection.changes() == 1
        connection.close()

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class OnMongo:
    def __init__(self, uri: str) -> None:
        self.place = uri
        self.stores: list[MongoJobStore] = []

    async def another(self) -> MongoJobStore:
        self.stores.append(await MongoJobStore.open(self.place))
        return self.stores[-1]

    async def plant(self, job_id: str, text: str) -> None:
        await self._set("jobs", {"_id": job_id}, "job", text)

    async def plant_event(self, seq: int, text: str) -> None:
        await self._set("history", {"seq": seq}, "event", text)

    async def _set(self, collection: str, key: Mapping[str, Any], field: str, text: str) -> None:
        """Stores the parsed text; if MongoDB cannot store it, the text itself."""
        async with AsyncMongoClient[dict[str, Any]](self.place) as client:
            documents = client.get_default_database()[collection]
            prior = await documents.find_one(key)
            assert prior is not None
            try:
                await documents.replace_one(key, {**prior, field: json.loads(text)})
            except (BSONError, OverflowError, PyMongoError, RecursionError, ValueError):
                await documents.replace_one(key, {**prior, field: text})

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


def make_world(kind: str, request: pytest.FixtureRequest) -> World:
    """The store of a kind: mongo, memory, sqlite."""
    if kind == "mongo":
        request.getfixturevalue("long_mongo_timeouts")
        return OnMongo(request.getfixturevalue("mongo_uri"))
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("jobs")
    return InMemory() if kind == "memory" else OnSqlite(folder / "jobs.sqlite")

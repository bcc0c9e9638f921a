"""SecretStore over any RecordStore: envelope encryption.

    record  {kind: "secrets", id: "=<escaped name>"}
    body    {schema, version, value: sealed by a data key of its own, key: {master: id, wrapped: the data key, sealed}}

Both are sealed with the secret's name and version as their context: a value or a data key that was moved to another
secret, or kept from an earlier version, does not open. The store shows the names of secrets, but neither their values
nor which secrets have the same value.

A change of the master key writes the wrapped data keys only, one secret at a time, by compare-and-set, while others
read and write (``rewrap``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any, Final

from services.core.adapters.encrypted import sealing
from services.core.adapters.encrypted.master_keys import MasterKey, MasterKeyFile
from services.core.domain.errors import (
    Conflict,
    Duplicate,
    Internal,
    NotFound,
    Quarantined,
    StaleRevision,
    Unavailable,
)
from services.core.ports.record_store import Record, RecordStore
from services.core.ports.secret_store import escaped, escaped_prefix, unescaped

KIND: Final = "secrets"
SCHEMA: Final = 1
_TRIES: Final = 100
_PAGE: Final = 100


class EncryptedSecretStore:
    """See ``services.core.ports.secret_store.SecretStore``."""

    def __init__(self, records: RecordStore, master: MasterKeyFile) -> None:
        self._records, self._master = records, master

    @classmethod
    async def open(cls, records: RecordStore, master: MasterKeyFile) -> EncryptedSecretStore:
        """Creates the first master key if there are no secrets. Raises Unavailable if a secret's key is missing."""
        store = cls(records, master)
        first = await records.find(KIND, {}, limit=1)
        keys = await asyncio.to_thread(master.keys if first else master.make)
        for record in first:
            _master_of(record, keys.ids, master)
        return store

    async def get(self, name: str) -> bytes | None:
        record = await self._record(escaped(name))
        return None if record is None else await self._opened(record)

    async def put(self, name: str, value: bytes) -> None:
        record_id = escaped(name)
        for _ in range(_TRIES):
            try:
                stored = await self._record(record_id)
                version = 0 if stored is None else _version(stored)
            except Internal:  # damaged: replace it
                await self._records.delete(KIND, record_id)
                continue
            try:
                if stored is None:
                    await self._records.insert(await self._sealed(record_id, 1, value))
                else:
                    fresh = await self._sealed(record_id, version + 1, value)
                    await self._records.replace(replace(fresh, rev=stored.rev))
            except (Duplicate, StaleRevision, NotFound):
                continue
            return
        raise StaleRevision("a secret kept changing while it was written")

    async def get_or_create(self, name: str, value: bytes) -> bytes:
        record_id = escaped(name)
        for _ in range(_TRIES):
            stored = await self._record(record_id)
            if stored is not None:
                return await self._opened(stored)
            try:
                await self._records.insert(await self._sealed(record_id, 1, value))
            except Duplicate:
                continue
            return value
        raise StaleRevision("a secret kept being made and deleted while it was read")

    async def delete(self, name: str) -> None:
        await self._records.delete(KIND, escaped(name))

    async def names(self, prefix: str = "") -> list[str]:
        """Reads the records with this prefix only: they are neighbours in the order of ids."""
        start = escaped_prefix(prefix)
        names = list[str]()
        async for record in self._every(after=start[:-1]):
            if record.id.startswith(start):
                names.append(unescaped(record.id))
            elif record.id > start:
                break
        return names

    # --- the master key ------------------------------------------------------------

    async def wrapped_by(self) -> Counter[str]:
        """Master key id -> number of secrets it wraps; "" for secrets with an unreadable record."""
        return Counter([_wrapped_by(record) async for record in self._every()])

    async def rewrap(self) -> tuple[int, int]:
        """Wraps every data key by the current master key. Returns (number rewrapped, number unreadable).

        May be interrupted and run again.
        """
        done = refused = 0
        async for record in self._every():
            try:
                done += await self._rewrap(record.id)
            except (Internal, Conflict):  # a bad secret does not stop the others
                refused += 1
        return done, refused

    async def _rewrap(self, record_id: str) -> bool:
        for _ in range(_TRIES):
            record = await self._record(record_id)
            if record is None:
                return False
            data_key, keys = await self._data_key(record), await asyncio.to_thread(self._master.keys)
            if _key(record)["master"] == keys.current.id:
                return False
            body = {**record.body, "key": _wrapped(keys.current, data_key, record_id, _version(record))}
            try:
                await self._records.replace(replace(record, body=body))
            except (StaleRevision, NotFound):
                continue
            return True
        raise StaleRevision("a secret kept changing while it was wrapped anew")

    async def _every(self, after: str | None = None) -> AsyncGenerator[Record]:
        while page := await self._records.find(KIND, {}, after=after, limit=_PAGE):
            for record in page:
                yield record
            after = page[-1].id

    # --- one record ----------------------------------------------------------------

    async def _record(self, record_id: str) -> Record | None:
        """Raises Internal where the record store cannot read it: the secret is damaged, and may be written again."""
        try:
            return await self._records.get(KIND, record_id)
        except Quarantined:
            raise _damaged() from None

    async def _sealed(self, record_id: str, version: int, value: bytes) -> Record:
        data_key = sealing.new_key()
        master = (await asyncio.to_thread(self._master.keys)).current
        body = {
            "schema": SCHEMA,
            "version": version,
            "value": sealing.to_text(sealing.seal(data_key, value, _where("value", record_id, version))),
            "key": _wrapped(master, data_key, record_id, version),
        }
        return Record(kind=KIND, id=record_id, body=body, index={})

    async def _opened(self, record: Record) -> bytes:
        data_key = await self._data_key(record)
        try:
            sealed = sealing.from_text(record.body["value"])
            return sealing.unseal(data_key, sealed, _where("value", record.id, _version(record)))
        except (sealing.Broken, KeyError):
            raise _damaged() from None

    async def _data_key(self, record: Record) -> bytes:
        version, key = _version(record), _key(record)
        keys = await asyncio.to_thread(self._master.keys)
        master_id = _master_of(record, keys.ids, self._master)
        master = keys.get(master_id)
        if master is None:
            raise _damaged()
        try:
            wrapped = sealing.from_text(key["wrapped"])
            return sealing.unseal(master.secret, wrapped, _where(f"key {master_id}", record.id, version))
        except sealing.Broken:
            raise _damaged() from None


def _where(what: str, record_id: str, version: int) -> bytes:
    return sealing.context("weft secret", SCHEMA, what, record_id, version)


def _wrapped(master: MasterKey, data_key: bytes, record_id: str, version: int) -> dict[str, str]:
    sealed = sealing.seal(master.secret, data_key, _where(f"key {master.id}", record_id, version))
    return {"master": master.id, "wrapped": sealing.to_text(sealed)}


def _version(record: Record) -> int:
    """The version. Raises Conflict for a record of a newer Weft, Internal for a malformed one."""
    schema, version = record.body.get("schema"), record.body.get("version")
    if type(schema) is int and schema > SCHEMA:
        raise Conflict(f"a secret was written by a newer Weft (schema {schema}, this one reads {SCHEMA}); upgrade")
    if schema != SCHEMA or type(version) is not int or set(record.body) != {"schema", "version", "value", "key"}:
        raise _damaged()
    return version


def _key(record: Record) -> Mapping[str, str]:
    key: Any = record.body.get("key")
    if not isinstance(key, dict) or set(key) != {"master", "wrapped"} or not isinstance(key["master"], str):
        raise _damaged()
    return key


def _wrapped_by(record: Record) -> str:
    try:
        return _key(record)["master"]
    except Internal:
        return ""


def _master_of(record: Record, known: list[str], master: MasterKeyFile) -> str:
    """The id of the master key that the record needs. Raises Unavailable if the file does not have it."""
    needed = _key(record)["master"]
    if needed not in known:
        raise Unavailable(
            f"the secrets need the master key {needed[:40]!r}, and {master.path} has {', '.join(known)}: put the line "
            "of that key back from your copy (or name its file with WEFT_MASTER_KEY_FILE). Without it they cannot be "
            "read; `weft restore` restores them from a backup"
        )
    return needed


def _damaged() -> Internal:
    """An error without the secret's name, which may be confidential."""
    return Internal("a secret in the record store was damaged or changed, and is refused; write it again")

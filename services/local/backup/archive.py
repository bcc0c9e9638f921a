"""The file of a backup: a plain tar, written and read in one go, in which no bit can change unseen.

    weft-backup.json     format, versions, which key opens the secrets
    ...                  what is in the backup
    index/000001.jsonl   now and then: name, size and SHA-256 of the entries since the last one
    end.json             what there is in all; SHA-256 of every byte before it, and its HMAC under the backup's key

Whoever reads checks each entry against the index behind it, and at the end every byte: only what ends in a right
``end.json`` is a backup. An entry that could not be written whole (the object changed meanwhile) is *void*: an index
that follows at once says so. Memory is bounded by one chunk and a thousand names, whatever the size.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from services.core.domain.errors import InvalidRequest

HEAD: Final = "weft-backup.json"
END: Final = "end.json"
INDEX: Final = "index/"
CHUNK: Final = 2**20
_BLOCK: Final = 512
_INDEXED: Final = 1000
_SMALL: Final = 16 * 2**20
"""Entries that are read as a whole are smaller: who writes them cuts them at a few MiB."""
_PAX: Final = b"x"
_LAST: Final = bytes(2 * _BLOCK)


class Refused(InvalidRequest):
    """It is no backup, or not as it was written."""


class Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._pending: list[dict[str, Any]] = []
        self._indexes = 0
        self.entries = self.bytes = 0

    def put(self, name: str, content: bytes) -> None:
        """An entry that is there as a whole."""
        self._head(name, len(content))
        self._write(content)
        self._tail(name, len(content), hashlib.sha256(content).hexdigest(), void=False)

    async def stream(self, name: str, size: int, chunks: AsyncIterable[bytes]) -> bool:
        """An entry that comes in chunks; whether it had the size that was said. Where not, or it breaks, it is void."""
        self._head(name, size)
        left, digest, whole = size, hashlib.sha256(), False
        try:
            async for chunk in chunks:
                part = chunk[:left]
                self._write(part)
                digest.update(part)
                left -= len(part)
                if len(part) < len(chunk):
                    break
            else:
                whole = left == 0
        finally:
            while left > 0:
                part = bytes(min(left, CHUNK))
                self._write(part)
                digest.update(part)
                left -= len(part)
            self._tail(name, size, digest.hexdigest(), void=not whole)
        return whole

    def finish(self, counts: dict[str, int], mac: Any) -> str:
        """Writes the end; the digest of everything before it. ``mac``: of a text, under the backup's key."""
        self._index()
        digest = self._digest.hexdigest()
        end = {"entries": self.entries, "counts": counts, "sha256": digest}
        said = json.dumps(end, sort_keys=True)
        content = json.dumps({**end, "mac": mac(said)}).encode()
        self._head(END, len(content))
        self._write(content)
        self._pad(len(content))
        self._write(_LAST)
        return digest

    def _head(self, name: str, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _tail(self, name: str, size: int, digest: str, *, void: bool) -> None:
        self._pad(size)
        self.entries += 1
        self._pending.append({"name": name, "size": size, "sha256": digest} | ({"void": True} if void else {}))
        if void or len(self._pending) >= _INDEXED:
            self._index()

    def _index(self) -> None:
        self._indexes += 1
        content = "".join(json.dumps(one) + "\n" for one in self._pending).encode()
        self._pending.clear()
        self._head(f"{INDEX}{self._indexes:06d}.jsonl", len(content))
        self._write(content)
        self._pad(len(content))

    def _pad(self, size: int) -> None:
        self._write(bytes(-size % _BLOCK))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)


@dataclass
class Entry:
    """One of the entries. Its content is read once, in order; what is not read is passed over."""

    name: str
    size: int
    _reader: Reader = field(repr=False)
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)
    _left: int = -1

    def __post_init__(self) -> None:
        self._left = self.size

    def chunks(self) -> Iterator[bytes]:
        """At most 1 MiB each."""
        while self._left:
            data = self._reader.take(min(self._left, CHUNK), self.name)
            self._left -= len(data)
            self._digest.update(data)
            yield data

    def read(self) -> bytes:
        """All of it. Refused where it is larger than such an entry ever is."""
        if self.size > _SMALL:
            raise Refused(f"entry {self.name} of the backup is too large to be what it says")
        return b"".join(self.chunks())

    def checked(self) -> dict[str, Any]:
        """What the index has to say of it."""
        for _ in self.chunks():
            pass
        self._reader.pad(self.size, self.name)
        return {"name": self.name, "size": self.size, "sha256": self._digest.hexdigest()}


@dataclass(frozen=True, slots=True)
class Void:
    """The last entry of this name does not count."""

    name: str


@dataclass
class Reader:
    """One pass over a backup. Refused, naming the entry, at the first thing that is not as it was written."""

    file: BinaryIO
    end: dict[str, Any] = field(default_factory=dict)
    """``end.json``, once everything before it was read and found right."""
    said: str = ""
    """What its HMAC is of."""
    _all: Any = field(default_factory=hashlib.sha256)
    _place: int = 0

    @property
    def place(self) -> int:
        """Bytes read."""
        return self._place

    def __iter__(self) -> Iterator[Entry | Void]:
        pending: list[dict[str, Any]] = []
        before, entries = "", 0
        while not self.end:
            so_far = self._all.hexdigest()
            entry = self._next(before)
            if entry.name == END:
                self._finish(entry, so_far, entries, pending)
            elif entry.name.startswith(INDEX):
                yield from self._index(entry, pending)
                pending = []
            else:
                yield entry
                pending.append(entry.checked())
                entries += 1
                if len(pending) > _INDEXED:
                    raise Refused(f"the backup has lost its index after entry {before}")
            before = entry.name

    def _next(self, before: str) -> Entry:
        where = f"after entry {before}" if before else "at its beginning"
        extended: dict[str, str] = {}
        while True:
            block = self.take(_BLOCK, where)
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError:
                raise Refused(f"the backup is damaged {where}: there is no entry where one should be") from None
            if member.type != _PAX:
                return Entry(extended.get("path", member.name), int(extended.get("size", member.size)), self)
            if member.size > _SMALL:
                raise Refused(f"the backup is damaged {where}: a name is too long")
            extended = _extended(self.take(member.size, where), where)
            self.pad(member.size, where)

    def _index(self, entry: Entry, pending: list[dict[str, Any]]) -> Iterator[Void]:
        try:
            listed = [json.loads(line) for line in entry.read().splitlines()]
            names = [one["name"] for one in listed]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"entry {entry.name} of the backup is damaged") from None
        entry.checked()
        if names != [one["name"] for one in pending]:
            raise Refused(f"entry {entry.name} of the backup does not list the entries before it")
        for one, seen in zip(listed, pending, strict=True):
            void = one.pop("void", False)
            if one != seen:
                raise Refused(f"entry {seen['name']} of the backup is damaged: it has not the checksum of its index")
            if void:
                yield Void(seen["name"])

    def _finish(self, entry: Entry, so_far: str, entries: int, pending: list[dict[str, Any]]) -> None:
        try:
            end = json.loads(entry.read())
            mac, counts = end.pop("mac"), end["counts"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(f"entry {END} of the backup is damaged") from None
        entry.checked()
        right = {"entries": entries, "counts": counts, "sha256": so_far}
        if pending or end != right or self.take(len(_LAST), END) != _LAST or self.file.read(1):
            raise Refused(f"the backup is damaged: it is not what entry {END} says that it was")
        self.said = json.dumps(end, sort_keys=True)
        self.end = {**end, "mac": mac}

    def take(self, size: int, where: str) -> bytes:
        """So many bytes. Refused where the file ends before."""
        data = self.file.read(size)
        if len(data) < size:
            what = where if where.startswith(("after", "at ")) else f"in entry {where}"
            raise Refused(f"the backup is cut off {what}: it is not whole, and nothing of it can be trusted")
        self._all.update(data)
        self._place += size
        return data

    def pad(self, size: int, where: str) -> None:
        """Passes over what fills an entry's last block."""
        if any(self.take(-size % _BLOCK, where)):
            raise Refused(f"the backup is damaged behind entry {where}")


def _extended(data: bytes, where: str) -> dict[str, str]:
    """The records of a pax header: each is its length, a space, ``name=value`` and a newline."""
    found: dict[str, str] = {}
    try:
        while data:
            length = int(data.partition(b" ")[0])
            record, data = data[:length], data[length:]
            name, _, value = record.decode().partition(" ")[2].removesuffix("\n").partition("=")
            found[name] = value
            if not length:
                raise ValueError(length)
    except ValueError:
        raise Refused(f"the backup is damaged {where}: a name cannot be read") from None
    return found

"""The file of a backup: a plain tar, written and read in one pass, in which every changed bit is detected.

    weft-backup.json     format, versions, description of the key that encrypts the secrets
    ...                  the entries
    index/000001.jsonl   after at most 1,000 entries: their names, sizes and SHA-256
    end.json             totals, SHA-256 of every byte before it, and its HMAC under the backup's key

A reader checks each entry against the index that follows it, and all bytes at the end: a file without a right
``end.json`` is no backup. An entry that could not be written completely (the object changed meanwhile) is *void*; the
index that follows immediately marks it. Memory is bounded by one chunk and 1,000 names, whatever the size.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest, TooLarge

HEAD: Final = "weft-backup.json"
END: Final = "end.json"
INDEX: Final = "index/"
CHUNK: Final = 2**20
_BLOCK: Final = 512
_INDEXED: Final = 1000
_SMALL: Final = 16 * 2**20
"""Bound for entries that are read into memory at once: the writer makes no larger ones. Others are read in chunks."""
_PAX: Final = b"x"
_LAST: Final = bytes(2 * _BLOCK)


class Refused(InvalidRequest):
    """The file is no backup, or is damaged."""


class Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._pending: list[dict[str, Any]] = []
        self._indexes = 0
        self.entries = self.bytes = 0

    def put(self, name: str, content: bytes, *, read_whole: bool = True) -> None:
        """Writes an entry from memory. ``read_whole``: it will be read into memory at once.

        Raises TooLarge, and writes nothing, if no reader would accept it.
        """
        if read_whole and len(content) > _SMALL:
            raise TooLarge(f"entry {name} of the backup would have {len(content)} bytes, and {_SMALL} is the most")
        self._head(name, len(content))
        self._write(content)
        self._tail(name, len(content), hashlib.sha256(content).hexdigest(), void=False)

    async def stream(self, name: str, size: int, chunks: AsyncIterable[bytes]) -> bool:
        """Writes an entry of ``size`` bytes from chunks. Returns False, and voids it, if they sum to another size.

        It is void, too, if ``chunks`` raises; the error is passed on.
        """
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
        """Writes ``end.json``. ``mac`` returns the HMAC of a text. Returns the SHA-256 of everything before it."""
        self._index()
        digest = self._digest.hexdigest()
        end = {"entries": self.entries, "counts": counts, "sha256": digest}
        content = json.dumps({**end, "mac": mac(json.dumps(end, sort_keys=True))}).encode()
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
        content = "".join(json.dumps(row) + "\n" for row in self._pending).encode()
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
    """An entry. Its content can be read once, in order; the reader skips what is left unread."""

    name: str
    size: int
    _reader: Reader = field(repr=False)
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)
    _left: int = -1

    def __post_init__(self) -> None:
        self._left = self.size

    def chunks(self) -> Iterator[bytes]:
        """The content in chunks of at most 1 MiB."""
        while self._left:
            data = self._reader.take(min(self._left, CHUNK), self.name)
            self._left -= len(data)
            self._digest.update(data)
            yield data

    def read(self) -> bytes:
        """The whole content. Raises Refused if it is larger than the writer makes an entry that is read at once."""
        if self.size > _SMALL:
            raise Refused(f"entry {self.name} has more than {_SMALL} bytes: the file is damaged or no backup")
        return b"".join(self.chunks())

    def checked(self) -> dict[str, Any]:
        """Reads to the end; returns the row that the index must contain for this entry."""
        for _ in self.chunks():
            pass
        self._reader.pad(self.size, self.name)
        return {"name": self.name, "size": self.size, "sha256": self._digest.hexdigest()}


@dataclass(frozen=True, slots=True)
class Void:
    """Marks the last entry of this name as void: it must be ignored."""

    name: str


@dataclass
class Reader:
    """One pass over a backup. Iterating raises Refused, with the name of the entry, at the first damage."""

    file: BinaryIO
    end: dict[str, Any] = field(default_factory=dict)
    """``end.json``; set once everything before it was read and verified."""
    authenticated: str = ""
    """The text that the HMAC in ``end`` authenticates."""
    _digest: Any = field(default_factory=hashlib.sha256)
    _place: int = 0

    @property
    def place(self) -> int:
        """Number of bytes read so far."""
        return self._place

    def __iter__(self) -> Iterator[Entry | Void]:
        pending: list[dict[str, Any]] = []
        before, entries = "", 0
        while not self.end:
            digest = self._digest.hexdigest()
            entry = self._next(before)
            if entry.name == END:
                self._finish(entry, digest, entries, pending)
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
            rows = [json.loads(line) for line in entry.read().splitlines()]
            names = [row["name"] for row in rows]
        except MALFORMED:
            raise Refused(f"entry {entry.name} of the backup is damaged") from None
        entry.checked()
        if names != [row["name"] for row in pending]:
            raise Refused(f"entry {entry.name} of the backup does not list the entries before it")
        for row, actual in zip(rows, pending, strict=True):
            void = row.pop("void", False)
            if row != actual:
                raise Refused(f"entry {actual['name']} of the backup is damaged: it has not the checksum of its index")
            if void:
                yield Void(actual["name"])

    def _finish(self, entry: Entry, digest: str, entries: int, pending: list[dict[str, Any]]) -> None:
        try:
            end = json.loads(entry.read())
            mac, counts = end.pop("mac"), end["counts"]
        except MALFORMED:
            raise Refused(f"entry {END} of the backup is damaged") from None
        entry.checked()
        expected = {"entries": entries, "counts": counts, "sha256": digest}
        if pending or end != expected or self.take(len(_LAST), END) != _LAST or self.file.read(1):
            raise Refused(f"the backup is damaged: its content does not match entry {END}")
        self.authenticated = json.dumps(end, sort_keys=True)
        self.end = {**end, "mac": mac}

    def take(self, size: int, where: str) -> bytes:
        """Exactly ``size`` bytes. Raises Refused if the file ends before. ``where`` is for the message."""
        data = self.file.read(size)
        if len(data) < size:
            what = where if where.startswith(("after", "at ")) else f"in entry {where}"
            raise Refused(f"the backup is cut off {what}: it is not whole, and nothing of it can be trusted")
        self._digest.update(data)
        self._place += size
        return data

    def pad(self, size: int, where: str) -> None:
        """Skips the padding of an entry's last block. Raises Refused unless it is all zeros."""
        if any(self.take(-size % _BLOCK, where)):
            raise Refused(f"the backup is damaged behind entry {where}")


def _extended(data: bytes, where: str) -> dict[str, str]:
    """Parses the records of a pax header: each is its length, a space, ``name=value`` and a newline."""
    records: dict[str, str] = {}
    try:
        while data:
            length = int(data.partition(b" ")[0])
            record, data = data[:length], data[length:]
            name, _, value = record.decode().partition(" ")[2].removesuffix("\n").partition("=")
            records[name] = value
            if not length:
                raise ValueError(length)
    except ValueError:
        raise Refused(f"the backup is damaged {where}: a name cannot be read") from None
    return records

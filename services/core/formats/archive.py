"""Code archives: a strict reader of zip files from strangers.

The api checks an upload with ``inspect`` before it keeps a byte of it; a helper unpacks the same archive with
``unpack`` before a learner starts. Both read it by the same code, so what the one let in the other can unpack.

Strict, because archives are where programs disagree. There is one directory and it ends where the file ends, nothing
stands before the first entry, local headers say what the directory says, and no two entries share bytes (a quine or an
overlap bomb needs one of these). Nothing is believed about sizes: bytes are counted as they are inflated, in constant
memory. Only plain files and folders come out; of their modes only the executable bit.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from services.core.domain.errors import FieldError, InvalidArchive

_END: Final = struct.Struct("<4s4H2LH")
_END64_AT: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_MAX_DIRECTORY: Final = 64 * 2**20
_CHUNK: Final = 256 * 2**10
_STORED, _DEFLATED = 0, 8
_ENCRYPTED: Final = 0x2041
"""Flag bits: encrypted, strongly encrypted, masked."""
_UNIX, _DARWIN = 3, 19
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DRIVE: Final = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may hold. The defaults are far above what code needs and far below what hurts a disk."""

    entries: int = 10_000
    bytes: int = 2**30
    """Inflated, all entries together."""
    ratio: int = 200
    """Inflated to compressed, asked only once ``ratio_from`` bytes came out: small files of zeros are no attack."""
    ratio_from: int = 64 * 2**20
    name_bytes: int = 1024
    depth: int = 64


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    """Relative, '/'-separated; a folder's without its last '/'."""
    size: int
    folder: bool
    executable: bool
    method: int
    crc: int
    packed: int
    at: int
    """Of the local header."""


def inspect(file: BinaryIO, limits: Limits = Limits()) -> tuple[Entry, ...]:
    """The entries of a sound archive, every byte inflated and checked, nothing written. InvalidArchive."""
    entries = _directory(file, limits)
    budget = _Budget(limits)
    for entry in entries:
        for _ in _content(file, entry, budget):
            pass
    return entries


def unpack(file: BinaryIO, target: Path, limits: Limits = Limits(), *, owner: tuple[int, int] | None = None) -> None:
    """Writes an archive's files into ``target``, which must not exist and into which nobody else writes meanwhile.

    owner: (uid, gid) that everything shall belong to. InvalidArchive leaves a half-made ``target`` behind.
    """
    entries = _directory(file, limits)
    budget = _Budget(limits)
    target.mkdir(mode=0o755)
    made = {target}

    def folder(path: Path) -> None:
        if path not in made:
            folder(path.parent)
            path.mkdir(mode=0o755)
            made.add(path)

    for entry in entries:
        path = target / entry.name
        folder(path if entry.folder else path.parent)
        if not entry.folder:
            mode = 0o755 if entry.executable else 0o644
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
            with os.fdopen(fd, "wb") as out:
                out.writelines(_content(file, entry, budget))
                os.fchmod(fd, mode)
                if owner is not None:
                    os.fchown(fd, *owner)
    if owner is not None:
        for path in made:
            os.chown(path, *owner, follow_symlinks=False)


def _directory(file: BinaryIO, limits: Limits) -> tuple[Entry, ...]:
    """Every entry, checked for all that can be known before inflating."""
    count, size, at = _end(file)
    if count > limits.entries:
        raise InvalidArchive(
            f"the archive has {count} entries, more than the {limits.entries} allowed; leave data and environments out"
        )
    if size > _MAX_DIRECTORY:
        raise InvalidArchive("the archive's directory is larger than any code needs; pack it again with `zip -r`")
    file.seek(at)
    raw = file.read(size)
    entries: list[Entry] = []
    place = 0
    for _ in range(count):
        entry, place = _entry(raw, place, limits)
        entries.append(entry)
    if place != len(raw):
        raise InvalidArchive("the archive's directory holds more than it says; pack it again with `zip -r`")
    _check_tree(entries)
    _check_ranges(file, entries, at)
    return tuple(entries)


def _end(file: BinaryIO) -> tuple[int, int, int]:
    """(number of entries, size of the directory, where it begins), from the record the file ends with."""
    total = file.seek(0, os.SEEK_END)
    start = max(0, total - _END.size - 0xFFFF)
    file.seek(start)
    tail = file.read()
    found = tail.rfind(b"PK\x05\x06")
    while found >= 0:
        # The comment reaches to the last byte, or this signature is a part of the comment.
        if len(tail) - found >= _END.size and found + _END.size + _END.unpack_from(tail, found)[7] == len(tail):
            break
        found = tail.rfind(b"PK\x05\x06", 0, found)
    if found < 0:
        raise InvalidArchive(
            "this is not a zip archive (or one cut short); pack the folder's contents with `zip -r code.zip .`"
        )
    _, disk, first, here, count, size, at, _ = _END.unpack_from(tail, found)
    end = start + found
    if 0xFFFF in {here, count} or 0xFFFFFFFF in {size, at}:
        disk, first, here, count, size, at, end = _end64(file, end)
    if disk or first or here != count:
        raise InvalidArchive("the archive is one of several parts; pack it as one file")
    if at + size != end:
        raise InvalidArchive(
            "something stands before or within the archive that is no zip; pack it again with `zip -r`"
        )
    return count, size, at


def _end64(file: BinaryIO, end: int) -> tuple[int, ...]:
    at = end - _END64_AT.size
    if at >= 0:
        file.seek(at)
        signature, _, record, _ = _END64_AT.unpack(file.read(_END64_AT.size))
        if signature == b"PK\x06\x07" and 0 <= record <= at - _END64.size:
            file.seek(record)
            fields = _END64.unpack(file.read(_END64.size))
            if fields[0] == b"PK\x06\x06":
                return (*fields[4:], record)
    raise InvalidArchive("the archive's end is damaged; pack it again with `zip -r`")


def _entry(raw: bytes, place: int, limits: Limits) -> tuple[Entry, int]:
    """The entry at ``place`` of the directory, and where the next one begins."""
    if len(raw) - place < _ENTRY.size or raw[place : place + 4] != b"PK\x01\x02":
        raise InvalidArchive("the archive's directory is damaged; pack it again with `zip -r`")
    (_, made_by, _, flags, method, _, _, crc, packed, size, name_len, extra_len, comment_len, disk, _, mode, at) = (
        _ENTRY.unpack_from(raw, place)
    )
    names = place + _ENTRY.size
    following = names + name_len + extra_len + comment_len
    if following > len(raw) or disk not in {0, 0xFFFF}:
        raise InvalidArchive("the archive's directory is damaged; pack it again with `zip -r`")
    encoded = raw[names : names + name_len]
    try:
        name = encoded.decode("utf-8" if flags & 0x800 else "cp437")
    except UnicodeDecodeError:
        raise _wrong(encoded.decode("utf-8", "replace"), "its name is not UTF-8 though the archive says so") from None
    plain = _checked_name(name, len(encoded), limits)
    size, packed, at = _sizes64(raw[names + name_len : names + name_len + extra_len], size, packed, at, name)
    if flags & _ENCRYPTED:
        raise _wrong(name, "it is encrypted; pack the archive without a password")
    if method not in {_STORED, _DEFLATED}:
        raise _wrong(name, "it is packed by a method other than deflate; pack it again with `zip -r`")
    folder = name.endswith("/")
    kind, permissions = 0, 0
    if made_by >> 8 in {_UNIX, _DARWIN}:
        kind, permissions = stat.S_IFMT(mode >> 16), mode >> 16
    if kind not in {0, stat.S_IFDIR if folder else stat.S_IFREG}:
        what = "a symbolic link" if kind == stat.S_IFLNK else "not a plain file"
        raise _wrong(name, f"it is {what}; only files and folders may be in it (`zip -r` follows links by itself)")
    if folder and size:
        raise _wrong(name, "it is a folder with content")
    return Entry(
        plain,
        size,
        folder,
        not folder and bool(permissions & 0o111),
        method,
        crc,
        packed,
        at,
    ), following


def _sizes64(extra: bytes, size: int, packed: int, at: int, name: str) -> tuple[int, int, int]:
    """The three with those replaced that did not fit 32 bits and stand in the zip64 field."""
    values = [size, packed, at]
    missing = [place for place, value in enumerate(values) if value == 0xFFFFFFFF]
    place = 0
    while missing and place + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, place)
        if tag == 1 and 8 * len(missing) <= length <= len(extra) - place - 4:
            for index, value in zip(missing, struct.unpack_from(f"<{len(missing)}Q", extra, place + 4), strict=True):
                values[index] = value
            missing = []
        place += 4 + length
    if missing:
        raise _wrong(name, "its size is missing; pack it again with `zip -r`")
    return values[0], values[1], values[2]


def _checked_name(name: str, encoded: int, limits: Limits) -> str:
    plain = name.removesuffix("/")
    parts = plain.split("/")
    if _FORBIDDEN.search(name):
        raise _wrong(name, "its name has a backslash or a control character; rename it")
    if name.startswith("/") or _DRIVE.match(parts[0]):
        raise _wrong(name, "its name is absolute; pack with names relative to the code's folder")
    if ".." in parts:
        raise _wrong(name, "its name leads out of the folder ('..'); pack with names relative to the code's folder")
    if "" in parts or "." in parts:
        raise _wrong(name, "its name has an empty part; pack it again with `zip -r`")
    if encoded > limits.name_bytes or len(parts) > limits.depth or any(len(part.encode()) > 255 for part in parts):
        raise _wrong(name, "its name is too long or too deep; use shorter names")
    return plain


def _check_tree(entries: list[Entry]) -> None:
    """No name twice, and no file where another entry needs a folder. Names that differ by case are two."""
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise _wrong(entry.name, "it is in the archive twice; pack it again with `zip -r`")
        seen.add(entry.name)
    files = {entry.name for entry in entries if not entry.folder}
    for entry in entries:
        parts = entry.name.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in files:
                raise _wrong(
                    entry.name, "it lies in what is a file elsewhere in the archive; pack it again with `zip -r`"
                )


def _check_ranges(file: BinaryIO, entries: list[Entry], end: int) -> None:
    """Entries lie one after the other, each before the directory: bytes used twice make bombs."""
    free = 0
    for entry in sorted(entries, key=lambda one: one.at):
        if entry.at < free:
            raise _wrong(entry.name, "it shares bytes with another entry; pack it again with `zip -r`")
        free = _data_at(file, entry) + entry.packed
        if free > end:
            raise _wrong(entry.name, "it is cut short; pack or upload it again")
    first = min((entry.at for entry in entries), default=0)
    if first:
        raise InvalidArchive("something stands before the archive's first entry; pack it again with `zip -r`")


def _data_at(file: BinaryIO, entry: Entry) -> int:
    file.seek(entry.at)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise _wrong(entry.name, "its header is damaged; pack it again with `zip -r`")
    _, _, flags, method, _, _, _, _, _, name_len, extra_len = _LOCAL.unpack(head)
    name = file.read(name_len).decode("utf-8" if flags & 0x800 else "cp437", "replace")
    if name.removesuffix("/") != entry.name or method != entry.method or flags & _ENCRYPTED:
        raise _wrong(entry.name, "its header contradicts the archive's directory; pack it again with `zip -r`")
    return entry.at + _LOCAL.size + int(name_len) + int(extra_len)


class _Budget:
    """Counts what really came out of an archive."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._out = 0
        self._in = 0

    def take(self, entry: Entry, *, inflated: int, packed: int) -> None:
        self._out += inflated
        self._in += packed
        if self._out > self._limits.bytes:
            allowed = self._limits.bytes // 2**20
            raise _wrong(entry.name, f"with it the archive unpacks to more than {allowed} MiB; leave data out of it")
        if self._out > self._limits.ratio_from and self._out > self._limits.ratio * max(1, self._in):
            raise _wrong(entry.name, "it unpacks to far more than it holds, as zip bombs do; leave it out")


def _content(file: BinaryIO, entry: Entry, budget: _Budget) -> Iterator[bytes]:
    """The entry's bytes, in chunks; InvalidArchive as soon as they are not what the directory says."""
    if entry.folder:
        return
    file.seek(_data_at(file, entry))
    crc = size = 0
    for chunk in _inflated(file, entry, budget):
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
        if size > entry.size:
            break
        yield chunk
    if size != entry.size or crc != entry.crc:
        raise _wrong(entry.name, "it is damaged (its checksum or size is wrong); pack or upload it again")


def _inflated(file: BinaryIO, entry: Entry, budget: _Budget) -> Iterator[bytes]:
    left = entry.packed
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    while left:
        raw = file.read(min(_CHUNK, left))
        if not raw:
            raise _wrong(entry.name, "it is cut short; pack or upload it again")
        left -= len(raw)
        budget.take(entry, inflated=0, packed=len(raw))
        if entry.method == _STORED:
            budget.take(entry, inflated=len(raw), packed=0)
            yield raw
            continue
        while raw:
            try:
                chunk = inflater.decompress(raw, _CHUNK)
            except zlib.error:
                raise _wrong(entry.name, "it is damaged; pack or upload it again") from None
            budget.take(entry, inflated=len(chunk), packed=0)
            yield chunk
            raw = inflater.unconsumed_tail
        if inflater.unused_data or (inflater.eof and left):
            raise _wrong(entry.name, "it holds more than its content; pack it again with `zip -r`")
    if entry.method == _DEFLATED:
        rest = inflater.flush()
        budget.take(entry, inflated=len(rest), packed=0)
        yield rest
        if not inflater.eof:
            raise _wrong(entry.name, "it is cut short; pack or upload it again")


def _wrong(name: str, what: str) -> InvalidArchive:
    shown = name.encode("unicode_escape").decode()[:200]
    return InvalidArchive(f"'{shown}' cannot be taken: {what}", errors=(FieldError("/code", f"{shown}: {what}"),))

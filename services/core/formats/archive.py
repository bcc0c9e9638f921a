"""A strict reader of code archives: zip files from untrusted users.

The api checks an upload with ``inspect`` before it stores it. A helper unpacks the archive with ``unpack`` before its
learner starts. Both use the same code, so every archive that the api accepts can be unpacked.

It is strict because zip readers disagree on malformed archives. There is one central directory, which ends at the end
of the file; the first entry begins at the start of the file; local headers agree with the directory; no two entries
share bytes. Quines and overlap bombs violate one of these. Sizes in the archive are not trusted: bytes are counted as
they are inflated, in constant memory. Only regular files and folders are unpacked, and of their modes only the
executable bit.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
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
    """The most that an archive may contain. The defaults are far above what code needs and what a disk suffers from."""

    entries: int = 10_000
    bytes: int = 2**30
    """Inflated size of all entries together."""
    ratio: int = 200
    """Inflated to compressed size, checked after ``ratio_from`` inflated bytes: small files of zeros are common."""
    ratio_from: int = 64 * 2**20
    """Bytes."""
    name_bytes: int = 1024
    depth: int = 64
    """Nested folders."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in an archive."""

    name: str
    """Relative path with '/'; that of a folder without the last '/'."""
    size: int
    """Bytes when inflated."""
    folder: bool
    executable: bool
    method: int
    """Compression method: 0 stored, 8 deflate."""
    crc: int
    """CRC-32 of the inflated bytes."""
    packed: int
    """Bytes in the archive."""
    at: int
    """Offset of the local header."""


def inspect(file: BinaryIO, limits: Limits = Limits()) -> tuple[Entry, ...]:
    """Returns the entries of a valid archive. Inflates and checks every byte, writes nothing. Raises InvalidArchive."""
    entries = _directory(file, limits)
    budget = _Budget(limits)
    for entry in entries:
        for _ in _content(file, entry, budget):
            pass
    return entries


def unpack(file: BinaryIO, target: Path, limits: Limits = Limits(), *, owner: tuple[int, int] | None = None) -> None:
    """Unpacks an archive into the new folder ``target``. No other process may write into it meanwhile.

    ``owner``: (uid, gid) of all files and folders. Raises FileExistsError where ``target`` exists, and InvalidArchive,
    which leaves an incomplete ``target`` behind.
    """
    entries = _directory(file, limits)
    budget = _Budget(limits)
    target.mkdir(mode=0o755)
    folders = {target}

    def make_folder(path: Path) -> None:
        if path not in folders:
            make_folder(path.parent)
            path.mkdir(mode=0o755)
            folders.add(path)

    for entry in entries:
        path = target / entry.name
        make_folder(path if entry.folder else path.parent)
        if not entry.folder:
            mode = 0o755 if entry.executable else 0o644
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
            with os.fdopen(fd, "wb") as out:
                out.writelines(_content(file, entry, budget))
                os.fchmod(fd, mode)
                if owner is not None:
                    os.fchown(fd, *owner)
    if owner is not None:
        for path in folders:
            os.chown(path, *owner, follow_symlinks=False)


def listing(file: BinaryIO, limits: Limits = Limits()) -> tuple[Entry, ...]:
    """The entries of an archive that ``inspect`` has accepted before. Reads only its end, where the directory is.
    Raises InvalidArchive for a directory that is damaged.
    """
    return _listing(file, limits)[0]


def _directory(file: BinaryIO, limits: Limits) -> tuple[Entry, ...]:
    """Returns all entries, after all checks that need no inflating."""
    entries, at = _listing(file, limits)
    _check_tree(entries)
    _check_ranges(file, entries, at)
    return entries


def _listing(file: BinaryIO, limits: Limits) -> tuple[tuple[Entry, ...], int]:
    """Returns the entries, each checked by itself, and the offset of the directory."""
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
    offset = 0
    for _ in range(count):
        entry, offset = _entry(raw, offset, limits)
        entries.append(entry)
    if offset != len(raw):
        raise InvalidArchive("the archive's directory has more entries than it declares; pack it again with `zip -r`")
    return tuple(entries), at


def _end(file: BinaryIO) -> tuple[int, int, int]:
    """Returns (number of entries, size of the directory, its offset) from the record at the end of the file."""
    total = file.seek(0, os.SEEK_END)
    start = max(0, total - _END.size - 0xFFFF)
    file.seek(start)
    tail = file.read()
    record = tail.rfind(b"PK\x05\x06")
    while record >= 0:
        # The comment of the real record ends with the file; otherwise the signature is a part of the comment.
        if len(tail) - record >= _END.size and record + _END.size + _END.unpack_from(tail, record)[7] == len(tail):
            break
        record = tail.rfind(b"PK\x05\x06", 0, record)
    if record < 0:
        raise InvalidArchive(
            "this is not a zip archive (or one cut short); pack the folder's contents with `zip -r code.zip .`"
        )
    _, disk, first, here, count, size, at, _ = _END.unpack_from(tail, record)
    end = start + record
    if 0xFFFF in {here, count} or 0xFFFFFFFF in {size, at}:
        disk, first, here, count, size, at, end = _end64(file, end)
    if disk or first or here != count:
        raise InvalidArchive("the archive is one of several parts; pack it as one file")
    if at + size != end:
        raise InvalidArchive("there is other data before or within the archive; pack it again with `zip -r`")
    return count, size, at


def _end64(file: BinaryIO, end: int) -> tuple[int, ...]:
    """Returns the same fields of the zip64 record, and its offset. ``end``: offset of the 32-bit record."""
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


def _entry(raw: bytes, offset: int, limits: Limits) -> tuple[Entry, int]:
    """Returns the entry at ``offset`` of the directory, and the offset of the next one."""
    if len(raw) - offset < _ENTRY.size or raw[offset : offset + 4] != b"PK\x01\x02":
        raise InvalidArchive("the archive's directory is damaged; pack it again with `zip -r`")
    (_, made_by, _, flags, method, _, _, crc, packed, size, name_len, extra_len, comment_len, disk, _, mode, at) = (
        _ENTRY.unpack_from(raw, offset)
    )
    names = offset + _ENTRY.size
    following = names + name_len + extra_len + comment_len
    if following > len(raw) or disk not in {0, 0xFFFF}:
        raise InvalidArchive("the archive's directory is damaged; pack it again with `zip -r`")
    encoded = raw[names : names + name_len]
    try:
        name = encoded.decode("utf-8" if flags & 0x800 else "cp437")
    except UnicodeDecodeError:
        raise _wrong(encoded.decode("utf-8", "replace"), "its name is not UTF-8 although it is declared so") from None
    checked_name = _checked_name(name, len(encoded), limits)
    size, packed, at = _sizes64(raw[names + name_len : names + name_len + extra_len], size, packed, at, name)
    if flags & _ENCRYPTED:
        raise _wrong(name, "it is encrypted; pack the archive without a password")
    if method not in {_STORED, _DEFLATED}:
        raise _wrong(name, "it is compressed by a method other than deflate; pack it again with `zip -r`")
    folder = name.endswith("/")
    kind, permissions = 0, 0
    if made_by >> 8 in {_UNIX, _DARWIN}:
        kind, permissions = stat.S_IFMT(mode >> 16), mode >> 16
    if kind not in {0, stat.S_IFDIR if folder else stat.S_IFREG}:
        description = "a symbolic link" if kind == stat.S_IFLNK else "not a plain file"
        raise _wrong(name, f"it is {description}; only files and folders are allowed (`zip -r` follows links)")
    if folder and size:
        raise _wrong(name, "it is a folder with content")
    return Entry(
        checked_name,
        size,
        folder,
        not folder and bool(permissions & 0o111),
        method,
        crc,
        packed,
        at,
    ), following


def _sizes64(extra: bytes, size: int, packed: int, at: int, name: str) -> tuple[int, int, int]:
    """Returns (size, packed, at); values that do not fit 32 bits come from the zip64 field of ``extra``."""
    values = [size, packed, at]
    missing = [index for index, value in enumerate(values) if value == 0xFFFFFFFF]
    offset = 0
    while missing and offset + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, offset)
        if tag == 1 and 8 * len(missing) <= length <= len(extra) - offset - 4:
            for index, value in zip(missing, struct.unpack_from(f"<{len(missing)}Q", extra, offset + 4), strict=True):
                values[index] = value
            missing = []
        offset += 4 + length
    if missing:
        raise _wrong(name, "its size is missing; pack it again with `zip -r`")
    return values[0], values[1], values[2]


def _checked_name(name: str, encoded_bytes: int, limits: Limits) -> str:
    """Returns the name without its last '/'. Raises InvalidArchive for one that may not be unpacked."""
    path = name.removesuffix("/")
    parts = path.split("/")
    if _FORBIDDEN.search(name):
        raise _wrong(name, "its name has a backslash or a control character; rename it")
    if name.startswith("/") or _DRIVE.match(parts[0]):
        raise _wrong(name, "its name is absolute; pack with names relative to the code's folder")
    if ".." in parts:
        raise _wrong(name, "its name leads out of the folder ('..'); pack with names relative to the code's folder")
    if "" in parts or "." in parts:
        raise _wrong(name, "its name has an empty part; pack it again with `zip -r`")
    if (
        encoded_bytes > limits.name_bytes
        or len(parts) > limits.depth
        or any(len(part.encode()) > 255 for part in parts)
    ):
        raise _wrong(name, "its name is too long or too deep; use shorter names")
    return path


def _check_tree(entries: Sequence[Entry]) -> None:
    """Checks that no name occurs twice, and that no file has the name of a folder. Names are case-sensitive."""
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise _wrong(entry.name, "it is in the archive twice; pack it again with `zip -r`")
        names.add(entry.name)
    files = {entry.name for entry in entries if not entry.folder}
    for entry in entries:
        parts = entry.name.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in files:
                raise _wrong(entry.name, "one of its folders is a file in the archive; pack it again with `zip -r`")


def _check_ranges(file: BinaryIO, entries: Sequence[Entry], end: int) -> None:
    """Checks that entries do not overlap and end before the directory, which begins at ``end``: overlaps make bombs."""
    free = 0
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.at < free:
            raise _wrong(entry.name, "it shares bytes with another entry; pack it again with `zip -r`")
        free = _data_at(file, entry) + entry.packed
        if free > end:
            raise _wrong(entry.name, "it is cut short; pack or upload it again")
    first = min((entry.at for entry in entries), default=0)
    if first:
        raise InvalidArchive("there is other data before the archive's first entry; pack it again with `zip -r`")


def _data_at(file: BinaryIO, entry: Entry) -> int:
    """Returns the offset of the entry's bytes, after its local header, which it checks."""
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
    """Counts the bytes of an archive while it is inflated."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inflated = 0
        self._packed = 0

    def take(self, entry: Entry, *, inflated: int, packed: int) -> None:
        """Adds bytes. Raises InvalidArchive above the limits."""
        self._inflated += inflated
        self._packed += packed
        if self._inflated > self._limits.bytes:
            allowed = self._limits.bytes // 2**20
            raise _wrong(entry.name, f"with it the archive unpacks to more than {allowed} MiB; leave data out of it")
        if self._inflated > self._limits.ratio_from and self._inflated > self._limits.ratio * max(1, self._packed):
            raise _wrong(entry.name, "it unpacks to far more than its size, as zip bombs do; leave it out")


def _content(file: BinaryIO, entry: Entry, budget: _Budget) -> Iterator[bytes]:
    """Yields the entry's bytes in chunks. Raises InvalidArchive where size or checksum differ from the directory."""
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
    """Yields the inflated bytes in chunks of at most 256 KiB, unchecked."""
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
            raise _wrong(entry.name, "it has bytes after its content; pack it again with `zip -r`")
    if entry.method == _DEFLATED:
        rest = inflater.flush()
        budget.take(entry, inflated=len(rest), packed=0)
        yield rest
        if not inflater.eof:
            raise _wrong(entry.name, "it is cut short; pack or upload it again")


def _wrong(name: str, problem: str) -> InvalidArchive:
    printable = name.encode("unicode_escape").decode()[:200]
    return InvalidArchive(
        f"'{printable}' cannot be accepted: {problem}", errors=(FieldError("/code", f"{printable}: {problem}"),)
    )

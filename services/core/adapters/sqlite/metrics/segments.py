"""Log segments: append-only files of blocks, each block the lines of one batch.

What keeps them true: bytes are fsynced here *before* the job's SQLite file commits where they lie, and whatever lies
beyond the committed length is cut off before the next byte is written. So a block that the SQLite file knows is whole,
whenever the process or the machine died. A block is checked against its CRC when it is read.

A row per block instead of a row per line is why 100,000 lines/s cost so little; columns instead of rows within a block
are why a search looks at the texts alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from services.core.ports.metric_store import LogLine

SEGMENT_BYTES: Final = 64 * 2**20
"""A segment that has grown so long is closed and another one begun, so that old ones can be moved away whole."""
_READ_AHEAD: Final = 512 * 2**10
_NAME: Final = "lines-{:08d}.seg"


class Damaged(Exception):
    """What is on the disk cannot be what was written."""


class Block(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Lines of one source, in order. Columns of equal length; ``partial`` holds the positions of partial lines."""

    offsets: list[int]
    times: list[int]
    texts: list[str]
    partial: list[int]

    def line(self, at: int) -> LogLine:
        return LogLine(self.offsets[at], self.times[at], self.texts[at], at in self.partial)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Block)


def encode(lines: Sequence[LogLine]) -> bytes:
    """UnicodeEncodeError where a text is not valid Unicode (lone surrogates)."""
    block = Block(
        [line.offset for line in lines],
        [line.time_ms for line in lines],
        [line.text for line in lines],
        [at for at, line in enumerate(lines) if line.partial],
    )
    return _ENCODER.encode(block)


def decode(data: bytes, crc: int) -> Block:
    """The block of these bytes. Damaged where they are not those that were written."""
    if zlib.crc32(data) != crc:
        raise Damaged("a block of log lines does not have the checksum that it was written with")
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(f"a block of log lines cannot be read ({error})") from error


def segment_path(folder: Path, number: int) -> Path:
    """Segments are counted from 1."""
    return folder / _NAME.format(number)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentWriter:
    """Appends to the newest segment. After any error it must not be used again: open another one."""

    def __init__(self, folder: Path, *, number: int, length: int, segment_bytes: int) -> None:
        """Goes on at the committed place (``number`` 0: there is nothing yet). Damaged where less is there."""
        self.number, self.length = number, length
        self._folder, self._limit = folder, segment_bytes
        self._file = -1
        later = [path for path in folder.glob("lines-*.seg") if path > segment_path(folder, number)]
        for path in later:  # begun, and never committed
            path.unlink()
        if number:
            self._file = self._open(number, os.O_RDWR)
            if os.fstat(self._file).st_size < length:
                self.close()
                raise Damaged(f"{segment_path(folder, number).name} is shorter than the {length} bytes it had")
            os.ftruncate(self._file, length)

    def _open(self, number: int, flags: int) -> int:
        try:
            return os.open(segment_path(self._folder, number), flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise Damaged(f"{segment_path(self._folder, number).name} is gone") from None

    def append(self, blocks: Sequence[bytes]) -> list[int]:
        """Writes the blocks one after another into segment ``number``, durably; the position of each."""
        if not self.number or self.length >= self._limit:
            self.close()
            self.number, self.length = self.number + 1, 0
            self._file = self._open(self.number, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            sync_folder(self._folder)
        positions: list[int] = []
        end = self.length
        for block in blocks:
            positions.append(end)
            end += len(block)
        data = memoryview(b"".join(blocks))
        while data:
            written = os.pwrite(self._file, data, self.length)
            self.length += written
            data = data[written:]
        os.fdatasync(self._file)
        return positions

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class SegmentReader:
    """Reads committed blocks, mostly one after another. One reader serves one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number, self._file = 0, -1
        self._start, self._buffer = 0, b""

    def read(self, number: int, position: int, length: int) -> bytes:
        """Damaged where the bytes are not there; FileNotFoundError where the whole job is gone."""
        if number != self._number:
            self.close()
            try:
                self._file = os.open(segment_path(self._folder, number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if not self._folder.exists():
                    raise
                raise Damaged(f"{segment_path(self._folder, number).name} is gone") from None
            self._number = number
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            self._buffer = os.pread(self._file, max(length, _READ_AHEAD), position)
            self._start, at = position, 0
            if len(self._buffer) < length:
                raise Damaged(f"{segment_path(self._folder, number).name} ends before byte {position + length}")
        return self._buffer[at : at + length]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._number, self._file, self._start, self._buffer = 0, -1, 0, b""

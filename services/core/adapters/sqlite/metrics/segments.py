"""Log segments: append-only files of blocks, each with the lines of one batch.

Bytes are fsynced *before* the job's SQLite file commits their place, and bytes beyond the committed length are removed
before the next write. So a block in the SQLite file is complete, whenever the process or the machine died. Each read
checks a block's CRC.

One row per block instead of one per line makes 100,000 lines/s cheap; columns within a block let a search read the
texts only.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from services.core.ports.metric_store import LogLine
from services.core.runtime.durable_files import sync_folder

SEGMENT_BYTES: Final = 64 * 2**20
"""A segment of this size is closed and the next one begun, so that old ones can be archived as files."""
_READ_AHEAD: Final = 512 * 2**10
_NAME: Final = "lines-{:08d}.seg"


class Damaged(Exception):
    """The bytes on the disk are not those that were written."""


class Block(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Lines of one source, in order, as columns of equal length. ``partial``: positions of partial lines."""

    offsets: list[int]
    times: list[int]
    texts: list[str]
    partial: list[int]

    def line(self, index: int) -> LogLine:
        return LogLine(self.offsets[index], self.times[index], self.texts[index], index in self.partial)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Block)


def encode(lines: Sequence[LogLine]) -> bytes:
    """Encodes a block. Raises UnicodeEncodeError for text that is not Unicode (lone surrogates)."""
    block = Block(
        [line.offset for line in lines],
        [line.time_ms for line in lines],
        [line.text for line in lines],
        [at for at, line in enumerate(lines) if line.partial],
    )
    return _ENCODER.encode(block)


def decode(data: bytes, crc: int) -> Block:
    """Decodes a block. Raises Damaged if the bytes were changed."""
    if zlib.crc32(data) != crc:
        raise Damaged("a block of log lines does not match its checksum")
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(f"a block of log lines cannot be read ({error})") from error


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment; numbers begin at 1."""
    return folder / _NAME.format(number)


class SegmentWriter:
    """Appends to the newest segment. After an error it must not be used again; open another one."""

    def __init__(self, folder: Path, *, number: int, length: int, segment_bytes: int) -> None:
        """Continues at the committed length (``number`` 0: no segment yet). Raises Damaged if the file is shorter."""
        self.number, self.length = number, length
        self._folder, self._limit = folder, segment_bytes
        self._file = -1
        later = [path for path in folder.glob("lines-*.seg") if path > segment_path(folder, number)]
        for path in later:  # begun, but never committed
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
            raise Damaged(f"{segment_path(self._folder, number).name} is missing") from None

    def append(self, blocks: Sequence[bytes]) -> list[int]:
        """Writes the blocks into segment ``number``, durably; returns their positions."""
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
    """Reads committed blocks, efficiently in the order of the disk. Serves one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number, self._file = 0, -1
        self._start, self._buffer = 0, b""

    def read(self, number: int, position: int, length: int) -> bytes:
        """The bytes of a block. Raises Damaged if they are missing, FileNotFoundError if the whole job is deleted."""
        if number != self._number:
            self.close()
            try:
                self._file = os.open(segment_path(self._folder, number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if not self._folder.exists():
                    raise
                raise Damaged(f"{segment_path(self._folder, number).name} is missing") from None
            self._number = number
        start = position - self._start
        if start < 0 or start + length > len(self._buffer):
            self._buffer = os.pread(self._file, max(length, _READ_AHEAD), position)
            self._start, start = position, 0
            if len(self._buffer) < length:
                raise Damaged(f"{segment_path(self._folder, number).name} ends before byte {position + length}")
        return self._buffer[start : start + length]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._number, self._file, self._start, self._buffer = 0, -1, 0, b""

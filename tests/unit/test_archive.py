"""The reader of code archives: valid and hostile ones, and that nothing is written outside the folder."""

import io
import random
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from services.core.domain.errors import InvalidArchive
from services.core.formats.archive import Limits, inspect, unpack

SMALL = Limits(entries=20, bytes=2**20, ratio=50, ratio_from=2**16)


def zipped(*files: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = mode << 16
            entry.compress_type = method
            archive.writestr(entry, content)
    return out.getvalue()


def renamed(old: str, new: str) -> bytes:
    """An archive whose entry has a name that zipfile would not write."""
    assert len(old.encode()) == len(new.encode())
    return zipped((old, b"x")).replace(old.encode(), new.encode())


def patched(archive: bytes, signature: bytes, offset: int, form: str, value: int) -> bytes:
    """The archive with one field of the last record of that signature overwritten."""
    raw = bytearray(archive)
    struct.pack_into(form, raw, archive.rindex(signature) + offset, value)
    return bytes(raw)


ENTRY, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
PLAIN = zipped(("train.py", b"print(1)\n"))


def overlapping() -> bytes:
    """Two entries with the same bytes, as in the overlap bombs of 2019."""
    archive = zipped(("a.txt", b"y" * 100), ("b.txt", b"y" * 100))
    first = archive.index(ENTRY)
    second = archive.index(ENTRY, first + 4)
    raw = bytearray(archive)
    raw[second + 42 : second + 46] = raw[first + 42 : first + 46]
    return bytes(raw)


def two_names_for_one() -> bytes:
    """The directory has a.txt and the local header b.txt: zip readers would disagree."""
    raw = bytearray(zipped(("a.txt", b"y")))
    offset = raw.index(LOCAL) + 30
    raw[offset : offset + 5] = b"b.txt"
    return bytes(raw)


def declared_too_small() -> bytes:
    """An entry of 60,000 bytes that declares 10."""
    packed = zipped(("zeros", bytes(60_000)), mode=0)
    return patched(patched(packed, ENTRY, 24, "<L", 10), LOCAL, 22, "<L", 10)


def trailing_in_entry() -> bytes:
    """A deflate stream that ends before its entry does."""
    compressor = zlib.compressobj(wbits=-15)
    packed = compressor.compress(b"x") + compressor.flush() + b"hidden"
    archive = zipped(("a.txt", packed), method=zipfile.ZIP_STORED)
    for signature, offset in ((LOCAL, 8), (ENTRY, 10)):
        archive = patched(archive, signature, offset, "<H", 8)
    archive = patched(archive, ENTRY, 24, "<L", 1)
    return patched(archive, ENTRY, 16, "<L", zlib.crc32(b"x"))


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty file": (lambda: b"", "not a zip"),
    "text": (lambda: b"hello\n" * 100, "not a zip"),
    "tar": (lambda: b"ustar" + bytes(2000), "not a zip"),
    "cut short": (lambda: PLAIN[:-5], "not a zip"),
    "only an end": (lambda: END + bytes(10), "not a zip"),
    "traversal": (lambda: renamed("xx/evil", "../evil"), "leads out"),
    "traversal inside": (lambda: renamed("a/xx/xx/xx/etc", "a/../../../etc"[:14].ljust(14, "c")), "leads out"),
    "absolute": (lambda: renamed("xetc/passwd", "/etc/passwd"), "absolute"),
    "windows drive": (lambda: renamed("CC/x", "C:/x"), "absolute"),
    "backslash": (lambda: renamed("a/b.py", "a\\b.py"), "backslash"),
    "backslash traversal": (lambda: renamed("xx/x/evil", "..\\..\\evl"), "backslash"),
    "newline in a name": (lambda: zipped(("a\nb", b"x")), "control character"),
    "escape in a name": (lambda: zipped(("a\x1b[2Jb", b"x")), "control character"),
    "zero in a name": (lambda: renamed("aXb", "a\0b"), "control character"),
    "delete in a name": (lambda: zipped(("a\x7fb", b"x")), "control character"),
    "dot part": (lambda: zipped(("a/./b", b"x")), "empty part"),
    "only a dot": (lambda: zipped((".", b"x")), "empty part"),
    "empty part": (lambda: zipped(("a//b", b"x")), "empty part"),
    "empty name": (lambda: zipped(("", b"x")), "empty part"),
    "root": (lambda: renamed("x", "/"), "absolute"),
    "long name": (lambda: zipped(("d/" * 20 + "n" * 1100, b"x")), "too long"),
    "long part": (lambda: zipped(("n" * 300, b"x")), "too long"),
    "deep": (lambda: zipped(("d/" * 200 + "x", b"x")), "too long or too deep"),
    "symbolic link": (lambda: zipped(("link", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777), "symbolic link"),
    "device": (lambda: zipped(("dev", b""), mode=stat.S_IFCHR | 0o666), "not a plain file"),
    "fifo": (lambda: zipped(("pipe", b""), mode=stat.S_IFIFO | 0o666), "not a plain file"),
    "socket": (lambda: zipped(("sock", b""), mode=stat.S_IFSOCK | 0o666), "not a plain file"),
    "folder without a slash": (lambda: zipped(("a", b""), mode=stat.S_IFDIR | 0o755), "not a plain file"),
    "folder with content": (lambda: zipped(("a/", b"xyz"), mode=0), "folder with content"),
    "the same name twice": (lambda: zipped(("a.py", b"1"), ("b.py", b"2")).replace(b"b.py", b"a.py"), "twice"),
    "a file and a folder": (lambda: zipped(("a", b"1"), ("a/b", b"2")), "is a file in the archive"),
    "encrypted": (lambda: patched(PLAIN, ENTRY, 8, "<H", 1), "encrypted"),
    "encrypted in the local header only": (lambda: patched(PLAIN, LOCAL, 6, "<H", 1), "contradicts"),
    "masked": (lambda: patched(PLAIN, ENTRY, 8, "<H", 0x2000), "encrypted"),
    "bzip2": (lambda: zipped(("a", b"x" * 99), method=zipfile.ZIP_BZIP2), "a method other than deflate"),
    "lzma": (lambda: zipped(("a", b"x" * 99), method=zipfile.ZIP_LZMA), "a method other than deflate"),
    "too many entries": (lambda: zipped(*((f"f{n}", b"") for n in range(21))), "21 entries"),
    "fewer entries declared": (lambda: patched(zipped(("a", b""), ("b", b"")), END, 8, "<H", 1), "several parts"),
    "large": (lambda: zipped(("a", random.Random(1).randbytes(2**20 + 1))), "more than 1 MiB"),
    "large in sum": (
        lambda: zipped(*((f"f{n}", random.Random(n).randbytes(2**18)) for n in range(5))),
        "more than 1 MiB",
    ),
    "bomb": (lambda: zipped(("zeros", bytes(2**19))), "zip bombs"),
    "bomb that declares a small size": (declared_too_small, "damaged"),
    "overlapping entries": (overlapping, "shares bytes"),
    "local name contradicts": (two_names_for_one, "contradicts"),
    "bad checksum": (lambda: patched(PLAIN, ENTRY, 16, "<L", 1), "checksum"),
    "bad stream": (lambda: PLAIN.replace(zlib.compress(b"print(1)\n", 6)[2:-4], b"\xff" * 11), "damaged"),
    "bytes after the content": (trailing_in_entry, "bytes after its content"),
    "entry beyond the end": (lambda: patched(PLAIN, ENTRY, 20, "<L", 2**20), "cut short"),
    "header beyond the end": (lambda: patched(PLAIN, ENTRY, 42, "<L", 2**24), "damaged"),
    "directory beyond the end": (lambda: patched(PLAIN, END, 16, "<L", 2**20), "other data before"),
    "stub before the archive": (lambda: b"#!/bin/sh\n" + PLAIN, "other data before"),
    "many parts": (lambda: patched(PLAIN, END, 4, "<H", 1), "several parts"),
    "64-bit marks without a record": (lambda: patched(PLAIN, END, 16, "<L", 0xFFFFFFFF), "damaged"),
    "64-bit size without a field": (lambda: patched(PLAIN, ENTRY, 24, "<L", 0xFFFFFFFF), "size is missing"),
    "name that is not UTF-8 as declared": (
        lambda: patched(zipped(("aé.py", b"")).replace("é".encode(), b"\xff\xfe"), ENTRY, 8, "<H", 0x800),
        "not UTF-8",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_with_its_reason_and_writes_nothing_outside(case: str, tmp_path: Path) -> None:
    make, reason = HOSTILE[case]
    archive = make()
    with pytest.raises(InvalidArchive, match=reason):
        inspect(io.BytesIO(archive), SMALL)
    with pytest.raises(InvalidArchive, match=reason):
        unpack(io.BytesIO(archive), tmp_path / "in", SMALL)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["in"])
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_unpacked_files_have_the_packed_content_and_executable_bit(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, mode in (("train.py", 0o644), ("bin/run.sh", 0o755)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            writer.writestr(entry, f"I am {name}\n" * 1000, zipfile.ZIP_DEFLATED)
        writer.mkdir("empty")
        writer.writestr("ünïcode/Makefile", "1")
        writer.writestr("ünïcode/makefile", "2")
    target = tmp_path / "code"
    unpack(archive, target)
    assert (target / "bin/run.sh").read_text() == "I am bin/run.sh\n" * 1000
    assert stat.S_IMODE((target / "bin/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "train.py").stat().st_mode) == 0o644
    assert (target / "empty").is_dir()
    assert (target / "ünïcode/makefile").read_text() == "2"
    assert [entry.name for entry in inspect(archive) if entry.executable] == ["bin/run.sh"]


def test_an_archive_without_entries_unpacks_to_an_empty_folder(tmp_path: Path) -> None:
    unpack(io.BytesIO(zipped()), tmp_path / "code")
    assert list((tmp_path / "code").iterdir()) == []


def test_archives_written_as_streams_and_with_64_bit_fields_are_accepted(tmp_path: Path) -> None:
    class Unseekable(io.RawIOBase):
        def __init__(self) -> None:
            self.raw = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.raw += bytes(data)  # type: ignore[call-overload]
            return len(bytes(data))  # type: ignore[call-overload]

    out = Unseekable()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as writer, writer.open("big", "w", force_zip64=True) as entry:
        entry.write(b"x" * 100)
    unpack(io.BytesIO(bytes(out.raw)), tmp_path / "code")
    assert (tmp_path / "code/big").read_bytes() == b"x" * 100


def test_the_error_names_the_entry_with_control_characters_escaped() -> None:
    with pytest.raises(InvalidArchive) as caught:
        inspect(io.BytesIO(zipped(("a\x1b[2Jb", b"x"))))
    assert "\x1b" not in caught.value.message
    assert "a\\x1b[2Jb" in caught.value.message
    assert caught.value.errors[0].pointer == "/code"


def test_an_archive_with_changed_bytes_is_accepted_or_raises_invalid_archive(tmp_path: Path) -> None:
    valid = zipped(("a.py", b"print(1)\n" * 50), ("b/c.txt", b"x"))
    chance = random.Random(7)
    for _ in range(3000):
        raw = bytearray(valid)
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            inspect(io.BytesIO(bytes(raw)), SMALL)
        except InvalidArchive:
            continue

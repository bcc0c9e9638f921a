"""The file of a backup: whole and as it was written, or refused with the entry named."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import InvalidRequest, TooLarge
from services.local.backup.archive import CHUNK, Entry, Reader, Refused, Void, Writer
from services.local.backup.documents import Lines, documents, whole_jobs
from services.local.backup.json_parts import parts
from services.local.backup.keys import from_passphrase, key_file, made_key_file, opening_key

LONG = "objects/tenants/t/jobs/" + "ä" * 300 + "/model.bin"


def written(entries: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    writer = Writer(file)
    for name, content in entries.items():
        writer.put(name, content)
    writer.finish({"jobs": 1}, lambda text: f"mac of {len(text)}")
    return file.getvalue()


def read(data: bytes) -> dict[str, bytes]:
    return {entry.name: entry.read() for entry in Reader(io.BytesIO(data)) if isinstance(entry, Entry)}


ENTRIES = {"weft-backup.json": b"{}", LONG: b"x" * 1_500, "empty": b"", "block": b"y" * 512, "jobs/1": b"z" * 700}
WHOLE = written(ENTRIES)


def test_written_entries_are_read_back() -> None:
    assert read(WHOLE) == ENTRIES
    many = {f"objects/{n}": str(n).encode() for n in range(2_500)}
    assert read(written(many)) == many


def test_backup_is_a_plain_tar_that_tar_can_list_and_extract() -> None:
    with tarfile.open(fileobj=io.BytesIO(WHOLE)) as tar:
        assert [member.name for member in tar][:5] == list(ENTRIES)
        content = tar.extractfile(LONG)
        assert content is not None
        assert content.read() == ENTRIES[LONG]


def test_unread_entries_are_checked_too() -> None:
    reader = Reader(io.BytesIO(WHOLE))
    assert len(list(reader)) == len(ENTRIES)
    assert reader.end["counts"] == {"jobs": 1}
    assert reader.end["mac"] == f"mac of {len(reader.authenticated)}"


@pytest.mark.slow
def test_truncated_backup_is_refused_at_every_length() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(Refused):
            read(WHOLE[:length])


@pytest.mark.parametrize("more", [b"\x00", b"x", bytes(10_240), WHOLE])
def test_bytes_after_the_end_are_refused(more: bytes) -> None:
    with pytest.raises(Refused):
        read(WHOLE + more)


@given(at=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_is_detected(at: int, bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 1 << bit
    with pytest.raises(Refused):
        read(bytes(damaged))


@pytest.mark.parametrize("name", [LONG, "block", "jobs/1"])
def test_error_names_the_damaged_entry(name: str) -> None:
    at = WHOLE.index(ENTRIES[name] + b"\x00" * (-len(ENTRIES[name]) % 512)) + 100
    damaged = bytearray(WHOLE)
    damaged[at] ^= 1
    with pytest.raises(Refused, match=name):
        read(bytes(damaged))


def test_reordered_or_missing_entries_are_refused() -> None:
    """Each as a tar may hold it, with right checksums: only the end knows that they are not what was written."""
    first, second = written({"a": b"1"}), written({"a": b"2"})
    at = first.index(b"1" + bytes(511))
    with pytest.raises(Refused, match="entry a"):
        read(first[:at] + second[at : at + 512] + first[at + 512 :])


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_large_entry_is_streamed_in_chunks() -> None:
    file = io.BytesIO()
    writer = Writer(file)
    parts = [bytes([n]) * CHUNK for n in range(5)]
    assert await writer.stream("objects/large", 5 * CHUNK, chunks(*parts))
    writer.finish({}, len)
    for entry in Reader(io.BytesIO(file.getvalue())):
        assert isinstance(entry, Entry)
        assert list(entry.chunks()) == parts


@pytest.mark.parametrize("parts", [(b"ab",), (b"abc", b"def"), ()], ids=["shorter", "longer", "nothing"])
async def test_object_that_changed_size_while_it_was_read_is_void(parts: tuple[bytes, ...]) -> None:
    file = io.BytesIO()
    writer = Writer(file)
    assert not await writer.stream("objects/a", 4, chunks(*parts))
    assert await writer.stream("objects/a", 3, chunks(b"new"))
    writer.finish({}, len)
    content = [
        (entry.name, entry.read() if isinstance(entry, Entry) else None)
        for entry in Reader(io.BytesIO(file.getvalue()))
    ]
    assert [name for name, _ in content] == ["objects/a"] * 3
    assert content[1][1] is None
    assert content[2][1] == b"new"


async def test_object_whose_stream_fails_is_void_and_the_rest_is_readable() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"ab"
        raise ConnectionError("gone")

    file = io.BytesIO()
    writer = Writer(file)
    with pytest.raises(ConnectionError):
        await writer.stream("objects/a", 4, breaks())
    writer.put("b", b"1")
    writer.finish({}, len)
    kinds = [type(entry) for entry in Reader(io.BytesIO(file.getvalue()))]
    assert kinds == [Entry, Void, Entry]


def test_documents_survive_a_round_trip() -> None:
    file = io.BytesIO()
    writer = Writer(file)
    lines = Lines(writer, "jobs")
    given_documents = [{"n": n, "text": "Zähl\n\x00" * 1_000, "value": float("inf")} for n in range(1_000)]
    for document in given_documents:
        lines.add(document, what="a job")
    lines.flush()
    lines.flush()
    writer.finish({}, len)
    entries = read(file.getvalue())
    assert len(entries) > 2
    content = [document for name, content in entries.items() for document in documents(name, [content])]
    assert content == given_documents


@pytest.mark.parametrize(
    ("start", "repeated"),
    [(b"", b"\n"), (b'{"lines":["', b"x"), (b'{"lines":', b"[")],
    ids=["nothing", "text", "depth"],
)
def test_decompression_bomb_is_refused(start: bytes, repeated: bytes) -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = packer.compress(start) + b"".join(packer.compress(repeated * 2**20) for _ in range(65)) + packer.flush()
    with pytest.raises(Refused, match="jobs/1"):
        list(documents("jobs/1", [bomb]))


def test_cut_off_entry_is_refused() -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    with pytest.raises(Refused, match="cut off"):
        list(documents("jobs/1", [packer.compress(b'{"n":1}\n') + packer.flush(zlib.Z_SYNC_FLUSH)]))


# --- long lists ----------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    jobs=st.lists(st.tuples(VALUES, st.lists(VALUES, max_size=30)), max_size=3),
    read=st.integers(1, 40),
    cut=st.integers(1, 50),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_document_is_the_same_however_it_is_read(
    jobs: list[tuple[Any, list[Any]]], read: int, cut: int, separators: tuple[str, str]
) -> None:
    wanted = [{"job": job, "history": history} for job, history in jobs]
    text = "".join(json.dumps(document, separators=separators) + "\n" for document in wanted).encode()
    chunks = [text[at : at + cut] for at in range(0, len(text), cut)]
    assert list(whole_jobs(parts(chunks, read=read, part=read))) == wanted


@given(text=st.text(alphabet='{}[],:"1e.- nul', max_size=40), read=st.integers(1, 4))
def test_malformed_text_is_an_error_and_never_another_value(text: str, read: int) -> None:
    """Text in which no list has the name of one that is read in parts."""
    try:
        expected = [json.loads(line) for line in text.split("\n")] if text.strip() else []
    except ValueError:
        with pytest.raises(ValueError, match=r"\w"):
            list(parts([text.encode()], read=read))
        return
    with contextlib.suppress(ValueError):  # a line that is no document
        assert list(parts([text.encode()], read=read)) == expected


def packed_with(key: str, items: list[Any], fields: dict[str, Any] | None = None) -> dict[str, bytes]:
    """The entries of a backup with this list in it."""
    file = io.BytesIO()
    writer = Writer(file)
    lines = Lines(writer, "jobs")
    lines.add_list(key, items, fields, what="job j1")
    lines.flush()
    writer.finish({}, len)
    return read(file.getvalue())


def test_long_history_is_split_into_entries_of_a_few_mib_and_joined_again() -> None:
    events = [{"seq": seq, "message": os.urandom(2_000).hex()} for seq in range(5_000)]
    entries = packed_with("history", events, {"job": {"id": "j1"}})
    assert len(entries) > 5
    assert max(map(len, entries.values())) < 4 * 2**20
    pieces = (document for name, content in entries.items() for document in documents(name, [content]))
    assert list(whole_jobs(pieces)) == [{"job": {"id": "j1"}, "history": events}]


def test_empty_list_is_written_with_its_fields() -> None:
    (entry,) = packed_with("history", [], {"job": {"id": "j1"}}).items()
    assert list(documents(entry[0], [entry[1]])) == [{"job": {"id": "j1"}, "history": []}]


def test_value_that_no_reader_would_accept_is_refused_by_name_when_it_is_written() -> None:
    with pytest.raises(TooLarge, match="job j1 has"):
        packed_with("history", ["small", "x" * (64 * 2**20)])
    with pytest.raises(TooLarge, match=r"secrets/000001\.sealed"):
        Writer(io.BytesIO()).put("secrets/000001.sealed", bytes(16 * 2**20 + 1))


def test_sealed_entry_needs_the_same_key_and_entry_name() -> None:
    right, wrong = from_passphrase("one"), from_passphrase("two")
    sealed = right.seal("secrets/1", b"value")
    assert b"value" not in sealed
    assert right.unseal("secrets/1", sealed) == b"value"
    for key, name in ((wrong, "secrets/1"), (right, "secrets/2")):
        with pytest.raises(Refused, match=name):
            key.unseal(name, sealed)
    assert right.mac("x") != wrong.mac("x")
    assert "one" not in repr(right)
    assert right.secret.hex() not in repr(right)


def test_key_file_is_created_once_with_mode_0600_and_reused(tmp_path: Path) -> None:
    key, made = made_key_file(tmp_path / "key")
    again, made_again = made_key_file(tmp_path / "key")
    assert (made, made_again) == (True, False)
    assert key == again == key_file(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert opening_key(key.described(), file=tmp_path / "key", passphrase=None) == key


def test_error_for_wrong_or_missing_key_says_what_to_do(tmp_path: Path) -> None:
    key, _ = made_key_file(tmp_path / "key")
    made_key_file(tmp_path / "other")
    (tmp_path / "rubbish").write_text("weftbk1_secret\n")
    for file, message in (("other", "is not that of this backup"), ("none", "--key FILE"), ("rubbish", "is no key")):
        with pytest.raises(InvalidRequest, match=message) as caught:
            opening_key(key.described(), file=tmp_path / file, passphrase=None)
        assert "weftbk1_secret" not in caught.value.message
    typed = from_passphrase("right")
    assert opening_key(typed.described(), file=tmp_path / "none", passphrase="right") == typed
    with pytest.raises(InvalidRequest, match="not the passphrase"):
        opening_key(typed.described(), file=tmp_path / "none", passphrase="wrong")
    with pytest.raises(InvalidRequest, match="--passphrase"):
        opening_key(typed.described(), file=tmp_path / "key", passphrase=None)

"""Bytes to lines: the same lines however the bytes are written, read or interrupted."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.helper.ship.lines import LINE_BYTES, Piece, split

SMALL = 16
TEXT = st.lists(
    st.sampled_from([b"a", b"line", b"\n", b"\r", b"\r\n", "é".encode(), "漢字".encode(), b"\xff", b"\x80", b"x" * 20]),
    max_size=40,
).map(b"".join)


def split_all(data: bytes) -> list[Piece]:
    return list(split(data, 0, ended=True, limit=SMALL))


@given(TEXT)
def test_every_byte_belongs_to_exactly_one_piece(data: bytes) -> None:
    pieces = split_all(data)
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces)][: len(pieces)]
    assert (pieces[-1].end if pieces else 0) == len(data)


@given(TEXT, st.lists(st.integers(1, 30), max_size=20))
@example(b"x" * 20 + "é".encode(), [17, 1])
def test_lines_do_not_depend_on_how_bytes_arrive(data: bytes, steps: list[int]) -> None:
    pieces: list[Piece] = []
    arrived = 0
    for step in [*steps, len(data)]:
        arrived = min(len(data), arrived + step)
        place = pieces[-1].end if pieces else 0
        pieces += split(data[place:arrived], place, ended=False, limit=SMALL)
    place = pieces[-1].end if pieces else 0
    pieces += split(data[place:], place, ended=True, limit=SMALL)
    assert pieces == split_all(data)


@given(TEXT, st.data())
def test_restart_at_any_boundary_gives_the_same_lines(data: bytes, draw: st.DataObject) -> None:
    pieces = split_all(data)
    at = draw.draw(st.integers(0, len(pieces)))
    place = pieces[at - 1].end if at else 0
    assert [*pieces[:at], *split(data[place:], place, ended=True, limit=SMALL)] == pieces


@given(TEXT | st.binary())
def test_text_is_always_storable_utf8_without_nul(data: bytes) -> None:
    for piece in split_all(data):
        assert len(piece.raw) <= SMALL
        assert "\0" not in piece.text
        assert len(piece.text.encode()) <= 4 * len(piece.raw)


@pytest.mark.parametrize("noise", [b"\xff", b"\0", b"a\xff\0", b"\xc3"])
def test_binary_output_does_not_outgrow_the_limit_of_a_line(noise: bytes) -> None:
    (piece,) = split((noise * LINE_BYTES)[:LINE_BYTES], 0, ended=True)
    assert len(piece.text.encode()) <= LINE_BYTES
    assert set(piece.text) <= {"?", "a"}


@given(TEXT.filter(lambda data: b"\r" not in data))
def test_nothing_is_left_out_of_output_without_progress_bars(data: bytes) -> None:
    shown = b"".join(piece.raw + (b"" if piece.partial else b"\n") for piece in split_all(data))
    assert shown.rstrip(b"\n") == data.rstrip(b"\n")


def texts(data: bytes) -> list[str]:
    return [piece.text for piece in split(data, 0, ended=True)]


def test_progress_bar_is_shown_in_its_last_state() -> None:
    assert texts(b"10%\r20%\r100%\ndone\n") == ["100%", "done"]
    assert texts(b"windows\r\n") == ["windows"]
    assert texts(b"\r 50%\r") == [" 50%"]


def test_endless_progress_bar_is_read_on_and_shows_no_older_state() -> None:
    data = b"".join(b"%5d%%\r" % step for step in range(10_000))
    pieces = list(split(data, 0, ended=False))
    assert len(pieces) == len(data) // LINE_BYTES
    assert all(piece.superseded and not piece.partial for piece in pieces)
    assert [piece.text for piece in split(data, 0, ended=True) if not piece.superseded] == [" 9999%"]


def test_long_line_is_cut_between_characters_and_marked_as_partial() -> None:
    pieces = list(split("é".encode() * 10_000 + b"\n", 0, ended=False))
    assert [(piece.end - piece.start, piece.partial) for piece in pieces] == [(LINE_BYTES, True), (3617, False)]
    odd = list(split(b"x" + "é".encode() * 10_000 + b"\n", 0, ended=False))
    assert [piece.end - piece.start for piece in odd] == [LINE_BYTES - 1, 3619]
    assert "�" not in "".join(piece.text for piece in odd)


def test_line_without_newline_is_complete_at_the_end_of_the_file() -> None:
    assert list(split(b"unfinished", 5, ended=False)) == []
    assert list(split(b"unfinished", 5, ended=True)) == [Piece(5, 15, b"unfinished", partial=False)]


def test_undecodable_bytes_and_nul_are_escaped_visibly() -> None:
    assert texts(b"\xff\xfe caf\xc3\xa9\na\0b\n") == ["\\xff\\xfe café", "a\\x00b"]


def test_long_progress_bar_leaves_its_last_state_only() -> None:
    states = [f"epoch 1: {percent:3}%" for percent in range(100)]
    for end in (b"", b"\n", b"\r\n", b"\r"):
        pieces = split_all("\r".join(states).encode() + end)
        assert len(pieces) > 50
        assert [piece.text for piece in pieces if not piece.superseded] == [states[-1]], end

"""From bytes to lines: the same however they were written, read or cut short."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from services.helper.ship.lines import LINE_BYTES, Piece, split

SMALL = 16
TEXT = st.lists(
    st.sampled_from([b"a", b"line", b"\n", b"\r", b"\r\n", "é".encode(), "漢字".encode(), b"\xff", b"\x80", b"x" * 20]),
    max_size=40,
).map(b"".join)


def whole(data: bytes) -> list[Piece]:
    return list(split(data, 0, ended=True, limit=SMALL))


@given(TEXT)
def test_every_byte_belongs_to_exactly_one_piece(data: bytes) -> None:
    pieces = whole(data)
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces)][: len(pieces)]
    assert (pieces[-1].end if pieces else 0) == len(data)


@given(TEXT, st.lists(st.integers(1, 30), max_size=20))
@example(b"x" * 20 + "é".encode(), [17, 1])
def test_any_way_of_arriving_gives_the_same_lines(data: bytes, steps: list[int]) -> None:
    found: list[Piece] = []
    arrived = 0
    for step in [*steps, len(data)]:
        arrived = min(len(data), arrived + step)
        place = found[-1].end if found else 0
        found += split(data[place:arrived], place, ended=False, limit=SMALL)
    place = found[-1].end if found else 0
    found += split(data[place:], place, ended=True, limit=SMALL)
    assert found == whole(data)


@given(TEXT, st.data())
def test_a_restart_at_any_boundary_gives_the_same_lines(data: bytes, draw: st.DataObject) -> None:
    pieces = whole(data)
    at = draw.draw(st.integers(0, len(pieces)))
    place = pieces[at - 1].end if at else 0
    assert [*pieces[:at], *split(data[place:], place, ended=True, limit=SMALL)] == pieces


@given(TEXT)
def test_text_is_never_longer_than_its_bytes_and_always_utf8(data: bytes) -> None:
    for piece in whole(data):
        assert len(piece.text.encode()) <= max(len(piece.raw), 0) <= SMALL


@given(TEXT.filter(lambda data: b"\r" not in data))
def test_without_progress_bars_nothing_is_left_out(data: bytes) -> None:
    shown = b"".join(piece.raw + (b"" if piece.partial else b"\n") for piece in whole(data))
    assert shown.rstrip(b"\n") == data.rstrip(b"\n")


def texts(data: bytes) -> list[str]:
    return [piece.text for piece in split(data, 0, ended=True)]


def test_a_progress_bar_is_its_last_state() -> None:
    assert texts(b"10%\r20%\r100%\ndone\n") == ["100%", "done"]
    assert texts(b"windows\r\n") == ["windows"]
    assert texts(b"\r 50%\r") == [" 50%"]


def test_an_endless_progress_bar_is_shown_now_and_then() -> None:
    data = b"".join(b"%5d%%\r" % step for step in range(10_000))
    shown = list(split(data, 0, ended=False))
    assert len(shown) == len(data) // LINE_BYTES
    assert all(piece.text.endswith("%") and not piece.partial for piece in shown)


def test_a_long_line_is_cut_between_characters_and_marked() -> None:
    pieces = list(split("é".encode() * 10_000 + b"\n", 0, ended=False))
    assert [(piece.end - piece.start, piece.partial) for piece in pieces] == [(LINE_BYTES, True), (3617, False)]
    odd = list(split(b"x" + "é".encode() * 10_000 + b"\n", 0, ended=False))
    assert [piece.end - piece.start for piece in odd] == [LINE_BYTES - 1, 3619]
    assert "�" not in "".join(piece.text for piece in odd)


def test_what_has_no_newline_waits_for_the_end() -> None:
    assert list(split(b"unfinished", 5, ended=False)) == []
    assert list(split(b"unfinished", 5, ended=True)) == [Piece(5, 15, b"unfinished", partial=False)]


def test_noise_becomes_question_marks() -> None:
    assert texts(b"\xff\xfe caf\xc3\xa9\n") == ["?? café"]

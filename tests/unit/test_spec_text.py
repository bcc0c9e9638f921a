"""Parsing of a job spec's text: a plain, finite, bounded mapping, or one clear error."""

import time
from typing import Any

import pytest

from services.core.domain.errors import InvalidSpec
from services.core.formats.spec_text import parse_spec_text
from weft.spec_text import MAX_DEPTH

ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + level, 98 + level, b",".join([b"*%c" % (97 + level)] * 9)) for level in range(9)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"name: x\nlearners: 2\n", {"name": "x", "learners": 2}),
        (b'{"name": "x", "cpus": 0.5, "tags": ["a"], "c": null}', {"name": "x", "cpus": 0.5, "tags": ["a"], "c": None}),
        (b"{name: x, preemptible: true}", {"name": "x", "preemptible": True}),
        (b"# only YAML\nname: x # comment\n", {"name": "x"}),
        (b"\xef\xbb\xbfname: x\n", {"name": "x"}),
        (b"command: |\n  one\n  two\n", {"command": "one\ntwo\n"}),
        (b"a: &x [1, 2]\nb: *x\n", {"a": [1, 2], "b": [1, 2]}),
        (b"a: -7\nb: 0x1F\nc: 0o17\nd: ~\ne:\n", {"a": -7, "b": 31, "c": 15, "d": None, "e": None}),
        (b"a: 1e3\nb: .5\n", {"a": 1000.0, "b": 0.5}),
        (b"a: '1'\nb: !!str 2\nc: \"true\"\n", {"a": "1", "b": "2", "c": "true"}),
        ("name: größe\n".encode(), {"name": "größe"}),
    ],
)
def test_yaml_and_json_are_parsed(text: bytes, expected: dict[str, Any]) -> None:
    assert parse_spec_text(text) == expected


def test_words_with_a_special_meaning_in_yaml_1_1_stay_text() -> None:
    text = b"on: [infrastructure]\nmax_runtime: 1:30\ncountry: no\nsince: 2026-01-01\n"
    assert parse_spec_text(text) == {
        "on": ["infrastructure"],
        "max_runtime": "1:30",
        "country": "no",
        "since": "2026-01-01",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "this one is empty"),
        (b"- a\n- b\n", "this one is a list"),
        (b"hello", "this one is plain text"),
        (b"42", "this one is a single value"),
        (b"a: [1,\n", "line 2, column 1"),
        (b"a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' is given twice"),
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b'{"a": {"b": 1, "b": 2}}', "the key 'b' is given twice"),
        (b"\xff\xfe", "not UTF-8"),
        (b"name: x\nenv: \xe9\n", "not UTF-8 text (line 2)"),
        (b"a: \x00", "control characters"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1e999}', "too large"),
        (b"{a: 1e999}", "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too large"),
        (b"a: .nan\n", "a number is finite"),
        (b"a: -.inf\n", "a number is finite"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'a: "\\ud800"\n', "line 1, column 7"),
        (b"a: !!python/object/apply:os.system [ls]\n", "tags (!) are not allowed"),
        (b"a: !secret x\n", "tags (!) are not allowed"),
        (b"a: 1\n---\nb: 2\n", "one document only"),
        (b"? [a]\n: b\n", "a key is plain text"),
        (b"a: *nobody\n", "alias"),
        (b"a: &a [*a]\n", "alias"),
        (b"\tname: x\n", "line 1, column 1"),
        (b"%YAML 3.0\n---\na: b\n", "incompatible YAML document"),
    ],
)
def test_other_text_is_refused_with_one_clear_error(text: bytes, message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec_text(text)
    assert message in refused.value.message


def test_decoded_text_with_half_of_a_surrogate_pair_is_refused() -> None:
    for text in ("a: \ud800", '{"a": "\ud800"}'):
        with pytest.raises(InvalidSpec, match="surrogate"):
            parse_spec_text(text)


def test_the_error_for_json_has_line_and_column() -> None:
    with pytest.raises(InvalidSpec, match="not valid JSON: line 2, column 8"):
        parse_spec_text(b'{\n  "a": x}', kind="json")
    with pytest.raises(InvalidSpec, match="not valid JSON"):
        parse_spec_text(b"name: x", kind="json")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b"{a: " * 60_000,
        b'{"a":' * 50_000,
        b"- " * 100_000,
        b"? " * 100_000,
        ALIASES,
        b'{"a": [' + b"1," * 100_000 + b"1]}",
        b"a: [" + b"1," * 100_000 + b"1]",
    ],
    ids=["brackets", "braces", "json", "dashes", "keys", "aliases", "long json", "long yaml"],
)
def test_a_bomb_is_refused_in_less_than_two_seconds(text: bytes) -> None:
    begin = time.process_time()  # not the time for which other programs had the processor
    with pytest.raises(InvalidSpec):
        parse_spec_text(text)
    assert time.process_time() - begin < 2


def test_a_spec_may_be_nested_up_to_the_limit() -> None:
    deep = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    parse_spec_text(deep)
    with pytest.raises(InvalidSpec, match="deeper"):
        parse_spec_text(deep.replace("[", "[[", 1).replace("]", "]]", 1))

"""The text of a job filter as a tree: ``status=FAILED and user=a and (created>2d or metric.loss<0.3)``.

    filter     = term { ("and" | "or") term } ; "and" binds more tightly than "or"
    term       = "not" term | "(" filter ")" | comparison
    comparison = field op value | field ["not"] "in" "(" value { "," value } ")"
    op         = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    value      = word | quoted text

A word has no spaces and none of the signs above. Keywords are of any case. ``job_filter`` decides which fields there
are, and whether a value fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from services.core.domain.errors import FieldError, InvalidRequest

MOST_CHARACTERS: Final = 4_000
_MOST_DEPTH: Final = 50
_MOST_COMPARISONS: Final = 100
"""Each is made for each job of a list."""
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<op>!=|<=|>=|==|[=<>~])|(?P<sign>[(),])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<word>[^\s!=<>~(),"']+))""",
)
_KEYWORDS: Final = frozenset({"and", "or", "not", "in"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field compared with values: with any of them for the operator ``in``."""

    field: str
    op: str
    """= != < <= > >= ~ in"""
    values: tuple[str, ...]
    column: int
    """Where it begins in the text, from 1."""


@dataclass(frozen=True, slots=True)
class Not:
    term: Tree


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Tree, ...]


Tree: TypeAlias = Comparison | Not | And | Or


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """op, sign, word, text (quoted) or end."""
    text: str
    column: int

    def is_keyword(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word


def wrong_filter(message: str, hint: str = "") -> InvalidRequest:
    """The error for a filter; ``hint`` says what to write instead."""
    text = f"{message}; {hint}" if hint else message
    return InvalidRequest(f"the filter is wrong: {text}", errors=(FieldError("/query/q", message, hint),))


def parse(text: str) -> Tree | None:
    """The tree of a filter; None for an empty one. Raises InvalidRequest, which names the column."""
    if len(text) > MOST_CHARACTERS:
        raise wrong_filter(f"it has more than {MOST_CHARACTERS} characters")
    if not text.strip():
        return None
    parser = _Parser([*_tokens(text)])
    tree = parser.filter(0)
    if parser.token.kind != "end":
        raise parser.expected("'and', 'or' or the end")
    return tree


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            problem = "a quoted text that does not end" if text[at] in "\"'" else f"the sign {text[at]!r}"
            raise wrong_filter(f"column {at + 1}: {problem}")
        kind = str(match.lastgroup)
        value = match[kind]
        if kind in {"double", "single"}:
            kind, value = "text", re.sub(r"\\(.)", r"\1", value)
        yield _Token(kind, value, match.start(match.lastgroup or 0) + 1)
        at = match.end()
    yield _Token("end", "", end + 1)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._comparisons = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._at]

    def expected(self, what: str) -> InvalidRequest:
        """The error for the current token."""
        before = f"'{self.token.text[:40]}'" if self.token.kind != "end" else "the end"
        return wrong_filter(f"column {self.token.column}: {what} is missing before {before}")

    def filter(self, depth: int) -> Tree:
        terms = [self._all(depth)]
        while self._skip("or"):
            terms.append(self._all(depth))
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _all(self, depth: int) -> Tree:
        terms = [self._term(depth)]
        while self._skip("and"):
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _term(self, depth: int) -> Tree:
        if depth > _MOST_DEPTH:
            raise wrong_filter(f"column {self.token.column}: it is nested more than {_MOST_DEPTH} times")
        if self._skip("not"):
            return Not(self._term(depth + 1))
        if self._sign("("):
            tree = self.filter(depth + 1)
            if not self._sign(")"):
                raise self.expected("')'")
            return tree
        return self._comparison()

    def _comparison(self) -> Tree:
        field = self.token
        if field.kind not in {"word", "text"} or (field.kind == "word" and field.text.lower() in _KEYWORDS):
            raise self.expected("the name of a field")
        self._comparisons += 1
        if self._comparisons > _MOST_COMPARISONS:
            message = f"column {field.column}: it has more than {_MOST_COMPARISONS} comparisons"
            raise wrong_filter(message, "write several values of one field as: FIELD in (A, B)")
        self._at += 1
        if self._skip("not"):
            if not self._skip("in"):
                raise self.expected("'in'")
            return Not(self._any_of(field))
        if self._skip("in"):
            return self._any_of(field)
        op = self.token
        if op.kind != "op":
            raise self.expected("one of = != < <= > >= ~ in")
        self._at += 1
        return Comparison(field.text, "=" if op.text == "==" else op.text, (self._value(),), field.column)

    def _any_of(self, field: _Token) -> Comparison:
        if not self._sign("("):
            raise self.expected("'('")
        values = [self._value()]
        while self._sign(","):
            values.append(self._value())
        if not self._sign(")"):
            raise self.expected("',' or ')'")
        return Comparison(field.text, "in", tuple(values), field.column)

    def _value(self) -> str:
        token = self.token
        if token.kind not in {"word", "text"}:
            raise self.expected("a value")
        self._at += 1
        return token.text

    def _skip(self, keyword: str) -> bool:
        if not self.token.is_keyword(keyword):
            return False
        self._at += 1
        return True

    def _sign(self, sign: str) -> bool:
        if self.token.kind != "sign" or self.token.text != sign:
            return False
        self._at += 1
        return True

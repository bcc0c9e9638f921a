"""Damages documents by seed, as a manual edit, a bad disk or another version would.

Each mutation has a kind, so that a run can say how often each was tried.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

_JUNK: Final[tuple[Any, ...]] = (
    None,
    True,
    "",
    "x",
    "\x00\ud800",
    "é" * 2000,
    -1,
    0,
    2**63,
    10**40,
    -(10**40),
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    {"": None},
    ["a", 1, {}],
    {"state": {"status": "QUEUED"}},
    "BANANA",
    "RESUMED",
)


class Mutator:
    """``counts``: kind of damage -> how often it was made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def text(self, document: Any) -> str:
        """Returns the document's text with one kind of damage."""
        kinds: dict[str, Callable[[Any], str]] = {
            "field gone": self._gone,
            "field of another type": self._junk,
            "field of another type, twice": self._twice,
            "unknown fields": self._unknown,
            "newer schema": self._newer,
            "torn": self._torn,
            "byte flipped": self._flipped,
            "another document": self._other,
            "nested too deep": self._nested,
            "not JSON": self._not_json,
        }
        kind = self.random.choice(sorted(kinds))
        self.counts[kind] += 1
        return kinds[kind](copy.deepcopy(document))

    def content(self, document: Any) -> bytes:
        """Returns the damaged document as bytes, which may be no valid text."""
        if self.random.random() < 0.15:
            self.counts["bytes"] += 1
            return self.random.randbytes(self.random.choice((0, 1, 17, 4096)))
        return self.text(document).encode("utf-8", "surrogatepass")

    def line(self) -> bytes:
        """Returns a line that a learner may print: any bytes except a newline."""
        self.counts["log line"] += 1
        report = {"time_ms": self._junk_value(), "step": self._junk_value(), "values": {"loss": self._junk_value()}}
        made = self.random.choice(
            (
                self.random.randbytes(self.random.randrange(1, 200)),
                b"\x1b]0;owned\x07\x1b[2J" + b"\x00" * 5,
                b'{"step": 1e999, "loss": NaN, "' + self.random.randbytes(5),
                json.dumps(report).encode(),
                b"x" * 70_000,
                "\u202e\ufeff\U000e0001 {}[]<script>".encode(),
            )
        )
        return made.replace(b"\n", b" ")

    def _junk_value(self) -> Any:
        return self.random.choice(_JUNK)

    def _places(self, document: Any) -> list[tuple[Any, Any]]:
        """Returns (container, key) of every value inside."""
        places: list[tuple[Any, Any]] = []
        front = [document]
        while front:
            container = front.pop()
            keys = (
                list(container)
                if isinstance(container, dict)
                else range(len(container))
                if isinstance(container, list)
                else ()
            )
            for key in keys:
                places.append((container, key))
                front.append(container[key])
        return places

    def _gone(self, document: Any) -> str:
        if places := self._places(document):
            container, key = self.random.choice(places)
            del container[key]
        return json.dumps(document)

    def _junk(self, document: Any) -> str:
        if not (places := self._places(document)):
            return json.dumps(self._junk_value())
        container, key = self.random.choice(places)
        container[key] = self._junk_value()
        return json.dumps(document)

    def _twice(self, document: Any) -> str:
        return self._junk(json.loads(self._junk(document)))

    def _unknown(self, document: Any) -> str:
        containers = [document, *(c[k] for c, k in self._places(document))]
        for container in self.random.sample(containers, min(3, len(containers))):
            if isinstance(container, dict):
                container[self.random.choice(("colour", "extra", "_id", "", "__class__"))] = self._junk_value()
        return json.dumps(document)

    def _newer(self, document: Any) -> str:
        return json.dumps(
            {**document, "schema": self.random.choice((2, 99, 10**30))} if isinstance(document, dict) else 2
        )

    def _torn(self, document: Any) -> str:
        whole = json.dumps(document)
        return whole[: self.random.randrange(len(whole) + 1)]

    def _flipped(self, document: Any) -> str:
        whole = bytearray(json.dumps(document).encode())
        if whole:
            whole[self.random.randrange(len(whole))] ^= 1 << self.random.randrange(7)
        return whole.decode("latin-1")

    def _other(self, document: Any) -> str:
        return json.dumps(self.random.choice(({"id": "j0"}, [document], {"doc": document}, "document", 7, None)))

    def _nested(self, document: Any) -> str:
        return "[" * 20_000 if self.random.random() < 0.5 else '{"a":' * 5_000

    def _not_json(self, document: Any) -> str:
        return self.random.choice(
            ("", "{", "\x00", "NaN", "Infinity", "'x'", "<html>", "{}{}", "\ufeff{}", "undefined")
        )

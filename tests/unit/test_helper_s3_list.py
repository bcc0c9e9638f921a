"""Reading the list of a bucket, whatever the server sends."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from services.helper.fetch.s3_list import Listed, UnreadableList, read_page

MIB = 2**20
PAGE = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<Name>b</Name><Prefix>p/</Prefix><IsTruncated>{more}</IsTruncated>{token}"
    "<Contents><Key>p/\u00e4&amp;&lt;</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>&quot;e1&quot;</ETag>"
    "<Size>5</Size><Owner><ID>o</ID><Key>not this one</Key></Owner><StorageClass>STANDARD</StorageClass></Contents>"
    "<Contents><Key>p/b</Key><Size>0</Size></Contents><CommonPrefixes><Prefix>p/c/</Prefix></CommonPrefixes>"
    "</ListBucketResult>"
)
OBJECTS = [Listed("p/\u00e4&<", 5, "e1"), Listed("p/b", 0, "")]


def in_chunks(text: bytes, size: int = 64 * 1024) -> Iterator[bytes]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 64 * 1024])
def test_a_page_has_its_objects_and_the_token_of_the_next(size: int) -> None:
    last = PAGE.format(more="false", token="<NextContinuationToken>left over</NextContinuationToken>").encode()
    assert read_page(in_chunks(last, size)) == (OBJECTS, "")
    first = PAGE.format(more="true", token="<NextContinuationToken>t/1=</NextContinuationToken>").encode()
    assert read_page(in_chunks(first, size)) == (OBJECTS, "t/1=")


def test_names_with_a_prefix_are_the_same() -> None:
    text = b'<s:L xmlns:s="http://s3/"><s:Contents><s:Key>k</s:Key><s:Size>1</s:Size></s:Contents></s:L>'
    assert read_page([text]) == ([Listed("k", 1, "")], "")


HOSTILE = {
    "elements": b"<a>" + b"<b/>" * (4 * MIB - 10) + b"</a>",
    "levels": b"<a>" * (2 * MIB) + b"</a>" * (2 * MIB),
    "attributes": b"<a" + b"".join(b" b%06x=''" % number for number in range(MIB)) + b"/>",
    "a long name": b"<" + b"a" * (15 * MIB) + b"/>",
    "a comment": b"<a><!--" + b"x" * (15 * MIB) + b"--></a>",
    "text": b"<a><Contents><Key>" + b"x" * (17 * MIB) + b"</Key></Contents></a>",
    "entities": b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_a_page_of_a_hostile_server_takes_little_memory(what: str) -> None:
    text = HOSTILE[what]
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableList):
            read_page(in_chunks(text))
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", ["", "-1", "1.0", "\u0663", "9" * 5_000, "1 "])
def test_a_size_that_is_no_number_is_refused(size: str) -> None:
    with pytest.raises(UnreadableList):
        read_page([f"<a><Contents><Key>k</Key><Size>{size}</Size></Contents></a>".encode()])

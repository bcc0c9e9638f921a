"""Jobs as bytes, for what the api keeps of documents in memory.

A document whose spec has thousands of variables takes several times its size as objects, and how much nobody can say
cheaply. As bytes its size is known exactly, so what is kept can be bounded by it.
"""

from __future__ import annotations

from typing import Final

from msgspec import msgpack

from services.core.domain.job import Job

_ENCODER: Final = msgpack.Encoder()
_DECODER: Final = msgpack.Decoder(Job)


def pack(job: Job) -> bytes | None:
    """The job as bytes: microseconds for an ordinary one. None for a document with values that bytes cannot express,
    such as a number of more than 64 bits.
    """
    try:
        return _ENCODER.encode(job)
    except (OverflowError, RecursionError, TypeError, ValueError):
        return None


def unpack(packed: bytes) -> Job:
    """The job that was packed."""
    return _DECODER.decode(packed)

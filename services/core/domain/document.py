"""From what a store gives back to a job, saying why where it cannot be read.

Every job store reads documents through here, so that they agree on what is malformed (somebody's harm to one job,
law 5) and what is merely newer (a rolling upgrade: left alone, never quarantined).
"""

from __future__ import annotations

from collections.abc import Mapping

from services.core.domain.codec import load
from services.core.domain.errors import Conflict, Internal
from services.core.domain.job import SCHEMA, Job


def read_job(document: object) -> Job:
    """The job of a document. Conflict where its schema is newer than ours; Internal where it does not fit."""
    if not isinstance(document, Mapping):
        raise Internal(f"a job document is a mapping, not {type(document).__name__}")
    schema = document.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise Conflict(
            f"job {document.get('id')} was written by a newer Weft (schema {schema}, this one reads {SCHEMA}); "
            "finish the upgrade"
        )
    try:
        return load(Job, document)
    except (TypeError, ValueError) as error:
        raise Internal(f"job document {document.get('id')} cannot be read: {error}") from error

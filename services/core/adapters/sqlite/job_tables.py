"""The tables of the job store, and the index that each of its queries reads.

SQLite computes the columns of queries (tenant, status, ...) from the document, so they cannot disagree with it. They
are NULL if a document is not JSON, and no query matches NULL: a bad row affects only its own job. The other columns
must be valid even in a bad row: the id, the revision and the idempotency key.

Each query names its index (INDEXED BY), so its plan does not depend on statistics: it seeks, reads rows in the order of
the result and sorts nothing. The number of jobs at rest costs it nothing (docs/adr/0018-history-and-deletion.md). A
query whose index is not ordered by id, because it matches several statuses, is several scans that are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from services.core.adapters.sqlite.database import AddedColumn
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.held_document import HELD_PATHS
from services.core.domain.job import PLATFORM
from services.core.domain.status import RESTING, Desired, Status
from services.core.ports.job_store import JobQuery

_HOLDS: Final = "coalesce(doc->>'$.attempt.number', 0) > 0 AND doc->>'$.released' IS NULL"
_UNLESS_ERASED: Final = "CASE WHEN doc->>'$.erased' IS NULL THEN doc->>'$.{}' END"
_STOPPED: Final = (
    f"status = '{Status.HALTED}' AND doc->>'$.desired' = '{Desired.HALT}' AND doc->>'$.desired_by' = '{PLATFORM}'"
)
_RELEASED: Final = "doc->>'$.released'"
_AT_REST: Final = ", ".join(f"'{status}'" for status in sorted(RESTING))
_COMPUTED: Final = {
    "schema INTEGER": "coalesce(doc->>'$.schema', 1)",
    "tenant TEXT": "doc->>'$.tenant'",
    "user TEXT": "doc->>'$.user'",
    "name TEXT": "doc->>'$.spec.name'",
    "tags TEXT": "doc->'$.spec.tags'",
    "status TEXT": "doc->>'$.state.status'",
    "holder TEXT": "coalesce(doc->>'$.guardian.holder', '')",
    "holds INTEGER": _HOLDS,
    "tail INTEGER": "coalesce(json_array_length(doc, '$.history_tail'), 0) > 0",
    "deleted INTEGER": "doc->>'$.deleted' IS NOT NULL",
}


def _where_json(expression: str) -> str:
    """The expression, NULL where the document is not JSON. Mode 2 accepts JSON5: Python writes NaN in a summary."""
    return f"AS (CASE WHEN json_valid(doc, 2) THEN {expression} END)"


_COLUMNS: Final = ", ".join(f"{column} {_where_json(expression)} STORED" for column, expression in _COMPUTED.items())
TABLES: Final[Sequence[str | AddedColumn]] = (
    f"""CREATE TABLE IF NOT EXISTS jobs(
        id TEXT PRIMARY KEY NOT NULL, rev INTEGER NOT NULL, idem TEXT UNIQUE NOT NULL, doc TEXT NOT NULL, {_COLUMNS}
    )""",
    # Files of older versions get these at their next start. No row is written; only the indexes are built.
    AddedColumn("jobs", "live", f"INTEGER {_where_json(f'NOT (status IN ({_AT_REST}) AND NOT holds)')} VIRTUAL"),
    # NULL once the job's data is erased: it names no code, and nothing of it is to be erased.
    AddedColumn("jobs", "code", f"TEXT {_where_json(_UNLESS_ERASED.format('code_digest'))} VIRTUAL"),
    AddedColumn("jobs", "to_erase", f"INTEGER {_where_json(_UNLESS_ERASED.format('deleted'))} VIRTUAL"),
    AddedColumn("jobs", "change", "INTEGER NOT NULL DEFAULT 0"),
    AddedColumn("jobs", "stopped", f"INTEGER {_where_json(_STOPPED)} VIRTUAL"),
    AddedColumn("jobs", "released", f"INTEGER {_where_json(_RELEASED)} VIRTUAL"),
    "CREATE INDEX IF NOT EXISTS jobs_by_tenant ON jobs(tenant, deleted, status, id)",
    "CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs(status, id)",
    "CREATE INDEX IF NOT EXISTS jobs_of_tenant ON jobs(tenant, deleted, id)",
    "CREATE INDEX IF NOT EXISTS jobs_by_user ON jobs(tenant, deleted, user, id)",
    "CREATE INDEX IF NOT EXISTS jobs_by_name ON jobs(tenant, deleted, name, id)",
    "CREATE INDEX IF NOT EXISTS jobs_live ON jobs(live, holds, id)",
    "CREATE INDEX IF NOT EXISTS jobs_with_tail ON jobs(tail, id)",
    "CREATE INDEX IF NOT EXISTS jobs_counted ON jobs(deleted, status, tenant, schema)",
    "CREATE INDEX IF NOT EXISTS jobs_changed ON jobs(change, id, rev)",
    "CREATE INDEX IF NOT EXISTS jobs_with_code ON jobs(tenant, code)",
    "CREATE INDEX IF NOT EXISTS jobs_to_erase ON jobs(to_erase, id)",
    "CREATE INDEX IF NOT EXISTS jobs_stopped ON jobs(stopped, id)",
    # With the tenant at its end: the rows of other tenants are not read.
    "CREATE INDEX IF NOT EXISTS jobs_released ON jobs(released, id, tenant)",
    "DROP INDEX IF EXISTS jobs_holding",
    "DROP INDEX IF EXISTS jobs_untrimmed",
    """CREATE TABLE IF NOT EXISTS history(
        job TEXT NOT NULL, seq INTEGER NOT NULL, tenant TEXT NOT NULL, event TEXT NOT NULL, PRIMARY KEY (job, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dispatcher(
        one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL, holder TEXT NOT NULL, rev INTEGER NOT NULL
    )""",
    # The number of writes of jobs so far. The maximum of their column would fall when a job is removed.
    "CREATE TABLE IF NOT EXISTS changes(one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO changes VALUES (1, 0)",
)


TO_ERASE: Final = (
    "SELECT id, doc, rev, to_erase FROM jobs INDEXED BY jobs_to_erase"
    " WHERE to_erase <= ? AND (to_erase, id) > (?, ?) ORDER BY to_erase, id LIMIT ?"
)
NAMES_CODE: Final = (
    "SELECT 1 FROM jobs INDEXED BY jobs_with_code WHERE tenant = ? AND code = ?"
    " UNION ALL SELECT 1 FROM jobs INDEXED BY jobs_with_code WHERE tenant IS NULL LIMIT 1"
)
_HELD_VALUES: Final = f"json_extract(doc, {', '.join(repr(f'$.{path}') for path in HELD_PATHS)})"
BY_ID: Final = "jobs INDEXED BY sqlite_autoindex_jobs_1"
"""The index of the primary key."""
Values: TypeAlias = tuple[str | int, ...]
_Term: TypeAlias = tuple[str, Values]
"""SQL of a condition, and its values."""


@dataclass(frozen=True, slots=True)
class Scan:
    """One range of an index that is in the order of ids."""

    source: str
    """``jobs`` and the index."""
    where: str
    values: Values

    def page(self, *, newest_first: bool, after: str | None) -> tuple[str, Values]:
        """SQL of the rows (id, doc, rev) after ``after``, and its values; the limit is the last one, to be added."""
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        # A primary key is read in its order only from a bound on: the lowest id is above "".
        bound, value = ("id >", "") if after is None else (f"id {beyond}", after)
        select = f"SELECT id, doc, rev FROM {self.source} WHERE {self.where} AND {bound} ? ORDER BY id {order} LIMIT ?"  # noqa: S608 - our text
        return select, (*self.values, value)


def scans(query: JobQuery) -> list[Scan]:
    """The scans that together yield each row that matches the query, once, without its cursor."""
    filters, values = _filters(query)
    if query.holding or query.live:
        holds = (0, 1) if query.holding is None else (int(query.holding),)
        fixed: list[_Term] = [(f"live = 1 AND holds = {held}", ()) for held in holds]
        return _scans("jobs INDEXED BY jobs_live", fixed, filters, values)
    if query.untrimmed:
        return _scans("jobs INDEXED BY jobs_with_tail", [("tail = 1", ())], filters, values)
    if query.stopped:
        return _scans("jobs INDEXED BY jobs_stopped", [("stopped = 1", ())], filters, values)
    statuses: list[_Term] = [("status = ?", (status,)) for status in query.statuses]
    if query.tenant is None:
        if statuses:
            return _scans("jobs INDEXED BY jobs_by_status", statuses, filters, values)
        return _scans(BY_ID, [("TRUE", ())], filters, values)
    index: str = "jobs_of_tenant"
    narrow: list[_Term] = [("TRUE", ())]
    if statuses and RESTING.isdisjoint(query.statuses):  # few, where a user or a name may have had many jobs
        index, narrow = "jobs_by_tenant", statuses
    elif query.name is not None:
        index, narrow = "jobs_by_name", [("name = ?", (query.name,))]
    elif query.user is not None:
        index, narrow = "jobs_by_user", [("user = ?", (query.user,))]
    elif statuses:
        index, narrow = "jobs_by_tenant", statuses
    visible = (0, 1) if query.deleted else (0,)
    fixed = [
        (f"tenant = ? AND deleted = {deleted} AND {term}", (query.tenant, *given))
        for deleted, (term, given) in product(visible, narrow)
    ]
    return _scans(f"jobs INDEXED BY {index}", fixed, filters, values)


def counts(query: JobQuery, status: str) -> Scan:
    """The rows of this status that match the query, of a schema that this version reads; without its cursor."""
    filters, values = _filters(query)
    visible = "deleted IN (0, 1)" if query.deleted else "deleted = 0"
    return Scan("jobs INDEXED BY jobs_counted", f"{visible} AND status = ? AND {filters}", (status, *values))


def held(
    *, released_since: int | None, tenant: str | None, after: tuple[int, str] | None, limit: int
) -> tuple[str, Values]:
    """SQL of a page of ``JobStore.held`` and its values. Rows: place, id, values at HELD_PATHS as JSON."""
    where: str
    values: Values
    if released_since is None:
        index, place, order, values = "jobs_live", "0", "id", ((after or (0, ""))[1],)
        where = "live = 1 AND holds = 1 AND id > ?"
    else:
        # A damaged document may have a text there, which is above all numbers.
        index, place, order = "jobs_released", "released", "released, id"
        where, values = "released <= ? AND (released, id) > (?, ?)", (MAX_TIME_MS, *(after or (released_since, "")))
    if tenant is not None:
        where, values = f"{where} AND tenant = ?", (*values, tenant)
    select = f"SELECT {place}, id, {_HELD_VALUES} FROM jobs INDEXED BY {index} WHERE {where}"  # noqa: S608 - our text
    return f"{select} ORDER BY {order} LIMIT ?", (*values, limit)


def _scans(
    source: str,
    fixed: Sequence[_Term],
    filters: str,
    values: Values,
) -> list[Scan]:
    return [Scan(source, f"{term} AND {filters}", (*given, *values)) for term, given in fixed]


def _filters(query: JobQuery) -> tuple[str, Values]:
    """SQL of everything that the query says, and its values."""
    terms = ["status IS NOT NULL"]
    values: list[str | int] = []
    for column, value in (
        ("tenant", query.tenant),
        ("user", query.user),
        ("holder", query.holder),
        ("name", query.name),
    ):
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if query.statuses:
        terms.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        values.extend(query.statuses)
    if query.tag is not None:
        terms.append("EXISTS (SELECT 1 FROM json_each(jobs.tags) WHERE value = ?)")
        values.append(query.tag)
    for column, flag in (("live", query.live), ("holds", query.holding)):
        if flag is not None:
            terms.append(f"{column} = {int(flag)}")
    if query.untrimmed:
        terms.append("tail = 1")
    if query.stopped:
        terms.append("stopped = 1")
    if not query.deleted:
        terms.append("deleted = 0")
    return " AND ".join(terms), tuple(values)

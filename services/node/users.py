"""Records which tenant each user id of learners has served. It serves another one only when nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from services.core.domain.codec import MALFORMED
from services.core.runtime.durable_files import read_json, write_json
from services.node.allocation import Pool, Taken, pick_uid

log = structlog.get_logger()


class Users:
    """One small file per uid below ``folder``: ``{tenant}``. ``trace_of``: what is left of a uid; empty: nothing."""

    def __init__(self, folder: Path, pool: Pool, trace_of: Callable[[int], str]) -> None:
        self._folder = folder
        self._pool = pool
        self._trace_of = trace_of

    def pick(self, job: str, tenant: str, taken: Taken) -> int:
        """A uid for the job, recorded durably. ResourceExhausted if there is none, NoSpace.

        May take a second: it looks through processes and files of a uid that has served another tenant.
        """
        uid = pick_uid(job, taken, self._pool, lambda uid: self._is_clean(uid, tenant))
        if self._tenant(uid) != tenant:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_json(self._folder / f"{uid}.json", {"tenant": tenant})
        return uid

    def _is_clean(self, uid: int, tenant: str) -> bool:
        before = self._tenant(uid)
        if before in {None, tenant}:
            return True
        trace = self._trace_of(uid)
        if trace:
            log.warning("user.not_reused", uid=uid, tenant=before, trace=trace)
        return not trace

    def _tenant(self, uid: int) -> str | None:
        """None if it has served nobody. A record that cannot be read is of a tenant without a name."""
        try:
            document = read_json(self._folder / f"{uid}.json")
            return None if document is None else str(document["tenant"])
        except MALFORMED:
            return ""

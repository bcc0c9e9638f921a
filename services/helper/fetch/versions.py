"""The versions of data that one attempt uses on this node: all of its learners here get the same bytes.

The folder lies beside the learners' folders and is removed with the attempt. The first learner to fetch an input
records its digest; a learner that fetches another version later fails with a reason, because a gang must not train on
two. A downloaded file is kept there under a second name, so the others of the gang take it without another download.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from services.core.domain.codec import MALFORMED
from services.core.domain.plan import Input
from services.core.runtime.durable_files import read_json, write_json
from services.helper.fetch.progress import FetchFailed

CHANGED: Final = "DataChanged"


class DataVersions:
    """Files in ``root``, which is made if it is missing and closed to learners."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def record(self, entry: Input, digest: str) -> None:
        """Records the digest of an input; raises FetchFailed if a sibling has recorded another."""
        path = self._root / f"{_name(entry)}.json"
        with self._locked():
            recorded = self.digest(entry)
            if recorded is None:
                write_json(path, {"digest": digest}, durable=False)
            elif recorded != digest:
                raise FetchFailed(
                    CHANGED,
                    f"the data for '{entry.mount}' changed while the learners fetched it, so they would train on "
                    "different versions; submit the job again",
                )

    def digest(self, entry: Input) -> str | None:
        """The recorded digest of an input; None before any learner of the attempt has it."""
        try:
            document = read_json(self._root / f"{_name(entry)}.json")
            return None if document is None else str(document["digest"])
        except MALFORMED:
            return None

    def file(self, entry: Input) -> Path:
        """The place of the attempt's own name of a downloaded file."""
        return self._root / f"{_name(entry)}.body"

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # held for microseconds
            yield
        finally:
            os.close(fd)


def _name(entry: Input) -> str:
    return hashlib.sha256(f"{entry.type}\0{entry.location}\0{entry.path}".encode(errors="replace")).hexdigest()

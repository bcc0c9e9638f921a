"""What is fetched, in which order: the cheap before the long, so that a wrong job fails fast."""

from __future__ import annotations

import errno

from services.helper.fetch import Cannot, Fetched, Watched
from services.helper.fetch.code import fetch_code
from services.helper.folder import Assignment, LearnerFolder


def fetch_all(folder: LearnerFolder, assignment: Assignment, watched: Watched) -> Fetched:
    """Cannot with a reason for whatever goes wrong for good; Cancelled."""
    job = folder.root / "job"
    out = Fetched()
    try:
        fetch_code(assignment, job / "model-code")
        watched.check()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Cannot("NoSpace", "this machine's disk is full; make room, and submit the job again") from error
        raise
    return out

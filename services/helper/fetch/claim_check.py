"""Whether results can be stored on the job's claim, tried before the training."""

from __future__ import annotations

import os
from typing import Final

from services.core.domain.errors import NoSpace, PermissionDenied, Unavailable
from services.core.domain.outages import Outage
from services.core.domain.plan import Output
from services.core.runtime.learner_folder import Assignment, LearnerFolder
from services.helper.claim import claim_of
from services.helper.fetch.progress import FetchFailed

_DENIED: Final = "DataStoreDenied"


def check_claim(folder: LearnerFolder, assignment: Assignment, output: Output) -> None:
    """Makes the folder of the learner's results, and writes a file beside it.

    Raises FetchFailed if the claim cannot be written: after the training its results would be lost.
    """
    claim = claim_of(folder, assignment, output)
    try:
        claim.make_folder()
        claim.begin()
        claim.write(b"\0")
        claim.close()
    except (Unavailable, NoSpace) as error:
        raise FetchFailed(Outage.DATA_STORE_UNAVAILABLE, f"{output.location}: {error.message}") from error
    except PermissionDenied as error:
        message = f"results cannot be stored on the claim {output.location}: {error.message}"
        raise FetchFailed(_DENIED, f"{message}; learners here have the user id {os.geteuid()}") from error

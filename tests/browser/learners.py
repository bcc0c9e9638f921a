"""What the tests know of the learners that they started."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import eventually
from weft import Job


def state_folder(job: Job) -> Path:
    """``$JOB_STATE_DIR`` of the job's learner, which prints it as ``state=FOLDER`` when it starts."""

    def printed() -> str:
        return next((line.text for line in job.logs() if line.text.startswith("state=")), "")

    return Path(eventually(printed).removeprefix("state="))

"""Variables of every learner, independent of its distribution: FfDL's names, and Weft's own (contracts.md)."""

from __future__ import annotations

from typing import Final

from services.core.domain.plan import AttemptPlan, Folder, LearnerPlan, Variables
from services.core.strategies.parts import GPU_COUNT, Value, folder, text

FOLDER_VARIABLES: Final = {
    "JOB_STATE_DIR": Folder.JOB_STATE,
    "MODEL_DIR": Folder.MODEL,
    "DATA_DIR": Folder.DATA,
    "RESULT_DIR": Folder.RESULT,
    "CHECKPOINT_DIR": Folder.CHECKPOINT,
    "LOG_DIR": Folder.LOG,
    "HOME": Folder.HOME,
    "TMPDIR": Folder.TEMPORARY,
}


def common(gang: AttemptPlan) -> Variables:
    world_size = text(len(gang.learners))
    return {
        "LANG": text("C.UTF-8"),
        "USER": text("weft"),
        "LOGNAME": text("weft"),
        "PYTHONUNBUFFERED": text(1),
        **{name: folder(place) for name, place in FOLDER_VARIABLES.items()},
        "TRAINING_ID": text(gang.job),
        "NUM_LEARNERS": world_size,
        "WEFT_JOB_ID": text(gang.job),
        "WEFT_ATTEMPT": text(gang.attempt),
        "WEFT_WORLD_SIZE": world_size,
    }


def own(learner: LearnerPlan) -> Variables:
    return {
        "GPU_COUNT": GPU_COUNT,
        "LEARNER_ID": text(learner.rank + 1),
        "WEFT_ROLE": text(learner.role),
        "WEFT_RANK": text(learner.rank),
        # Libraries that take all cores they see would fight with the other learners.
        "OMP_NUM_THREADS": text(max(1, int(learner.cpus))),
    }


def python_path(learner: LearnerPlan) -> Value:
    """The SDK's folder, before the user's own PYTHONPATH."""
    users = learner.env.get("PYTHONPATH", "")
    return (*folder(Folder.SDK), *(text(f":{users}") if users else ()))

"""``python -m services.node end-all``: ends every learner of this machine, with no agent running (`weft down`).

Nothing is decided here: the next agent finds learners that were started and did not end, and calls them lost. So their
jobs go on in a new attempt, from their checkpoints, and the loss counts against nobody's retries.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.node.cgroups import Groups
from services.node.learner import JobFolder, Learner, read_learner
from services.node.processes import Belonging, kill_all

_GONE_S = 10.0


def _learners(root: Path) -> list[Learner]:
    jobs = [JobFolder(entry) for entry in root.iterdir() if not entry.name.startswith(".")] if root.is_dir() else []
    found: list[Learner] = []
    for folder in (folder for job in jobs for folder in job.learner_folders()):
        try:
            learner = read_learner(folder)
        except (KeyError, TypeError, ValueError, OSError):
            continue  # of a document that cannot be read nothing was ever started
        if learner is not None:
            found.append(learner)
    return found


def end_all(root: Path) -> bool:
    """Whether everything below ``root`` (WEFT_HOME/node) is gone as processes."""
    learners = _learners(root)
    everything = Belonging(
        job_dirs=frozenset(str(learner.job_dir) for learner in learners),
        folders=frozenset(str(learner.folder) for learner in learners),
        groups=frozenset(path for learner in learners for path in learner.document.groups),
        identities=tuple(one for learner in learners for one in (learner.shim, learner.process) if one is not None),
    )
    gone = asyncio.run(kill_all(everything.members, timeout_s=_GONE_S))
    Groups.leave(root / ".agent")
    return gone

"""``python -m services.node end-all``: ends every learner of this machine, with no agent running (`weft down`).

Nothing is decided here: the next agent finds learners that were started and did not end, and calls them lost. So their
jobs go on in a new attempt, from their checkpoints, and the loss counts against nobody's retries.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.node.cgroups import Groups
from services.node.learner import MALFORMED, JobFolder, Learner, read_learner
from services.node.processes import Belonging, kill_all

_GONE_S = 10.0


def _learners(root: Path) -> tuple[list[Learner], list[Path]]:
    """Those there are, and the folders of those that nobody can make out."""
    jobs = [JobFolder(entry) for entry in root.iterdir() if not entry.name.startswith(".")] if root.is_dir() else []
    found: list[Learner] = []
    unread: list[Path] = []
    for folder in (folder for job in jobs for folder in job.learner_folders()):
        try:
            learner = read_learner(folder)
        except (*MALFORMED, OSError):
            unread.append(folder)
            continue
        if learner is not None:
            found.append(learner)
    return found, unread


def end_all(root: Path) -> bool:
    """Whether everything below ``root`` (WEFT_HOME/node) is gone as processes."""
    learners, unread = _learners(root)
    everything = Belonging(
        job_dirs=frozenset(
            str(path) for path in (*(one.job_dir for one in learners), *(one / "job" for one in unread))
        ),
        folders=frozenset(str(path) for path in (*(one.folder for one in learners), *unread)),
        groups=frozenset(path for learner in learners for path in learner.document.groups),
        identities=tuple(one for learner in learners for one in (learner.shim, learner.process) if one is not None),
    )
    gone = asyncio.run(kill_all(everything.members, timeout_s=_GONE_S))
    Groups.leave(root / ".agent")
    return gone

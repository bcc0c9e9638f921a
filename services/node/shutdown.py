"""``python -m services.node.shutdown WEFT_HOME/node``: ends all learners of this machine while no agent runs.

It writes no exits: the next agent finds learners that were started and did not end, and reports them as lost. Their
jobs then continue in a new attempt, from their checkpoints, and the loss does not count as a retry.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.core.domain.codec import MALFORMED
from services.core.runtime.home import AGENT
from services.core.runtime.learner_folder import JOB_FOLDER
from services.core.runtime.processes import alive
from services.node.cgroups import Groups, groups_of
from services.node.learner import Learner, job_folders, owner, read_learner
from services.node.processes import ProcessMatcher, kill_all

_GONE_S = 60.0
"""A process that is killed ends once a processor runs it: on a busy machine that may take some seconds."""


def _learners(root: Path) -> tuple[list[Learner], list[Path]]:
    """All learners, and the folders of those that cannot be read."""
    learners: list[Learner] = []
    unreadable: list[Path] = []
    for folder in (folder for job in job_folders(root) for folder in job.learner_folders()):
        try:
            learner = read_learner(folder)
        except (*MALFORMED, OSError):
            unreadable.append(folder)
            continue
        if learner is not None:
            learners.append(learner)
    return learners, unreadable


def end_all(root: Path) -> set[int]:
    """Kills all processes of the learners below ``root`` (WEFT_HOME/node), for `weft down`. Returns the pids left."""
    learners, unreadable = _learners(root)
    job_dirs = [*(learner.job_dir for learner in learners), *(folder / JOB_FOLDER for folder in unreadable)]
    folders = [*(learner.folder for learner in learners), *unreadable]
    shims = [learner.shim for learner in learners if learner.shim is not None]
    processes = [*shims, *(learner.process for learner in learners)]
    everything = ProcessMatcher(
        owners=frozenset([*(learner.document.uid for learner in learners), *map(owner, unreadable)]),
        job_dirs=frozenset(map(str, job_dirs)),
        folders=frozenset(map(str, folders)),
        groups=frozenset(groups_of(learner.document for learner in learners)),
        identities=tuple(process for process in processes if process is not None),
    )
    # First: a shim that outlived its learner for a moment would record this kill as the learner's own failure.
    asyncio.run(
        kill_all(lambda: {shim.pid for shim in shims if alive(shim)}, timeout_s=_GONE_S, groups=everything.groups)
    )
    asyncio.run(kill_all(everything.members, timeout_s=_GONE_S, groups=everything.groups))
    left = everything.members()
    Groups.remove_all(root / AGENT)
    return left


if __name__ == "__main__":
    if pids := end_all(Path(sys.argv[1])):
        sys.exit(f"processes that do not end: {', '.join(map(str, sorted(pids)))}")

"""Removes what learners have left in the folders of an installation, while no node agent runs.

A learner may leave what cannot be removed: a mount, files of another user, a file system that does not answer. A
restore moves such a folder to the node agent's quarantine. ``down --purge`` removes all else and says what stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.core.domain.errors import WeftError
from services.core.runtime.home import Home
from services.core.runtime.learner_folder import JOB_FOLDER
from services.core.runtime.tree_removal import QUARANTINE_FOLDER, move_to_quarantine, remove_bounded, remove_tree
from services.local.learners import end_all

_VERSION: Final = "VERSION"
"""Shows that a folder is an installation's."""
_WITHIN_S: Final = 600.0
"""For the folder of one job. A file system that does not answer must not stop a restore."""


def end_learners(home: Home) -> None:
    """Ends learners that still run. Raises WeftError if some could not be ended."""
    if any((home / "node").iterdir()):
        end_all(home)


def remove_learners(home: Home) -> None:
    """Removes the node agent's folders, or moves them to its quarantine: attempt numbers restart from the backup.

    Raises WeftError for one that can be neither removed nor moved.
    """
    node = home / "node"
    for place in [entry for entry in node.iterdir() if entry.name != QUARANTINE_FOLDER]:
        uid = _uid(place)
        try:
            remove_bounded(place, _WITHIN_S)
        except OSError as error:
            try:
                move_to_quarantine(place, node, job=place.name.strip("."), attempt=0, uid=uid)
            except OSError:
                raise WeftError(_stays(str(place), error)) from error


def purge(home: Home) -> None:
    """Removes the folder of the installation. Its VERSION goes last, so that a purge that failed can be repeated.

    Raises WeftError if something stays.
    """
    problem: tuple[str, OSError] | None = None
    for place in [entry for entry in home.root.iterdir() if entry.name != _VERSION]:
        try:
            remove_tree(place)
        except OSError as error:
            problem = problem or (str(place), error)
    if problem is not None:
        raise WeftError(_stays(*problem))
    (home / _VERSION).unlink(missing_ok=True)
    try:
        home.root.rmdir()
    except OSError as error:
        raise WeftError(f"{home.root} is empty now, but cannot be removed: {error.strerror}") from error


def _uid(job: Path) -> int:
    """The user of the learners in the folder of a job: the agent gives it to no other tenant while something stays."""
    return next((folder.lstat().st_uid for folder in job.glob(f"*/*/{JOB_FOLDER}")), 0)


def _stays(place: str, error: OSError) -> str:
    why = error.strerror or str(error)
    return f"{place} cannot be removed ({why}); remove it yourself, e.g. as root, then repeat the command"

"""Makes an attempt's folders: all of them or none.

They are made under a name that does not count, and one rename gives them their own. So a full disk, a crash or a kill
leaves nothing half-made, and a folder that exists is complete.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.durable_files import no_space_errors, reserve, sync_folder, write_json
from services.core.runtime.home import Home
from services.core.runtime.learner_folder import (
    DISK_FILE,
    JOB_FOLDER,
    JOB_FOLDERS,
    LEARNER_FILE,
    RUNS_FOLDER,
    SPOOL_FOLDER,
    STOP_FILE,
    STORED_FILE,
    LearnerDocument,
    write_gang,
)
from services.core.runtime.tree_removal import remove_tree
from services.core.runtime.undo import undo_on_failure
from services.node.environment import fill_environment
from services.node.learner import LAST_RUN, NAME, NEXT_RUN, JobFolder, Learner, write_gpus
from services.node.sandbox import accounts

_PASSABLE: Final = 0o711
"""All users may pass through, none may list: a learner's user reaches its own folder and finds no other."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """What the attempt was given of this machine."""

    uid: int
    gid: int
    gpus: Mapping[str, tuple[int, ...]]
    """Learner's name -> indices."""
    ports: Mapping[str, int]
    """Learner's name -> port, for those that have one."""


def port_is_free(port: int) -> bool:
    """True if no process listens on the port now, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - bound for a moment, never listening: tests all addresses
        except OSError:
            return False
    return True


def check_names(plan: AttemptPlan) -> None:
    """InvalidRequest for names of a job or learner that cannot be names of files."""
    for name in (plan.job, *(learner.name for learner in plan.learners)):
        if NAME.fullmatch(name) is None:
            raise InvalidRequest(f"{name!r} cannot be the name of a job or learner")


def documents(
    plan: AttemptPlan, allotment: Allotment, *, home: Home, isolation: str, objects_here: bool = True
) -> list[LearnerDocument]:
    """One ``learner.json`` per learner, in the plan's order: pure. ``objects_here``: the object store is a folder."""
    objects = str(home / "objects") if objects_here else ""
    return [
        _document(plan, learner, allotment, home=home, isolation=isolation, objects=objects)
        for learner in plan.learners
    ]


def _document(
    plan: AttemptPlan, learner: LearnerPlan, allotment: Allotment, *, home: Home, isolation: str, objects: str
) -> LearnerDocument:
    folder = home / "node" / plan.job / str(plan.attempt) / learner.name
    gpus, sdk = allotment.gpus[learner.name], str(home / "sdk")
    env = fill_environment(plan, learner, job_dir=str(folder / JOB_FOLDER), sdk=sdk, gpus=gpus, ports=allotment.ports)
    own = replace(learner, variables={})  # they are in ``env``, filled
    return LearnerDocument(
        plan=replace(plan, learners=(own,), variables={}),
        learner=own,
        uid=allotment.uid,
        gid=allotment.gid,
        gpus=gpus,
        ports=allotment.ports,
        env=env,
        isolation=isolation,
        home=str(home.root),
        addresses_file=str(home.addresses_file),
        objects=objects,
        cache=str(home / "cache"),
        sdk=sdk,
    )


def make(job: JobFolder, attempt: int, learner_documents: list[LearnerDocument], plan: AttemptPlan) -> list[Learner]:
    """Makes the folders, durably. Raises NoSpace, with nothing left of them, if the disk is full."""
    new, place = job.half_made(attempt), job.attempt(attempt)

    def remove() -> None:
        if new.exists():
            remove_tree(new)
        if job.path.exists() and not any(job.path.iterdir()):
            job.path.rmdir()

    with undo_on_failure(remove), no_space_errors("the learners' folders"):
        job.path.mkdir(exist_ok=True)
        job.path.chmod(_PASSABLE)
        if new.exists():
            remove_tree(new)
        new.mkdir()
        new.chmod(_PASSABLE)
        write_gang(new, plan)
        for document in learner_documents:
            _make_learner(new / document.learner.name, document)
        sync_folder(new)
        new.rename(place)
        sync_folder(job.path)
        sync_folder(job.path.parent)
    return [Learner(place / document.learner.name, document) for document in learner_documents]


def replace_learner(learner: Learner, run: int) -> tuple[Learner, Path]:
    """Replaces the folder of a learner whose processes are gone by one for its next run, with the same resources.

    Returns the new learner, and the old folder under its new name. A crash leaves the old folder in its place, or the
    new one complete beside an empty place (``JobFolder.half_replaced``). Raises NoSpace, with the old one unchanged.
    """
    place, document = learner.folder, learner.document
    own = replace(document.learner, run=run)
    document = replace(document, learner=own, plan=replace(document.plan, learners=(own,)))
    new = place.with_name(f"{NEXT_RUN}{place.name}")
    last = place.with_name(f"{LAST_RUN}{learner.document.learner.run}-{place.name}")

    def remove() -> None:
        if new.exists():
            remove_tree(new)

    with undo_on_failure(remove), no_space_errors("the learner's folder"):
        remove()
        _make_learner(new, document)
        sync_folder(place.parent)
    place.rename(last)
    new.rename(place)
    sync_folder(place.parent)
    return Learner(place, document), last


def _make_learner(folder: Path, document: LearnerDocument) -> None:
    folder.mkdir()
    folder.chmod(_PASSABLE)
    for name in (RUNS_FOLDER, SPOOL_FOLDER):
        (folder / name).mkdir(mode=0o700)
    job = folder / JOB_FOLDER
    for path in (job, *(job / name for name in JOB_FOLDERS.values())):
        path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(path, document.uid, document.gid)
    if document.wrap:
        for name, content in accounts(document).items():
            (folder / name).write_text(content)
            (folder / name).chmod(0o644)
    for name in (STOP_FILE, STORED_FILE, DISK_FILE):
        reserve(folder / name)
    write_gpus(folder, document)
    write_json(folder / LEARNER_FILE, dump(document))

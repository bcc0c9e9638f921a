"""Making an attempt's folders: all of them or none, whatever happens on the way.

They are made under a name that does not count, and get their own by one rename. So a full disk, a crash or a kill
leaves nothing half-made, and a folder that is there is complete.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.home import Home
from services.node.environment import FOLDERS, render
from services.node.files import no_space, remove_tree, reserve, sync_folder, write_json
from services.node.learner import JobFolder, Learner, LearnerDocument, write_gpus
from services.node.sandbox import accounts

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_THROUGH = 0o711
"""For everyone to pass through and nobody to look into: a learner's own user reaches its folder, and no other's."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """What the attempt was given of this machine."""

    uid: int
    gid: int
    gpus: Mapping[str, tuple[int, ...]]
    ports: Mapping[str, int]


def port_is_free(port: int) -> bool:
    """Whether nobody listens there now."""
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - bound for a moment and never listening: all addresses are asked
        except OSError:
            return False
    return True


def check_names(plan: AttemptPlan) -> None:
    """They become file names."""
    for name in (plan.job, *(learner.name for learner in plan.learners)):
        if _NAME.fullmatch(name) is None:
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
    env = render(plan, learner, job_dir=str(folder / "job"), sdk=sdk, gpus=gpus, ports=allotment.ports)
    others = tuple(one if one is learner else replace(one, token="", env={}, command="") for one in plan.learners)
    return LearnerDocument(
        plan=replace(plan, learners=others), learner=learner, uid=allotment.uid, gid=allotment.gid, gpus=gpus,
        ports=allotment.ports, env=env, isolation=isolation, home=str(home.root),
        addresses_file=str(home.addresses_file),
        objects=objects, cache=str(home / "cache"), sdk=sdk,
    )  # fmt: skip


def make(job: JobFolder, attempt: int, made: list[LearnerDocument]) -> list[Learner]:
    """Durably; NoSpace with nothing left of it where the disk is full."""
    new, place = job.half_made(attempt), job.attempt(attempt)
    try:
        with no_space("the learners' folders"):
            job.path.mkdir(exist_ok=True)
            job.path.chmod(_THROUGH)
            if new.exists():
                remove_tree(new)
            new.mkdir()
            new.chmod(_THROUGH)
            for document in made:
                _make_learner(new / document.learner.name, document)
            sync_folder(new)
            new.rename(place)
            sync_folder(job.path)
            sync_folder(job.path.parent)
    except BaseException:
        if new.exists():
            remove_tree(new)
        if job.path.exists() and not any(job.path.iterdir()):
            job.path.rmdir()
        raise
    return [Learner(place / document.learner.name, document) for document in made]


def _make_learner(folder: Path, document: LearnerDocument) -> None:
    folder.mkdir()
    folder.chmod(_THROUGH)
    for name in ("runs", "spool"):
        (folder / name).mkdir(mode=0o700)
    own = [folder / "job", *(folder / "job" / name for name in FOLDERS.values())]
    for path in own:
        path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(path, document.uid, document.gid)
    if document.wrap:
        for name, content in accounts(document).items():
            (folder / name).write_text(content)
            (folder / name).chmod(0o644)
    reserve(folder / "stop.json")
    write_gpus(folder, document)
    write_json(folder / "learner.json", dump(document))

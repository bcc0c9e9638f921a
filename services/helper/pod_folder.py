"""The files of a learner in its pod: the same names as in a folder of one machine, on the pod's volumes.

The helper alone can write the control volume and its private one, and what is in the job's volume beside the learner's
folder. The learner, which has the same user, can write the volume ``runs`` and that folder at any moment: nothing there
is trusted, not even the records of its own entry process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan
from services.core.formats import stored_plan
from services.core.runtime import pod_layout as layout
from services.core.runtime.address import TlsAuthority
from services.core.runtime.learner_folder import (
    ACTIVE_FILE,
    GO_FILE,
    JOB_FOLDER,
    JOB_FOLDERS,
    PREPARED_FILE,
    RUN,
    RUNS_FOLDER,
    STOP_FILE,
    STORED_FILE,
    Assignment,
    LearnerFolder,
)
from services.core.runtime.sdk import install
from services.helper.learner_files import open_file

_CONTROL: Final = frozenset({GO_FILE, PREPARED_FILE, STOP_FILE, STORED_FILE, layout.WAKE_FILE})
_MOST_RECORD: Final = 64 * 2**10
"""Bytes of a record of the entry process."""


_TERMINATION_MESSAGE: Final = Path("/dev/termination-log")
"""Of the helper's container: its last report, for a platform whose status store has lost its data."""
_MOST_MESSAGE: Final = 600
"""Bytes of the report's text, of which an escape may take six each: the kubelet keeps 4 KiB."""


def _shortened(report: Mapping[str, Any]) -> str:
    text = str(report.get("message", "")).encode(errors="replace")[:_MOST_MESSAGE].decode(errors="ignore")
    return json.dumps({**report, "message": text}, ensure_ascii=False)


class PodFolder(LearnerFolder):
    """``root``: the folder in which the volumes are mounted, ``/weft`` in a pod."""

    has_image = True

    def __init__(self, root: Path, learner: str, run: int = 1) -> None:
        """``learner``: its name. ``run``: which start of it within the attempt the pod is."""
        super().__init__(root)
        self._learner, self._learner_run = learner, run
        self._plan, self._private = root / Path(layout.PLAN).name, root / Path(layout.PRIVATE).name
        self._job_volume = root / Path(layout.JOB_VOLUME).name

    def path(self, name: str) -> Path:
        if name in _CONTROL:
            return self.root / Path(layout.CONTROL).name / name
        if name.split("/", maxsplit=1)[0] in {RUNS_FOLDER, JOB_FOLDER}:
            return self.root / name
        return self._private / name

    @property
    def staging(self) -> Path:
        return self._job_volume / "fetched"

    @property
    def replaced(self) -> Path:
        return self._job_volume / "replaced"

    @property
    def data_versions(self) -> Path:
        return self._private / ".data"

    @property
    def is_removed(self) -> bool:
        return False  # a pod is removed with its helper

    @property
    def trust(self) -> TlsAuthority | None:
        """How the helper knows the platform's services; None: they are reached without TLS."""
        authority = self._plan / layout.AUTHORITY_FILE
        return TlsAuthority(authority) if authority.exists() else None

    def has(self, name: str) -> bool:
        # A pod that is not activated has no helper.
        return name == ACTIVE_FILE or super().has(name)

    def read(self, name: str) -> dict[str, Any] | None:
        return self._read_record(name) if name.startswith(f"{RUNS_FOLDER}/") else super().read(name)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        super().write(name, document)
        if name == STORED_FILE and _TERMINATION_MESSAGE.exists():
            _TERMINATION_MESSAGE.write_text(_shortened(document), errors="replace")

    def _read_record(self, name: str) -> dict[str, Any] | None:
        try:
            fd = open_file(self.root, name.split("/"), os.geteuid())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"it is no plain file: {error.strerror}") from error
        with os.fdopen(fd, "rb") as file:
            content = file.read(_MOST_RECORD + 1)
        if len(content) > _MOST_RECORD:
            raise ValueError("it is too large")
        try:
            document = json.loads(content)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if not isinstance(document, dict):
            raise TypeError("it is no object")
        return document

    def _changed_ms(self, name: str) -> int:
        try:
            return round(os.lstat(self.path(name)).st_mtime * 1000)
        except OSError:
            return 0

    def exit(self, run: int = RUN) -> Exit | None:
        """The end that the entry process has recorded; None: it has not.

        The learner can write the record as well. The entry process records no loss, and never leaves it damaged: the
        kubelet knows whether the learner was lost. A stop by the platform is one that this helper has passed on.
        """
        end = super().exit(run)
        if end is None or end.lost:
            return None
        return end if self.has(STOP_FILE) or not end.stop_cause else replace(end, stop_cause="")

    def assignment(self) -> Assignment:
        stored = stored_plan.read(self._plan_document(), self._learner)
        token = (self.root / Path(layout.TOKEN).name / layout.TOKEN_FILE).read_text().strip()
        learner = replace(stored.learner, token=token, run=self._learner_run)
        return Assignment(
            plan=replace(stored.plan, learners=(learner,)),
            learner=learner,
            uid=os.geteuid(),
            gid=os.getegid(),
            addresses_file=str(self._plan / layout.ADDRESSES_FILE),
            objects="",
            cache=str(self._private / "cache"),
        )

    def gang(self, plan: AttemptPlan) -> list[str]:  # noqa: ARG002
        return list(stored_plan.read(self._plan_document(), self._learner).gang)

    def _plan_document(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads((self._plan / layout.PLAN_FILE).read_text())
        return document

    def prepare(self) -> None:
        """Makes the learner's own folders and the entry script's pipe, and copies the SDK for it. May be repeated."""
        with suppress(FileExistsError):
            os.mkfifo(self.path(layout.WAKE_FILE))
        if not self.has(GO_FILE):  # afterwards the folders are the learner's
            for name in JOB_FOLDERS.values():
                (self.root / JOB_FOLDER / name).mkdir(exist_ok=True)
        install(self.root / Path(layout.CONTROL).name / Path(layout.SDK).name)

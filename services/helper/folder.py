"""The learner's folder, as the helper uses it: the files that shim, agent and helper share.

Files below ``job/`` belong to the learner and are never opened by path: see ``services.helper.learner_files``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.core.runtime.durable_files import sync_folder
from services.core.runtime.learner_folder import Assignment, LearnerFolder

__all__ = ["Assignment", "LearnerFolder", "write_json"]


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool) -> None:
    """Replaces the file. ``durable``: it also survives a power cut, not only the helper's death."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        json.dump(document, file, separators=(",", ":"))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)

"""The user that environments are built under where the platform is root: one without rights.

Only wheels are installed, so no code of their authors runs. But uv and the compiler of byte code read files that
strangers have made. A flaw in them gives away this user, which owns the environments and the package cache only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from services.helper.log import log_event


def build_user(uid: int, reached: Sequence[Path]) -> int | None:
    """The uid to build under; None: the platform's own user, without root, with ``uid`` 0, or where it must be.

    ``reached``: programs and folders that the user has to reach.
    """
    if os.geteuid() != 0 or not uid:
        return None
    for path in reached:
        closed = next((folder for folder in path.resolve().parents if not folder.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            log_event("build.as_root", why=f"user {uid} cannot pass through {closed} to {path}")
            return None
    return uid


class PopenUser(TypedDict):
    """Arguments of Popen."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


def as_user(uid: int | None) -> PopenUser:
    """None: the own user."""
    return {"user": uid, "group": uid, "extra_groups": None if uid is None else []}


def give(path: Path, uid: int | None) -> None:
    """Makes a folder of the platform the build user's."""
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def own_folder(path: Path, uid: int | None) -> None:
    """Makes the folder if it is missing. One that belongs to another user is renamed: an older Weft built as root."""
    owner = os.geteuid() if uid is None else uid
    if path.is_dir() and path.stat().st_uid != owner:
        path.rename(path.with_name(f".gone-{os.urandom(8).hex()}"))  # the node agent removes it
    path.mkdir(mode=0o700, exist_ok=True)
    give(path, uid)

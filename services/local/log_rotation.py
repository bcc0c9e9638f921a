"""Rotates the logs of services, whose files would otherwise fill the disk.

A service holds its log open for appending, so the file is copied to ``<name>.log.1`` and then cut to zero; older copies
move to ``.2``, ``.3`` and so on. Lines written between the copy and the cut are lost: no service has to reopen its log.
The disk holds, for each service, at most ``copies`` + 1 times the limit and the lines of one pause.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import no_space_errors

_PAUSE_S: Final = 2.0
log = structlog.get_logger()


async def rotate_logs(folder: Path, *, most_bytes: int, copies: int) -> None:
    """Rotates each ``*.log`` in the folder that has grown beyond ``most_bytes``, until cancelled."""
    while True:
        for path in sorted(folder.glob("*.log")):
            try:
                if path.stat().st_size > most_bytes:
                    await asyncio.to_thread(rotate, path, copies=copies)
                    log.info("log.rotated", file=path.name)
            except (OSError, NoSpace) as error:
                log.warning("log.not_rotated", file=path.name, why=str(error))
        await asyncio.sleep(_PAUSE_S)


def rotate(path: Path, *, copies: int) -> None:
    """Makes the log empty, and its content the newest of its ``copies``. With 0 copies the content is dropped.

    Raises NoSpace if the disk has no room for the copy; the log is unchanged then.
    """
    numbered = [path.with_name(f"{path.name}.{number}") for number in range(1, copies + 1)]
    for newer, older in reversed([*itertools.pairwise(numbered)]):
        if newer.exists():
            newer.replace(older)
    if numbered:
        try:
            with no_space_errors(path.name):
                shutil.copyfile(path, numbered[0])
        except NoSpace:
            numbered[0].unlink(missing_ok=True)
            raise
        numbered[0].chmod(0o600)
    os.truncate(path, 0)

"""Data on this machine, or on a volume of a pod: a link to it.

On this machine only below the folders that the operator allows, and if the learner can read it.

A link, because data is large and shared; learners have users of their own, so the file system keeps them from writing.
Data that the learner's user cannot read is copied: the operator has allowed it to jobs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from services.core.domain.outages import Outage
from services.core.domain.plan import Input
from services.core.runtime.durable_files import FULL
from services.core.runtime.learner_folder import Assignment
from services.core.runtime.pod_layout import VOLUMES
from services.helper.fetch.faults import AWAY
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.space import check_space
from services.helper.fetch.versions import DataVersions
from services.helper.settings import HelperSettings

DENIED: Final = "DataStoreDenied"
NOT_FOUND: Final = "DataNotFound"
_DIGEST_FILES: Final = 10_000
"""Files whose sizes and times are in the digest; of larger sets only the first so many."""


def fetch_local(
    entry: Input,
    target: Path,
    assignment: Assignment,
    *,
    settings: HelperSettings,
    versions: DataVersions,  # noqa: ARG001 - the caller compares digests; nothing is kept of local data
    progress: FetchProgress,
) -> str:
    """Makes ``target`` a link to the data or a copy of it. Returns its digest (names, sizes, times).

    Raises FetchFailed where the data is missing or not allowed.
    """
    source = Path(entry.location, entry.path)
    try:
        _check_allowed(source, source.resolve(), settings)  # first: users must not learn which files exist elsewhere
        real = source.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        number = error.errno if isinstance(error, OSError) else None
        if number in AWAY:
            raise FetchFailed(Outage.DATA_STORE_UNAVAILABLE, f"data at {source} cannot be read: {error}") from error
        if number == errno.ENOENT:
            raise FetchFailed(NOT_FOUND, f"there is no file or folder {source}") from error
        raise FetchFailed(DENIED, f"data at {source} cannot be read: {error}") from error
    _check_allowed(source, real, settings)
    files = sorted(_list_files(real))
    if assignment.owner is None or _readable(real, files, *assignment.owner):
        target.symlink_to(real)
    else:
        progress.report(f"copying {source}")
        total = _total(files) if len(files) < _DIGEST_FILES else None
        check_space(target.parent, assignment.data_keep_free, total or 0, str(source))
        _copy(real, target, progress, total=total, keep_free=assignment.data_keep_free)
    return _digest(real, files)


def _check_allowed(source: Path, real: Path, settings: HelperSettings) -> None:
    """Raises FetchFailed if ``real``, to which ``source`` leads, is not below a folder that the operator allows."""
    if not any(real.is_relative_to(path.resolve()) for path in settings.data_paths):
        shown = ", ".join(map(str, settings.data_paths)) or "none"
        raise FetchFailed(DENIED, f"{source} is not below a folder that the operator allows (WEFT_DATA_PATHS: {shown})")


def fetch_claim(
    entry: Input,
    target: Path,
    assignment: Assignment,  # noqa: ARG001 - the volume's files decide who reads them
    *,
    settings: HelperSettings,  # noqa: ARG001 - as above
    versions: DataVersions,  # noqa: ARG001 - as in fetch_local
    progress: FetchProgress,  # noqa: ARG001 - nothing is copied
) -> str:
    """Makes ``target`` a link into the volume that the pod mounts. Returns its digest (names, sizes, times).

    Raises FetchFailed where the data is missing, or its path leads out of the volume.
    """
    volume = Path(VOLUMES, entry.location)
    source = volume / entry.path
    try:
        real = source.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise FetchFailed(DENIED, f"'{entry.path}' of the claim {entry.location} cannot be read: {error}") from error
    if not real.is_relative_to(volume):
        raise FetchFailed(DENIED, f"{entry.path} leads out of the claim {entry.location}")
    target.symlink_to(real)
    return _digest(real, sorted(_list_files(real)))


def _list_files(root: Path) -> list[Path]:
    """At most ``_DIGEST_FILES``."""
    if root.is_file():
        return [root]
    files: list[Path] = []
    for folder, _, names in os.walk(root):
        files += [Path(folder, name) for name in names]
        if len(files) >= _DIGEST_FILES:
            break
    return files[:_DIGEST_FILES]


def _readable(root: Path, files: list[Path], uid: int, gid: int) -> bool:
    """Whether a user can open the files, by their modes: trying it as that user would take a process."""

    def may(path: Path, bit: int) -> bool:
        status = path.stat()
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        return bool(status.st_mode >> shift & bit)

    try:
        folders = {*root.parents, *(file.parent for file in files)}
        return all(may(folder, 1) for folder in folders) and may(root, 4) and all(may(file, 4) for file in files)
    except OSError:
        return False


def _total(files: list[Path]) -> int:
    """Bytes of the files; those that vanish meanwhile count nothing."""
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _copy(source: Path, target: Path, progress: FetchProgress, *, total: int | None, keep_free: int) -> None:
    """Copies files and folders, readable for all. Links inside are left out: they could lead anywhere.

    ``total``: their bytes, if known. Raises FetchFailed where less than ``keep_free`` bytes would stay free.
    """
    if source.is_file():
        _copy_file(source, target)
        return
    done = 0
    for folder, folders, names in os.walk(source):
        progress.check()
        copied = target / Path(folder).relative_to(source)
        copied.mkdir(mode=0o755)
        folders[:] = [name for name in folders if not Path(folder, name).is_symlink()]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                check_space(copied, keep_free, path.stat().st_size, str(path))
                _copy_file(path, copied / name)
                done += (copied / name).stat().st_size
                progress.report_bytes(done, total)


def _copy_file(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in FULL:
            raise
        if error.errno in AWAY:
            raise FetchFailed(Outage.DATA_STORE_UNAVAILABLE, f"{source} cannot be read: {error.strerror}") from error
        raise FetchFailed(DENIED, f"{source} cannot be read: {error.strerror}") from error
    target.chmod(0o644)


def _digest(root: Path, files: list[Path]) -> str:
    hashing = hashlib.sha256()
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue
        hashing.update(f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return hashing.hexdigest()

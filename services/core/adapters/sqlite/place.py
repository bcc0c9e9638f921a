"""Refuses SQLite files on network file systems.

WAL needs memory that all processes of a machine share, and reliable locks. Network file systems have neither, and lose
data silently. So the file is refused there before it is created (architecture.md, Reads).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from services.core.domain.errors import InvalidRequest

MOUNTS: Final = Path("/proc/self/mountinfo")
_REFUSED: Final = frozenset(
    """nfs nfs4 cifs smb smb2 smb3 smbfs ncpfs afs coda ceph lustre gpfs beegfs orangefs pvfs2 glusterfs ocfs2 gfs2
    fuse.sshfs fuse.glusterfs fuse.ceph fuse.ceph-fuse fuse.s3fs fuse.goofys fuse.rclone fuse.gcsfuse fuse.blobfuse
    fuse.blobfuse2 fuse.juicefs fuse.davfs fuse.curlftpfs fuse.smbnetfs fuse.mount-s3 davfs""".split()  # noqa: SIM905 - a list of words reads better
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def file_system(folder: Path, mountinfo: str) -> str:
    """Type of the file system of a resolved folder, from the text of ``/proc/<pid>/mountinfo``; "" if unknown."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # Of several mounts on one folder, the last is visible.
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), after.split(" ")[0]
    return kind


def refuse_network(folder: Path, mounts: Path = MOUNTS) -> None:
    """Raises InvalidRequest if the folder is on a network file system. Accepts it if the type is unknown."""
    try:
        mountinfo = mounts.read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system(folder.resolve(), mountinfo)
    if kind in _REFUSED:
        raise InvalidRequest(
            f"{folder} is on a network file system ({kind}), where SQLite loses data; "
            "set WEFT_HOME to a folder on a local disk"
        )

"""Where a SQLite file may lie: not on a network file system.

WAL needs memory that all processes of one machine share, and locks that hold; network file systems give neither, and
what is lost is lost silently. So the file is refused there before it is made (architecture.md, Reads).
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
    """Type of the file system a resolved folder lies on, by the text of ``/proc/<pid>/mountinfo``; "" where unknown."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # Of several mounts at one place the last one is seen.
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            best, found = len(mount.parts), after.split(" ")[0]
    return found


def refuse_network(folder: Path, mounts: Path = MOUNTS) -> None:
    """InvalidRequest where the folder lies on a network file system. Where the system does not say, it may pass."""
    try:
        mountinfo = mounts.read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system(folder.resolve(), mountinfo)
    if kind in _REFUSED:
        raise InvalidRequest(
            f"{folder} lies on a network file system ({kind}), where SQLite loses data; "
            "set WEFT_HOME to a folder on a local disk"
        )

"""A disk for nodes of test clusters, on which images are unpacked already: made once for this machine, read by many.

A node gets databases and blobs of its own, and reads the unpacked layers from the disk, which its machine mounts
read-only. What is on the disk is known by digests: a node imports an image that has changed, of which it takes those
layers from the disk that have not. So an old disk costs time, and never gives a node an old image.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.testbed.kubernetes.images import ImageRecord, read_image
from tests.testbed.kubernetes.init import DISK_INSIDE, LINK

_DATABASES: Final = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")
_BLOBS: Final = "io.containerd.content.v1.content/blobs/sha256"
_SNAPSHOTS: Final = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_RECORD: Final = "images.json"


@dataclass(frozen=True)
class Disk:
    folder: Path

    @classmethod
    def of(cls, cluster_folder: Path) -> Self | None:
        """That of a cluster's nodes, if they have one."""
        link = cluster_folder / LINK
        return cls(link) if link.exists() else None

    def has(self, archive: Path) -> bool:
        """Whether exactly this image is on it, under this name. ``archive``: of ``write_image``."""
        return read_image(archive) in self._images

    @property
    def layers(self) -> Collection[str]:
        """Digests of the layers of all its images."""
        return {layer for image in self._images for layer in image.layers}

    @property
    def _images(self) -> list[ImageRecord]:
        documents: list[dict[str, Any]] = json.loads((self.folder / _RECORD).read_text())
        return [ImageRecord(entry["name"], entry["digest"], tuple(entry["layers"])) for entry in documents]

    def give(self, root: Path) -> None:
        """Fills the root of a containerd that is not yet there, and whose machine mounts this disk."""
        for database in _DATABASES:
            (root / database).parent.mkdir(parents=True)
            shutil.copyfile(self.folder / database, root / database)
        (root / _BLOBS).mkdir(parents=True)
        for blob in (self.folder / _BLOBS).iterdir():
            (root / _BLOBS / blob.name).hardlink_to(blob)
        (root / _SNAPSHOTS).mkdir()
        for snapshot in (self.folder / _SNAPSHOTS).iterdir():
            (root / _SNAPSHOTS / snapshot.name).symlink_to(f"{DISK_INSIDE}/{_SNAPSHOTS}/{snapshot.name}")


def make_disk(folder: Path, root: Path, archives: Iterable[Path]) -> None:
    """Makes a disk of the root of a containerd that has ended, which loses it, and had imported these images."""
    for path in (*_DATABASES, _BLOBS, _SNAPSHOTS):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).rename(folder / path)
    (folder / _RECORD).write_text(json.dumps([asdict(read_image(archive)) for archive in archives]))

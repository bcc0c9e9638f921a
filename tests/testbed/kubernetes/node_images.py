"""Makes the disk with the images that many test clusters need (disk.py): once for this machine, on a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.images import ROOT, images_named
from tests.testbed.built import built
from tests.testbed.docker import base
from tests.testbed.kubernetes import disk, framework_image, helper_image, images, programs
from tests.testbed.kubernetes.cluster import cluster
from tests.testbed.kubernetes.init import FOLDER_INSIDE


def node_disk(say: Callable[[str], None], *, frameworks: Sequence[str] = ()) -> Path:
    """Returns the disk, for ``cluster(disk=...)``: the test bed's own images, what the helper's image is built on, and
    the images of these frameworks.
    """

    def build(folder: Path) -> None:
        archives = [framework_image.framework_archive(framework, say)[1] for framework in frameworks]
        with cluster(nodes=1, say=lambda _: None) as running:
            say("unpacking images onto a disk for the test clusters' nodes (once, half a minute)")
            own = running.folder / "images"
            helper_image.write_helper_base(own / "helper-base.tar", say)
            for archive in archives:
                (own / f"{archive.parent.name}.tar").hardlink_to(archive)
            (node,) = running.nodes
            for archive in sorted(own.iterdir()):
                node.import_image(f"{FOLDER_INSIDE}/images/{archive.name}")
            node.machine.kill()
            disk.make_disk(folder, node.machine.folder / "containerd", own.iterdir())

    programs.build(say)  # installs busybox, too
    locks = [image.requirements for image in images_named(("helper",), frameworks)]
    busybox = str(shutil.which("busybox"))
    makers = (disk, images, helper_image, framework_image, base)
    pins = [*(Path(str(maker.__file__)) for maker in makers), *(ROOT / lock for lock in locks), images.STAND_IN]
    return built("node-disk", [*pins, programs.MODULES / "containerd" / "go.mod", Path(busybox)], build)

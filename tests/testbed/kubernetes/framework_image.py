"""The image of an entry of the framework library for the test cluster's nodes: an OCI archive, packed directly.

What images/framework/Dockerfile makes with uv: the entry's locked packages in a virtual environment of the base's
Python. Made once for this machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from scripts.images import ROOT, images_named, wheels
from tests.testbed.built import built
from tests.testbed.docker.base import base_archive
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.helper_image import packed
from tests.testbed.kubernetes.images import write_image
from tests.testbed.kubernetes.init import FOLDER_INSIDE

_PLACE: Final = "opt/framework"
_CONFIG: Final = {
    "Env": [f"PATH=/{_PLACE}/bin:/usr/bin:/bin", f"VIRTUAL_ENV=/{_PLACE}", "PYTHONDONTWRITEBYTECODE=1"],
    "User": "65534:65534",
    "WorkingDir": "/",
    "Cmd": ["python3"],
}


def load_framework_image(cluster: Cluster, framework: str, say: Callable[[str], None]) -> str:
    """Gives the image of a framework to each node, unless it is on their disk. Returns its name."""
    name, made = framework_archive(framework, say)
    if cluster.disk is not None and cluster.disk.has(made):
        return name
    archive = cluster.folder / "images" / f"{framework}.tar"
    os.link(made, archive)
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda node: node.import_image(f"{FOLDER_INSIDE}/images/{archive.name}"), cluster.nodes))
    archive.unlink()
    return name


def framework_archive(framework: str, say: Callable[[str], None]) -> tuple[str, Path]:
    """Returns the image's name, and its OCI archive, which is made once for this machine."""
    (image,) = images_named((), [framework])
    name = f"testbed.invalid/{image.name}"
    lock = ROOT / image.requirements
    base = base_archive(say)

    def build(folder: Path) -> None:
        say(f"packing the image of {framework} (once, a minute or more)")
        content = folder / "content"
        packages = content / "lib" / "python3.11" / "site-packages"
        for wheel in sorted(wheels(lock, ()).glob("*.whl")):
            shutil.unpack_archive(wheel, packages, "zip")
        (content / "bin").mkdir()
        for program in ("python", "python3"):
            (content / "bin" / program).symlink_to("/usr/bin/python3")
        (content / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        write_image(folder / "image.tar", name, [base.read_bytes(), packed(content, _PLACE)], config=_CONFIG)
        shutil.rmtree(content)

    return name, built(f"image-{framework}", [lock, Path(__file__)], build) / "image.tar"

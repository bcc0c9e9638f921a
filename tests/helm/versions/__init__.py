"""Images of other versions: this tree's platform with a patch, and the helper under the same tag.

next        a field is added to the document of a job
unreadable  the document of a job has to have a field that this version does not write
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts import images
from scripts.images import version
from tests.helm.installation import ROOT, import_archives
from tests.testbed.docker.engine import Engine, Say, engine
from tests.testbed.kubernetes.cluster import Cluster

PATCHES: Final = Path(__file__).parent
_PATCHED: Final = "services/core/domain/job.py"
_INSTALLED: Final = "/opt/weft/lib/python3.11/site-packages"


def tag(name: str) -> str:
    """Of the images of a version."""
    return f"{version()}-{name}"


def values(name: str) -> str:
    """The option of helm that installs a version."""
    return f"--set=images.platform=weft/platform:{tag(name)},images.helper=weft/helper:{tag(name)}"


def import_versions(cluster: Cluster, names: Sequence[str], say: Say) -> None:
    """Builds the platform's image of each version on that of this tree, and gives them to each node."""
    archive = cluster.folder / "images" / "versions.tar"
    with engine(say) as running:
        images.build(images.Image.read(images.IMAGES / "platform"), running)  # another tree's may have the name by now
        built = [_build(name, running) for name in names]
        running.docker("save", f"--output={archive}", *built)
    import_archives(cluster, [archive])
    for node in cluster.nodes:
        for name in names:
            node.name_image(f"docker.io/weft/helper:{version()}", f"docker.io/weft/helper:{tag(name)}")


def _build(name: str, on: Engine) -> str:
    image, base = f"weft/platform:{tag(name)}", f"weft/platform:{version()}"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        (context / _PATCHED).parent.mkdir(parents=True)
        shutil.copy(ROOT / _PATCHED, context / _PATCHED)
        subprocess.run(["git", "apply", PATCHES / f"{name}.patch"], cwd=context, check=True)
        (context / "Dockerfile").write_text(f"FROM {base}\nCOPY {_PATCHED} {_INSTALLED}/{_PATCHED}\n")
        on.docker("build", "--quiet", *on.build_options, f"--tag={image}", context)
    return image

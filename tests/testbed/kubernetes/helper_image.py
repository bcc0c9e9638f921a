"""The image of images/helper for the test cluster's nodes, without a Docker engine: an OCI archive, packed directly.

The base and the locked packages are made once for this machine. This tree's modules are packed anew each time. The
Dockerfile says which modules are left out, and the image's environment, user and entry point.
"""

from __future__ import annotations

import compileall
import io
import json
import py_compile
import re
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.images import ROOT, Image, copy_tracked, wheels
from tests.testbed.built import built
from tests.testbed.docker.base import base_archive
from tests.testbed.kubernetes.images import layer_of, write_image

_PLACE: Final = "opt/weft"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_helper_image(
    archive: Path,
    say: Callable[[str], None],
    *,
    name: str = "",
    shell: Path | None = None,
    without: Collection[str] = (),
) -> str:
    """Writes the archive; returns the image's name, or ``name``.

    ``shell``: a script in the place of its /bin/sh. ``without``: as of ``write_image``.
    """
    image = Image.read(ROOT / "images" / "helper")
    dockerfile = (image.folder / "Dockerfile").read_text()
    name = name or f"testbed.invalid/{image.name}"
    layers = [*_lower_layers(image, say), _modules(image, left_out(dockerfile))]
    if shell is not None:
        layers.append(layer_of("usr/bin/sh", shell.read_bytes()))
    write_image(archive, name, layers, config=image_config(dockerfile), without=without)
    return name


def write_helper_base(archive: Path, say: Callable[[str], None]) -> None:
    """Writes the archive of an image with those layers of the helper's that do not change with this tree's modules."""
    image = Image.read(ROOT / "images" / "helper")
    write_image(archive, "testbed.invalid/helper-base:1", _lower_layers(image, say), config={})


def _lower_layers(image: Image, say: Callable[[str], None]) -> list[bytes]:
    return [base_archive(say).read_bytes(), _packages(image).read_bytes()]


def image_config(dockerfile: str) -> dict[str, Any]:
    """Returns ``config`` of OCI's image specification from the Dockerfile's last stage."""
    last = dockerfile.rpartition("\nFROM ")[2]
    return {
        "Entrypoint": json.loads(_only(r"^ENTRYPOINT (\[.*\])$", last)),
        "Env": [f"PATH={_PATH}", *_only(r"^ENV (.*)$", last).split()],
        "User": _only(r"^USER (.*)$", last),
        "WorkingDir": _only(r"^WORKDIR (.*)$", last),
    }


def left_out(dockerfile: str) -> list[str]:
    """Returns the folders of ``services`` that the Dockerfile removes."""
    return _only(r"cd /opt/weft/services \\\n *&& rm -rf ([a-z ]+) \\\n", dockerfile).split()


def _only(pattern: str, text: str) -> str:
    """The group of the one match. RuntimeError if the Dockerfile is written differently now."""
    matches: list[str] = re.findall(pattern, text, re.MULTILINE)
    if len(matches) != 1:
        raise RuntimeError(f"images/helper/Dockerfile has {len(matches)} matches of {pattern!r}")
    return matches[0]


def _packages(image: Image) -> Path:
    """The layer of the locked packages, compiled; made once for each lock."""

    def build(folder: Path) -> None:
        content = folder / "content"
        for wheel in sorted(wheels(ROOT / image.requirements, image.without).glob("*.whl")):
            shutil.unpack_archive(wheel, content, "zip")
        (folder / "layer.tar").write_bytes(packed(content, _PLACE))
        shutil.rmtree(content)

    return built("helper-packages", [ROOT / image.requirements, Path(__file__)], build) / "layer.tar"


def _modules(image: Image, without: Sequence[str]) -> bytes:
    """The layer of this tree's modules, compiled: the tracked files that the projects' wheels have."""
    with tempfile.TemporaryDirectory() as temporary:
        tracked, content = Path(temporary) / "tracked", Path(temporary) / "content"
        for project in image.projects:
            settings = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["tool"]["setuptools"]
            top = settings["packages"]["find"]["include"][0]
            data = [
                f"{package.replace('.', '/')}/{pattern}"
                for package, patterns in settings["package-data"].items()
                for pattern in patterns
            ]
            copy_tracked([f":(glob){project}/{path}" for path in (f"{top}/**/*.py", *data)], tracked)
            shutil.copytree(tracked / project / top, content / top)
        for name in without:
            shutil.rmtree(content / "services" / name, ignore_errors=True)  # the dashboard has no module
        return packed(content, _PLACE)


def packed(content: Path, place: str) -> bytes:
    """A layer with what is below ``content``, compiled, at this place in the image."""
    # By hashes that are not checked: the files' times would have to stay the same, and nothing writes there.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(content, quiet=2, stripdir=str(content), prependdir=f"/{place}", invalidation_mode=mode)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(content, place, filter=_of_root)
    return buffer.getvalue()


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Read by all, written by root."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry

"""The images of the test cluster's pods, written as OCI archives: nothing is pulled.

Specification: github.com/opencontainers/image-spec, image-layout.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import secrets
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TINY_IMAGE: Final = "testbed.invalid/busybox:1"
"""Busybox with all its commands; runs as any user."""
PAUSE_IMAGE: Final = "testbed.invalid/pause:1"
"""Holds the namespaces of a pod."""
STAND_IN_IMAGE: Final = "testbed.invalid/helper:1"
"""Busybox that plays a learner's helper (stand_in.py)."""
STAND_IN: Final = Path(__file__).with_name("stand_in.sh")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PT_INTERP: Final = 3
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_NAME: Final = "io.containerd.image.name"


def write_private_image(folder: Path) -> Path:
    """Writes the archive of an image with busybox whose id is new each time.

    Once an image was pulled with credentials, a kubelet starts no pod without them in an image of its id, also if that
    had been loaded before. So it must not be an image of ``write_images``, in which the pods of other tests run.
    """
    archive = folder / "private.tar"
    config = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "User": "65534:65534", "Labels": {"id": secrets.token_hex(8)}}
    write_image(archive, TINY_IMAGE, [busybox_layer()], config=config)
    return archive


def write_images(folder: Path) -> list[Path]:
    """Writes the archives of all images. Raises RuntimeError if this machine's busybox is not static."""
    layer = busybox_layer()
    commands = {
        TINY_IMAGE: ["/bin/sh"],
        PAUSE_IMAGE: ["/bin/sleep", "2147483647"],
        STAND_IN_IMAGE: ["/bin/sh", "-c", STAND_IN.read_text()],
    }
    archives: list[Path] = []
    for name, command in commands.items():
        archives.append(folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar")
        write_image(archives[-1], name, [layer], config={"Cmd": command, "Env": ["PATH=/bin"], "User": "65534:65534"})
    return archives


@dataclass(frozen=True)
class ImageRecord:
    name: str
    """With registry and tag."""
    digest: str
    """Of its manifest, which names all of its content."""
    layers: tuple[str, ...]
    """Digests, the lowest first."""


def read_image(archive: Path) -> ImageRecord:
    """``archive``: of ``write_image``."""
    with tarfile.open(archive) as tar:

        def read(path: str) -> dict[str, Any]:
            file = tar.extractfile(path)
            assert file is not None
            document: dict[str, Any] = json.load(file)
            return document

        (entry,) = read("index.json")["manifests"]
        manifest = read(f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}")
    layers = tuple(layer["digest"] for layer in manifest["layers"])
    return ImageRecord(entry["annotations"][_NAME], entry["digest"], layers)


def write_image(
    archive: Path,
    name: str,
    layers: Sequence[bytes],
    *,
    config: Mapping[str, object],
    without: Collection[str] = (),
) -> None:
    """Writes an OCI archive of an image.

    ``name``: with registry and tag. ``layers``: tar files, the lowest first. ``config``: how containers are started,
    as in OCI's image specification. ``without``: digests of layers that the archive need not contain, since each node
    that imports it has them.
    """
    blobs: dict[str, bytes] = {}

    def add(media_type: str, blob: bytes) -> dict[str, object]:
        digest = hashlib.sha256(blob).hexdigest()
        blobs[digest] = blob
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(blob)}

    descriptors = [add(_LAYER, layer) for layer in layers]
    image = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": add(_CONFIG, _json(image)),
        "layers": descriptors,
    }
    index_entry = add(_MANIFEST, _json(manifest)) | {"annotations": {_NAME: name}}
    files: Mapping[str, bytes] = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [index_entry]}),
        **{f"blobs/sha256/{digest}": blob for digest, blob in blobs.items() if f"sha256:{digest}" not in without},
    }
    with tarfile.open(archive, "w") as tar:
        for path, content in files.items():
            _add_file(tar, path, content, 0o644)


def layer_of(path: str, program: bytes) -> bytes:
    """A layer with one program, which takes the place of that of the layers below."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add_file(tar, path, program, 0o755)
    return buffer.getvalue()


def busybox_layer() -> bytes:
    """The only layer of the test bed's own images. RuntimeError if this machine's busybox is not static."""
    binary = shutil.which("busybox")
    if binary is None or _needs_libraries(Path(binary).read_bytes()):
        raise RuntimeError("the images need a static busybox: install Debian's busybox-static")
    listed = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _add_file(tar, "bin/busybox", Path(binary).read_bytes(), 0o755)
        for command in sorted(set(listed.stdout.split()) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


def _needs_libraries(program: bytes) -> bool:
    """True if a 64-bit ELF program names a loader (a program header of type PT_INTERP)."""
    (headers,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return any(struct.unpack_from("<I", program, headers + at * size)[0] == _PT_INTERP for at in range(count))


def _add_file(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _json(document: object) -> bytes:
    return json.dumps(document).encode()

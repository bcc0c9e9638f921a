"""The base of the images: a minimal Debian with Python, in the place of the public image that a Dockerfile names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.testbed.built import built, need_debian, run

# bubblewrap: images that need it install it only if the base has none, so that no step of a build needs a network.
PACKAGES: Final = ("bubblewrap", "ca-certificates", "python3")
_SUITE: Final = "bookworm"
_NOT_INSTALLED: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def base_archive(say: Callable[[str], None], packages: Sequence[str] = PACKAGES) -> Path:
    """The file system of a minimal Debian with some packages, as a tar file; made once for this machine."""

    def build(folder: Path) -> None:
        say(f"making a base image with mmdebstrap: {' '.join(packages)} (once, 20 s or more)")
        need_debian(("mmdebstrap",), ("mmdebstrap",), say)
        excluded = [f"--dpkgopt=path-exclude={path}" for path in _NOT_INSTALLED]
        # The hook: without it usrmerge brings Perl, 50 MB.
        run(
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join((*packages, 'usr-is-merged'))}",
            *excluded,
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            # Packages of Java do not install without the folder.
            '--essential-hook=mkdir -p "$1"/usr/share/man/man1',
            _SUITE,
            folder / "base.tar",
        )

    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    return built(f"base-{digest}", [Path(__file__)], build) / "base.tar"

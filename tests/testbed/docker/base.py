"""The base of the images: a minimal Debian with Python, in the place of the public image that a Dockerfile names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.testbed.built import built, need_debian, run

# bubblewrap: images that need it install it only if the base has none, so that no step of a build needs a network.
_PACKAGES: Final = "bubblewrap,ca-certificates,python3,usr-is-merged"
_SUITE: Final = "bookworm"
_NOT_INSTALLED: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def base_archive(say: Callable[[str], None]) -> Path:
    """The file system of a minimal Debian with Python and bubblewrap, as a tar file; made once for this machine."""

    def build(folder: Path) -> None:
        say("making the base of the images with mmdebstrap (once, about 20 s)")
        need_debian(("mmdebstrap",), ("mmdebstrap",), say)
        excluded = [f"--dpkgopt=path-exclude={path}" for path in _NOT_INSTALLED]
        # The hook: without it usrmerge brings Perl, 50 MB.
        run(
            "mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *excluded,
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", _SUITE, folder / "base.tar",
        )  # fmt: skip

    return built("base", [Path(__file__)], build) / "base.tar"

"""Builds the images: a folder images/NAME each. Needs root and Debian, or a Docker engine.

    python -m scripts.images                     all of them
    python -m scripts.images helper --archive D  one, and its archive (docker save) as D/helper.tar
    python -m scripts.images --docker            with the Docker engine of this machine, which needs no root

A folder has a Dockerfile and image.toml:

    max_mb         the image must not be larger
    requirements   a lock of requirements/, whose wheels are verified by their hashes and laid into wheels/
    without        packages of the lock that the image does not need
    projects       folders of projects of this tree, whose wheels are laid into projects/
    files          other files and folders of this tree, laid into files/ under their own paths

So everything that enters an image is tracked or locked. The image is named weft/NAME:VERSION. Builds run in the test
bed's own Docker engine, without a network: a base image is made under the name that the Dockerfile gives it, not pulled
(tests/testbed/docker). With --docker, Docker pulls it.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.testbed.built import built, run
from tests.testbed.docker.engine import Engine, MachinesEngine, engine

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "images"
DASHBOARD: Final = ROOT / "services" / "dashboard" / "dist"
_FROM: Final = re.compile(r"^ARG BASE=(\S+)", re.MULTILINE)
_PYTHON: Final = "3.11"
"""That of the base image."""


@dataclass(frozen=True)
class Image:
    """An image to build, from its folder."""

    folder: Path
    max_mb: int
    requirements: str = ""
    without: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Image:
        """Raises TypeError for an unknown field, FileNotFoundError for a folder that is no image."""
        fields = tomllib.loads((folder / "image.toml").read_text())
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(folder, **values)

    @property
    def name(self) -> str:
        return f"weft/{self.folder.name}:{version()}"

    @property
    def base(self) -> str:
        """The image that the Dockerfile builds on."""
        match = _FROM.search((self.folder / "Dockerfile").read_text())
        if match is None:
            raise RuntimeError(f"{self.folder / 'Dockerfile'} has no line 'ARG BASE=name'")
        return match[1]


def version() -> str:
    """Returns the version of the platform."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def revision() -> str:
    """Returns the commit; with '-changed' if tracked files differ from it."""
    commit = _git("rev-parse", "HEAD").strip()
    return f"{commit}-changed" if _git("status", "--porcelain", "--untracked-files=no").strip() else commit


def wheels(requirements: Path, without: Sequence[str]) -> Path:
    """Returns a folder with the wheels of a lock, verified by their hashes; downloaded once for this machine."""

    def download(folder: Path) -> None:
        say(f"downloading the packages of {requirements.name}")
        lock = folder / "requirements.txt"
        lock.write_text(_without(requirements.read_text(), without))
        run(
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:",
            f"--python-version={_PYTHON}", "--implementation=cp", *_platforms(), f"--dest={folder}",
            f"--requirement={lock}",
        )  # fmt: skip
        lock.unlink()

    digest = hashlib.sha256(" ".join(sorted(without)).encode()).hexdigest()[:8]
    return built(f"wheels-{digest}", [requirements], download)


def _without(lock: str, packages: Sequence[str]) -> str:
    """The lock without some packages; an entry ends where a line is not continued."""
    entries = re.split(r"(?m)^(?=[a-z0-9])", lock)
    return "".join(entry for entry in entries if entry.partition("==")[0].split("[")[0] not in packages)


def _platforms() -> list[str]:
    """The options of pip that name the systems whose wheels run on the base image."""
    machine = platform.machine()
    return [f"--platform=manylinux_2_{minor}_{machine}" for minor in (36, 34, 31, 28, 27, 24, 17, 12, 5)] + [
        f"--platform=manylinux2014_{machine}", f"--platform=manylinux1_{machine}",
    ]  # fmt: skip


def project_wheels(projects: Sequence[str], target: Path) -> None:
    """Builds the wheels of projects from their tracked files into ``target``."""
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        for project in projects:
            run(
                sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                f"--wheel-dir={target}", Path(folder) / project,
            )  # fmt: skip


def copy_sources(target: Path) -> None:
    """Copies the tracked files, and the built dashboard, which is a part of the platform's package."""
    copy_tracked(["."], target)
    run(ROOT / "scripts" / "dashboard.sh")
    shutil.copytree(DASHBOARD, target / DASHBOARD.relative_to(ROOT))


def copy_tracked(paths: Sequence[str], target: Path) -> None:
    """Copies the tracked files below some paths into ``target``, under their own paths."""
    for name in filter(None, _git("ls-files", "-z", "--", *paths).split("\0")):
        if (ROOT / name).is_file():  # not one that is deleted and not yet committed so
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def lay_out(image: Image, context: Path) -> None:
    """Fills the folder of a build."""
    shutil.copytree(image.folder, context, dirs_exist_ok=True)
    if image.requirements:
        shutil.copytree(wheels(ROOT / image.requirements, image.without), context / "wheels")
    if image.projects:
        (context / "projects").mkdir()
        project_wheels(image.projects, context / "projects")
    if image.files:
        copy_tracked(image.files, context / "files")


def build(image: Image, on: Engine | MachinesEngine) -> int:
    """Builds an image; returns its size in bytes. RuntimeError if the build fails or the image is too large."""
    on.import_base(image.base, say)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        lay_out(image, context)
        say(f"building {image.name}")
        on.docker(
            "build", "--quiet", *on.build_options, f"--build-arg=REVISION={revision()}",
            f"--build-arg=VERSION={version()}", f"--tag={image.name}", context,
        )  # fmt: skip
    size = int(on.docker("image", "inspect", "--format={{.Size}}", image.name))
    if size > image.max_mb * 1_000_000:
        raise RuntimeError(f"{image.name} has {size / 1e6:.0f} MB; image.toml allows {image.max_mb}")
    return size


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def say(what: str) -> None:
    """Prints a message, e.g. before a long step."""
    sys.stderr.write(f"images: {what}\n")
    sys.stderr.flush()


def main() -> int:
    """Builds the images of the command line; returns the exit code."""
    known = sorted(path.parent.name for path in IMAGES.glob("*/image.toml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="also write DIR/NAME.tar")
    parser.add_argument("--docker", action="store_true", help="with the Docker engine of this machine; pulls the base")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"there is no image {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    try:
        with nullcontext(MachinesEngine()) if arguments.docker else engine(say) as running:
            for name in arguments.names or known:
                image = Image.read(IMAGES / name)
                size = build(image, running)
                print(f"{image.name}  {size / 1e6:.0f} MB of {image.max_mb}")
                if arguments.archive is not None:
                    arguments.archive.mkdir(parents=True, exist_ok=True)
                    running.docker("save", f"--output={arguments.archive / name}.tar", image.name)
    except RuntimeError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds the images: a folder images/NAME each. Needs root and Debian, or a Docker engine.

    python -m scripts.images                     platform, helper, and jax of the framework library
    python -m scripts.images helper --archive D  one, and its archive (docker save) as D/helper.tar
    python -m scripts.images --frameworks pytorch numpy    these entries of the framework library; "all": each entry
    python -m scripts.images --docker            with the Docker engine of this machine, which needs no root

A folder has a Dockerfile and image.toml:

    max_mb         the image must not be larger
    requirements   a lock of requirements/, whose wheels are verified by their hashes and laid into wheels/
    without        packages of the lock that the image does not need
    projects       folders of projects of this tree, whose wheels are laid into projects/
    files          other files and folders of this tree, laid into files/ under their own paths
    tools          a lock of what the build needs besides, whose wheels are laid into tools/
    per_framework  true: an image for each entry of the framework library, from its lock; max_mb is besides its size

So everything that enters an image is tracked or locked. The image is named weft/NAME:VERSION; one of the framework
library weft/FRAMEWORK:VERSION-LOCK, with its own version and the first digits of its lock's digest. Builds run in the
test bed's own Docker engine, without a network: a base image is made under the name that the Dockerfile gives it, not
pulled (tests/testbed/docker). With --docker, Docker pulls it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker

from services.core.frameworks import Framework, find, library
from services.core.frameworks.images import image_name
from tests.testbed.built import built, run
from tests.testbed.docker.engine import Engine, MachinesEngine, engine

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "images"
DASHBOARD: Final = ROOT / "services" / "dashboard" / "dist"
LIBRARY: Final = ROOT / "services" / "core" / "frameworks"
_FROM: Final = re.compile(r"^ARG BASE=(\S+)", re.MULTILINE)
_PYTHON: Final = "3.11"
_GLIBC_MINOR: Final = 36
"""Of glibc 2.36. Python's and glibc's version are those of the base image."""
FRAMEWORKS: Final = ("jax",)
"""Entries of the framework library whose images are built if none is named."""


@dataclass(frozen=True)
class Image:
    """An image to build, from its folder."""

    folder: Path
    max_mb: int
    requirements: str = ""
    without: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tools: str = ""
    per_framework: bool = False
    framework: Framework | None = None
    """The entry of the library, of an image that is made of one."""

    @classmethod
    def read(cls, folder: Path) -> Image:
        """Raises TypeError for an unknown field, FileNotFoundError for a folder that is no image."""
        fields = tomllib.loads((folder / "image.toml").read_text())
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(folder, **values)

    @classmethod
    def of_framework(cls, entry: Framework) -> Image:
        """The image of an entry of the framework library."""
        template = cls.read(IMAGES / "framework")
        lock = f"{LIBRARY.relative_to(ROOT)}/{entry.lock}" if entry.lock is not None else ""
        return replace(template, framework=entry, requirements=lock, max_mb=template.max_mb + entry.size_mb)

    @property
    def name(self) -> str:
        return image_name(self.framework) if self.framework else f"weft/{self.folder.name}:{version()}"

    @property
    def file(self) -> str:
        """The name without its tag: ``helper``, ``jax``."""
        return self.framework.name if self.framework else self.folder.name

    @property
    def build_arguments(self) -> dict[str, str]:
        """The values of the Dockerfile's arguments."""
        shared = {"REVISION": revision(), "VERSION": version()}
        if self.framework is None:
            return shared
        entry = self.framework
        own = {"FRAMEWORK": entry.name, "FRAMEWORK_VERSION": entry.version, "LOCK_DIGEST": entry.lock_digest}
        return shared | own

    @property
    def base(self) -> str:
        """The image that the Dockerfile builds on."""
        match = _FROM.search((self.folder / "Dockerfile").read_text())
        if match is None:
            raise RuntimeError(f"{self.folder / 'Dockerfile'} has no line 'ARG BASE=name'")
        return match[1]


def images_named(names: Sequence[str], frameworks: Sequence[str]) -> list[Image]:
    """The images to build; without any name platform, helper and those of FRAMEWORKS.

    ``frameworks``: names of the library, ``all`` for each entry of it. Raises RuntimeError for an unknown name.
    """
    known = own_images()
    if unknown := sorted(set(names) - set(known)):
        raise RuntimeError(f"there is no image {', '.join(unknown)}; there are: {', '.join(known)}")
    if not names and not frameworks:
        names, frameworks = known, FRAMEWORKS
    return [Image.read(IMAGES / name) for name in names] + [Image.of_framework(entry) for entry in _entries(frameworks)]


def own_images() -> list[str]:
    """The names of the images that are made once."""
    folders = (path.parent for path in IMAGES.glob("*/image.toml"))
    return sorted(folder.name for folder in folders if not Image.read(folder).per_framework)


def _entries(frameworks: Sequence[str]) -> list[Framework]:
    if "all" in frameworks:
        return list(library())
    entries: list[Framework] = []
    for name in frameworks:
        entry = find(*name.split(":", 1))
        if entry is None:
            there = ", ".join(sorted({known.name for known in library()}))
            raise RuntimeError(f"the framework library has no {name}; it has: {there}")
        entries.append(entry)
    return entries


def version() -> str:
    """Returns the version of the platform."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def revision() -> str:
    """Returns the commit; with '-changed' if tracked files differ from it."""
    commit = _git("rev-parse", "HEAD").strip()
    return f"{commit}-changed" if _git("status", "--porcelain", "--untracked-files=no").strip() else commit


def wheels(requirements: Path, without: Sequence[str]) -> Path:
    """Returns a folder with the wheels of a lock, verified by their hashes; downloaded once for this machine."""
    entries = for_base(requirements.read_text(), without)

    def download(folder: Path) -> None:
        say(f"downloading the packages of {requirements.name}")
        lock = folder / "requirements.txt"
        lock.write_text(entries)
        run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            f"--python-version={_PYTHON}",
            "--implementation=cp",
            *_platforms(),
            f"--dest={folder}",
            f"--requirement={lock}",
        )
        lock.unlink()

    digest = hashlib.sha256(entries.encode()).hexdigest()[:8]
    return built(f"wheels-{digest}", [requirements], download)


def for_base(lock: str, without: Sequence[str] = ()) -> str:
    """The entries of a lock that the base image installs, without their markers and without some packages.

    pip would judge the markers by the Python that it runs on. The base may have any patch release: what the first or
    the last one needs is kept. An entry ends where a line is not continued.
    """
    system = {
        "python_version": _PYTHON,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": platform.machine(),
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    bases = [{**system, "python_full_version": f"{_PYTHON}.{patch}"} for patch in (0, 99)]
    kept: list[str] = []
    for entry in re.split(r"(?m)^(?=[a-z0-9])", lock):
        first, newline, rest = entry.partition("\n")
        pinned, semicolon, marker = first.partition(";")
        if pinned.partition("==")[0].split("[")[0] in without:
            continue
        if not semicolon:
            kept.append(entry)
        elif any(Marker(marker.removesuffix("\\").strip()).evaluate(dict(base)) for base in bases):
            kept.append(f"{pinned}\\{newline}{rest}")
    return "".join(kept)


def _platforms() -> list[str]:
    """The options of pip that name the systems whose wheels run on the base image."""
    machine = platform.machine()
    # pip takes each name as it is, not those of older systems with it.
    return [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(_GLIBC_MINOR, 4, -1)] + [
        f"--platform=manylinux2014_{machine}",
        f"--platform=manylinux1_{machine}",
    ]


def project_wheels(projects: Sequence[str], target: Path) -> None:
    """Builds the wheels of projects from their tracked files into ``target``."""
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        for project in projects:
            run(
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--no-index",
                f"--wheel-dir={target}",
                Path(folder) / project,
            )


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
    for lock, without, place in ((image.requirements, image.without, "wheels"), (image.tools, (), "tools")):
        if lock:
            # Linked: those of PyTorch have gigabytes. The folder of the build is removed, and nothing writes to it.
            shutil.copytree(wheels(ROOT / lock, without), context / place, copy_function=_link_or_copy)
        else:
            (context / place).mkdir()
    if image.projects:
        (context / "projects").mkdir()
        project_wheels(image.projects, context / "projects")
    if image.files:
        copy_tracked(image.files, context / "files")


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def build(image: Image, on: Engine | MachinesEngine) -> int:
    """Builds an image; returns its size in bytes. RuntimeError if the build fails or the image is too large."""
    on.import_base(image.base, say)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        lay_out(image, context)
        say(f"building {image.name}")
        on.docker(
            "build",
            "--quiet",
            *on.build_options,
            *(f"--build-arg={name}={value}" for name, value in image.build_arguments.items()),
            f"--tag={image.name}",
            context,
        )
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(own_images())}")
    parser.add_argument(
        "--frameworks",
        nargs="+",
        default=(),
        metavar="NAME",
        help=f'of the framework library: {", ".join(dict.fromkeys(entry.name for entry in library()))}, or "all"; '
        "jax:0.10 for a version",
    )
    parser.add_argument("--archive", type=Path, metavar="DIR", help="also write DIR/NAME.tar")
    parser.add_argument("--docker", action="store_true", help="with the Docker engine of this machine; pulls the base")
    arguments = parser.parse_args()
    try:
        wanted = images_named(arguments.names, arguments.frameworks)
        with nullcontext(MachinesEngine()) if arguments.docker else engine(say) as running:
            for image in wanted:
                size = build(image, running)
                print(f"{image.name}  {size / 1e6:.0f} MB of {image.max_mb}", flush=True)
                if arguments.archive is not None:
                    arguments.archive.mkdir(parents=True, exist_ok=True)
                    running.docker("save", f"--output={arguments.archive / image.file}.tar", image.name)
    except RuntimeError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

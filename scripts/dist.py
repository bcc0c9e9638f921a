"""Makes what is published of a version, in dist/: wheels, source archives, the chart, images, SBOMs, checksums.

    python -m scripts.dist               all; the images need root (scripts/images.py)
    python -m scripts.dist --docker      the images with the Docker engine of this machine
    python -m scripts.dist --no-images   the packages and the chart only

Only tracked files enter, with the time of the commit: packages of two runs are equal. SBOMs are CycloneDX 1.5.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from scripts.images import ROOT, build, copy_sources, copy_tracked, images_named, revision, say, version
from tests.testbed.built import run
from tests.testbed.docker.engine import Engine, MachinesEngine, engine

DIST: Final = ROOT / "dist"
CHART: Final = ROOT / "helm" / "weft"
_PROJECTS: Final = ("cli", ".")
_PINNED: Final = re.compile(r"^([a-z0-9][a-z0-9.-]*)(?:\[[^\]]*\])?==([^ ;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def packages(target: Path) -> None:
    """Builds wheels and source archives of both projects."""
    os.environ["SOURCE_DATE_EPOCH"] = _commit_time()
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        for project in _PROJECTS:
            say(f"building the packages of {project}")
            run(
                uv,
                "build",
                "--quiet",
                "--offline",
                "--no-build-isolation",
                "--no-sources",
                f"--python={sys.executable}",
                f"--out-dir={target}",
                Path(folder) / project,
            )
    (target / ".gitignore").unlink(missing_ok=True)


def chart(target: Path) -> Path:
    """Packs helm/weft with this version, as `helm package` does: the chart's name is the archive's top folder.

    Only tracked files, with the time of the commit and in order: two runs give the same archive. Returns its path.
    """
    archive = target / f"weft-chart-{version()}.tgz"
    time = int(_commit_time())
    with tempfile.TemporaryDirectory() as folder:
        copy_tracked([str(CHART.relative_to(ROOT))], Path(folder))
        source = Path(folder) / CHART.relative_to(ROOT)
        described = (source / "Chart.yaml").read_text()
        for name in ("version", "appVersion"):
            described = re.sub(rf"(?m)^{name}: .*$", f"{name}: {version()}", described)
        (source / "Chart.yaml").write_text(described)
        # Helm reads Chart.yaml first.
        files = sorted((path for path in source.rglob("*") if path.is_file()), key=_after_chart_yaml)
        with (
            archive.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for path in files:
                entry = tarfile.TarInfo(f"weft/{path.relative_to(source)}")
                entry.size, entry.mtime, entry.mode = path.stat().st_size, time, 0o644
                with path.open("rb") as content:
                    tar.addfile(entry, content)
    return archive


def _after_chart_yaml(path: Path) -> tuple[bool, str]:
    return path.name != "Chart.yaml", str(path)


def _commit_time() -> str:
    done = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def python_components(lock: str, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The packages of a lock as components, without those whose marker excludes Linux; sorted by name."""
    components: list[dict[str, Any]] = []
    for entry in re.split(r"(?m)^(?=[a-z0-9])", lock):
        match = _PINNED.match(entry)
        if match is None or match[1] in without or _is_of_another_system(entry.splitlines()[0]):
            continue
        name, pinned = match.groups()
        component: dict[str, Any] = {"type": "library", "name": name, "version": pinned}
        # The hashes of all archives that the lock allows; one of them was installed.
        properties = [{"name": "weft:sha256", "value": digest} for digest in _HASH.findall(entry)]
        components.append({**component, "purl": f"pkg:pypi/{name}@{pinned}", "properties": properties})
    return sorted(components, key=lambda component: str(component["name"]))


def _is_of_another_system(line: str) -> bool:
    return any(f"sys_platform == '{system}'" in line for system in ("win32", "emscripten", "darwin"))


def debian_components(listed: str) -> list[dict[str, Any]]:
    """Debian's packages as components, from lines "name version architecture"."""
    components: list[dict[str, Any]] = []
    for line in listed.splitlines():
        name, installed, architecture = line.split()
        purl = f"pkg:deb/debian/{name}@{installed}?arch={architecture}"
        components.append({"type": "library", "name": name, "version": installed, "purl": purl})
    return components


def sbom(name: str, components: Iterable[dict[str, Any]]) -> str:
    """A CycloneDX document about the image or package ``name`` of this version."""
    subject = {"type": "container", "name": name, "version": version()}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject, "properties": [{"name": "weft:revision", "value": revision()}]},
        "components": list(components),
    }
    return json.dumps(document, indent=1) + "\n"


def images(target: Path, on: Engine | MachinesEngine) -> None:
    """Builds all images; writes their archives and SBOMs."""
    for image in images_named((), ()):
        size = build(image, on)
        print(f"{image.name}  {size / 1e6:.0f} MB of {image.max_mb}")
        file = f"weft-{image.name.removeprefix('weft/').replace(':', '-')}"
        on.docker("save", f"--output={target / file}.tar", image.name)
        listed = on.docker(
            "run",
            "--rm",
            "--network=none",
            "--entrypoint=dpkg-query",
            image.name,
            "--show",
            "--showformat=${Package} ${Version} ${Architecture}\\n",
        )
        lock = (ROOT / image.requirements).read_text() if image.requirements else ""
        components = [*python_components(lock, image.without), *debian_components(listed)]
        (target / f"{file}.cdx.json").write_text(sbom(image.name, components))


def checksums(folder: Path) -> str:
    """Lines for ``sha256sum --check``, sorted by name."""
    lines: list[str] = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Fills dist/ anew; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docker", action="store_true", help="build images with the Docker engine of this machine")
    parser.add_argument("--no-images", action="store_true", help="packages and the chart only")
    arguments = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        packages(DIST)
        chart(DIST)
        if not arguments.no_images:
            with nullcontext(MachinesEngine()) if arguments.docker else engine(say) as running:
                images(DIST, running)
    except RuntimeError as error:
        say(str(error))
        return 1
    (DIST / "SHA256SUMS").write_text(checksums(DIST))
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

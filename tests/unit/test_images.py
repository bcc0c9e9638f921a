"""The folders of the images, and the lists of what is in a published version."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from scripts.dist import checksums, debian_components, python_components, sbom
from scripts.images import IMAGES, Image

FOLDERS = sorted(path.parent for path in IMAGES.glob("*/image.toml"))


def test_each_folder_of_images_can_be_built() -> None:
    assert FOLDERS
    assert [path.name for path in sorted(IMAGES.iterdir())] == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_image_has_a_bound_a_user_without_rights_and_a_revision(folder: Path) -> None:
    image, dockerfile = Image.read(folder), (folder / "Dockerfile").read_text()
    assert 0 < image.max_mb <= 350
    assert image.base == "python:3.11-slim-bookworm"
    last_stage = dockerfile.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\d+):\d+$", last_stage, re.MULTILINE) == ["10001"]
    assert 'org.opencontainers.image.revision="${REVISION}"' in last_stage


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_image_is_built_from_a_lock_with_hashes_only(folder: Path) -> None:
    image = Image.read(folder)
    if image.requirements:
        components = python_components((IMAGES.parent / image.requirements).read_text(), image.without)
        assert all(component["properties"] for component in components)
    for line in (folder / "Dockerfile").read_text().splitlines():
        assert "pip install" not in line or "--no-index" in line or line.rstrip().endswith("\\")
        assert re.search(r"https?://|curl |wget ", line) is None


LOCK = """\
# Made by hand.
apsw==3.54.1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via weft-platform
celery[redis]==5.7.0 \\
    --hash=sha256:cc
tzdata==2026.6 ; sys_platform == 'win32' \\
    --hash=sha256:dd
uv==0.13.9 \\
    --hash=sha256:ee
"""


def test_an_sbom_lists_the_packages_of_the_lock_that_the_image_has() -> None:
    components = python_components(LOCK.replace("sha256:aa", f"sha256:{'a' * 64}"), ["uv"])
    assert [component["purl"] for component in components] == ["pkg:pypi/apsw@3.54.1.0", "pkg:pypi/celery@5.7.0"]
    assert components[0]["properties"] == [{"name": "weft:sha256", "value": "a" * 64}]
    debian = debian_components("libc6 2.36-9 amd64\nbubblewrap 0.8.0-2 amd64\n")
    document = json.loads(sbom("weft/platform", [*components, *debian]))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert "pkg:deb/debian/libc6@2.36-9?arch=amd64" in [entry["purl"] for entry in document["components"]]


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.tar").write_bytes(b"a")
    text = checksums(tmp_path)
    assert text.splitlines()[0] == f"{hashlib.sha256(b'a').hexdigest()}  a.tar"
    done = subprocess.run(["sha256sum", "--check", "--status"], input=text, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0

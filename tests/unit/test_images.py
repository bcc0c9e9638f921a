"""The folders of the images, and the lists of what is in a published version."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from scripts.dist import checksums, debian_components, python_components, sbom
from scripts.images import IMAGES, Image, for_base, images_named, version
from services.core.frameworks import library

_USERS = {"platform": 10_001, "helper": 65_534, "framework": 65_534}
FOLDERS = sorted(path.parent for path in IMAGES.glob("*/image.toml"))


def test_each_folder_of_images_can_be_built() -> None:
    assert FOLDERS
    assert [path.name for path in sorted(IMAGES.iterdir())] == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_image_has_a_bound_a_user_without_rights_and_a_revision(folder: Path) -> None:
    image, dockerfile = Image.read(folder), (folder / "Dockerfile").read_text()
    assert 0 < image.max_mb <= (400 if image.per_framework else 350)
    assert image.base == "python:3.11-slim-bookworm"
    last_stage = dockerfile.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER .*$", last_stage, re.MULTILINE) == [f"USER {_USERS[folder.name]}:{_USERS[folder.name]}"]
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


def test_make_images_builds_platform_helper_and_jax() -> None:
    assert [image.file for image in images_named((), ())] == ["helper", "platform", "jax"]
    assert [image.name for image in images_named(["helper"], ())] == [f"weft/helper:{version()}"]


def test_an_entry_of_the_library_becomes_an_image_of_its_lock() -> None:
    (image,) = images_named((), ["jax:0.10"])
    (entry,) = (entry for entry in library() if entry.name == "jax")
    digest = hashlib.sha256(entry.lock_text().encode()).hexdigest()
    assert image.name == f"weft/jax:{entry.version}-{digest[:8]}"
    assert (IMAGES.parent / image.requirements).read_text() == entry.lock_text()
    assert image.build_arguments["LOCK_DIGEST"] == f"sha256:{digest}"
    assert image.max_mb > entry.size_mb
    assert {image.framework for image in images_named((), ["all"])} == set(library())


@pytest.mark.parametrize(
    ("names", "frameworks", "complaint"),
    [
        (["jax"], (), "no image jax; there are: helper, platform"),
        ((), ["jaxx"], "no jaxx"),
        ((), ["jax:9"], "no jax:9"),
    ],
)
def test_an_unknown_image_is_refused_with_those_that_there_are(
    names: list[str], frameworks: list[str], complaint: str
) -> None:
    with pytest.raises(RuntimeError, match=complaint):
        images_named(names, frameworks)


def test_a_framework_image_has_neither_pip_nor_the_tool_that_installed_it() -> None:
    first, last = (IMAGES / "framework" / "Dockerfile").read_text().rsplit("\nFROM ", 1)
    assert "COPY tools" in first
    assert "site-packages/pip*" in last
    assert re.findall(r"^COPY .*$", last, re.MULTILINE) == ["COPY --from=packages /opt/framework /opt/framework"]


def test_an_image_has_the_packages_that_the_lock_names_for_its_python_only() -> None:
    lock = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
tzdata==2026.6 ; sys_platform == 'win32' \\
    --hash=sha256:dd
uv==0.13.9 \\
    --hash=sha256:ee
"""
    assert for_base(lock, ["uv"]) == ("numpy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n")


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


def test_image_has_what_only_early_patch_releases_of_python_need() -> None:
    """Debian's Python 3.11.2 is a base as well: without this package redis could not be imported there."""
    lock = "async-timeout==5.0.1 ; python_full_version < '3.11.3' \\\n    --hash=sha256:aa\n"
    assert for_base(lock) == "async-timeout==5.0.1 \\\n    --hash=sha256:aa\n"
    assert for_base("tomli==2.0 ; python_version < '3.11'\n") == ""

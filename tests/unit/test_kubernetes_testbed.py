"""The parts of the test cluster that need no cluster: pins, images, records of processes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts.images import IMAGES
from tests.testbed.kubernetes.helper_image import image_config, left_out
from tests.testbed.kubernetes.images import write_image
from tests.testbed.kubernetes.processes import Process
from tests.testbed.kubernetes.programs import MODULES


@pytest.mark.parametrize("module", sorted(path.name for path in MODULES.iterdir()))
def test_every_module_of_the_test_cluster_is_pinned_with_hashes(module: str) -> None:
    pins = (MODULES / module / "go.mod").read_text()
    assert re.search(r"^(tool|require)\b", pins, re.MULTILINE)
    assert "=> ../" not in pins
    assert (MODULES / module / "go.sum").stat().st_size > 0


def test_kubernetes_programs_report_the_version_of_their_pin() -> None:
    version = re.search(r"k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes" / "go.mod").read_text())
    assert version is not None
    assert f"version.gitVersion={version[1]} " in (MODULES / "kubernetes" / "build.toml").read_text()


def test_image_archive_names_its_blobs_by_their_content(tmp_path: Path) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w"):
        pass
    write_image(tmp_path / "image.tar", "testbed.invalid/empty:1", [layer.getvalue()], config={"Cmd": ["/bin/true"]})
    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {name: _read(archive, name) for name in archive.getnames()}
    blobs = {name.rpartition("/")[2]: content for name, content in files.items() if name.startswith("blobs/")}
    assert {digest: hashlib.sha256(content).hexdigest() for digest, content in blobs.items()} == {d: d for d in blobs}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "testbed.invalid/empty:1"}
    manifest = json.loads(blobs[entry["digest"].removeprefix("sha256:")])
    config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["config"]["Cmd"] == ["/bin/true"]
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]


def test_helper_image_of_the_test_bed_follows_the_dockerfile() -> None:
    dockerfile = (IMAGES / "helper" / "Dockerfile").read_text()
    config = image_config(dockerfile)
    assert config["Entrypoint"] == ["python3", "-m", "services.helper", "--pod"]
    assert "PYTHONPATH=/opt/weft" in config["Env"]
    assert {"api", "lcm", "metrics"} <= set(left_out(dockerfile))
    with pytest.raises(RuntimeError, match="0 matches"):
        image_config(dockerfile.replace("ENTRYPOINT", "CMD"))


def test_record_of_an_ended_process_hits_no_process_that_has_its_pid_now() -> None:
    mine = Process.of(os.getpid())
    assert mine is not None
    former = Process(mine.pid, mine.started - 1)
    assert not former.alive
    former.send(signal.SIGKILL)
    former.kill()
    assert mine.alive


def test_killed_process_has_ended_when_kill_returns(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = Process.of(child.pid)
        assert process is not None
        process.write(tmp_path / "record.json")
        kept = Process.read(tmp_path / "record.json")
        assert kept is not None
        assert kept == process
        assert kept.alive
        kept.kill()
        assert not kept.alive
    assert child.returncode == -signal.SIGKILL
    assert Process.of(child.pid) is None


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()

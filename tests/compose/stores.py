"""The image of the test bed's stores, in the place of the public ones that docker-compose.yml names."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.testbed.built import built, run
from tests.testbed.docker.engine import Engine, Say
from tests.testbed.go import SERVERS, go_build
from tests.testbed.mongo import mongo_build

STORES: Final = "weft-testbed/stores:1"
"""MongoDB's protocol, etcd, RabbitMQ, S3 and Prometheus in one image: each container runs one of them."""
_BASE: Final = "weft-testbed/stores-base:2"
_PACKAGES: Final = ("busybox", "default-jre-headless", "etcd-client", "prometheus", "rabbitmq-server")
_FOLDER: Final = Path(__file__).with_name("images") / "stores"


def build_stores(on: Engine, say: Say) -> str:
    """Builds the image, from what the test bed has; returns its name."""
    on.import_base(_BASE, say, _PACKAGES)
    mongo = mongo_build(say)
    source = _FOLDER / "Mongod.java"

    def compile_classes(folder: Path) -> None:
        run("javac", "-d", folder / "classes", "-cp", f"{mongo / 'jars'}/*", source)

    classes = built("mongod-in-container", [source], compile_classes) / "classes"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(_FOLDER, context, dirs_exist_ok=True)
        shutil.copytree(mongo / "jars", context / "mongod" / "jars")
        shutil.copytree(classes, context / "mongod" / "classes")
        for name in ("etcd", "versitygw"):
            shutil.copy2(go_build(name, SERVERS / name, say), context / "bin")
        context.chmod(0o755)
        on.docker("build", "--quiet", "--network=none", f"--tag={STORES}", context)
    return STORES

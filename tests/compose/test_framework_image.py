"""An image of the framework library, built and started as a pod starts it."""

from __future__ import annotations

from scripts.images import build, images_named
from tests.compose.stack import Stack

_AS_IN_A_POD = (
    "run",
    "--rm",
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp",
    "--user=200123:200123",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--env=HOME=/tmp",
)
_TRY = """\
import importlib.metadata, numpy, os, shutil, sys
print(numpy.__version__, numpy.ones(3).sum(), os.getuid(), sys.prefix)
print(sorted({package.metadata["Name"] for package in importlib.metadata.distributions()}))
print([program for program in ("pip", "pip3", "uv", "gcc", "cc", "ensurepip") if shutil.which(program)])
"""


def test_framework_image_runs_as_any_user_on_a_read_only_root_without_pip_and_compiler(new_stack: Stack) -> None:
    (image,) = images_named((), ["numpy"])
    build(image, new_stack.engine)
    assert image.framework is not None
    printed = new_stack.engine.docker(*_AS_IN_A_POD, image.name, "python", "-c", _TRY)
    assert printed.splitlines() == [f"{image.framework.version} 3.0 200123 /opt/framework", "['numpy']", "[]"]
    labels = new_stack.engine.docker("image", "inspect", "--format={{json .Config.Labels}}", image.name)
    assert image.framework.lock_digest in labels

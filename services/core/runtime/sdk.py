"""Copies the part of the SDK that training code imports to a folder that the learners' users can read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.core.domain.errors import Internal
from services.core.runtime.durable_files import write_text

FILES: Final = ("__init__.py", "_learner.py")
"""All of the SDK that ``import weft`` and ``weft.report`` need. They import only the standard library."""


def install(folder: Path) -> None:
    """Writes ``folder/weft/``. Files that exist with the same content are not replaced."""
    spec = find_spec("weft")
    if spec is None or spec.origin is None:
        raise Internal("the SDK (weft-sdk) is not installed beside the platform")
    source, package = Path(spec.origin).parent, folder / "weft"
    package.mkdir(parents=True, exist_ok=True)
    for path in (folder, package):
        path.chmod(0o755)
    for name in FILES:
        content, target = (source / name).read_text(), package / name
        if target.exists() and target.read_bytes() == content.encode():
            continue
        write_text(target, content, durable=False, mode=0o644)

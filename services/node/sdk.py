"""The part of the SDK that code inside a learner imports, copied to where the learners' users can read it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.core.domain.errors import Internal

FILES: Final = ("__init__.py", "_learner.py")
"""``import weft`` and all that ``weft.report`` needs: standard library beyond that."""


def install(folder: Path) -> None:
    """``folder/weft/``; files that are there already with the same content are left alone."""
    spec = find_spec("weft")
    if spec is None or spec.origin is None:
        raise Internal("the SDK (weft-sdk) is not installed beside the platform")
    source, package = Path(spec.origin).parent, folder / "weft"
    package.mkdir(parents=True, exist_ok=True)
    for path in (folder, package):
        path.chmod(0o755)
    for name in FILES:
        content, target = (source / name).read_bytes(), package / name
        if target.exists() and target.read_bytes() == content:
            continue
        temporary = package / f".{name}.new"
        temporary.write_bytes(content)
        temporary.chmod(0o644)
        temporary.rename(target)

"""The learners on this machine while no node agent runs."""

from __future__ import annotations

import subprocess
import sys

from services.core.domain.errors import WeftError
from services.core.runtime.home import Home
from services.core.runtime.processes import platform_environment


def end_all(home: Home) -> None:
    """Ends the processes of all learners. Their folders stay. Raises WeftError if some could not be ended."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "services.node.shutdown", str(home / "node")],
        env=platform_environment(),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if ended.returncode:
        raise WeftError(f"some learners could not be ended: {ended.stderr.strip()[-500:]}")

"""scripts/setup.sh where it cannot succeed: one clear line, and nothing that looks finished."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("scripts/setup.sh", "requirements", "pyproject.toml", "cli/pyproject.toml")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What set-up reads of a checkout, in a folder whose name has a space."""
    tree = tmp_path / "a checkout"
    for name in NEEDED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    return tree


def set_up(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "WEFT_"))}
    return subprocess.run(
        [checkout / "scripts" / "setup.sh"],
        env=clean | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_network_it_says_so_in_one_line_and_leaves_nothing_that_looks_ready(checkout: Path) -> None:
    for _ in range(2):
        done = set_up(checkout, PIP_INDEX_URL="http://127.0.0.1:9/simple")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "FAILED: fetching uv: Connection refused" in done.stderr
        assert "check the network" in done.stderr
        assert not (checkout / ".venv" / ".packages").exists()


@pytest.mark.parametrize(
    ("interpreter", "message"),
    [("/nowhere/python3", "there is no such interpreter"), ("/bin/true", "is no Python 3.11 or newer")],
)
def test_an_interpreter_that_cannot_be_used_is_named(checkout: Path, interpreter: str, message: str) -> None:
    done = set_up(checkout, WEFT_PYTHON=interpreter)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"setup: WEFT_PYTHON={interpreter}{':' if 'no such' in message else ''} {message}\n"

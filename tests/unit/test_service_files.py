"""How many files a service may open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from services.core.bootstrap.service import raise_file_limit
print(raise_file_limit() == hard, resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)
"""


@pytest.mark.slow
def test_a_service_may_open_as_many_files_as_the_system_allows_whatever_the_shell_that_started_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == "True True\n"

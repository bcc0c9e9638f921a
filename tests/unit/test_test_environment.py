"""What a run of the tests takes from the environment of its user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT = """
import os
import tests.conftest
print(sorted(name for name in os.environ if name.startswith("WEFT_")))
"""


def test_platforms_of_tests_used_the_stores_of_the_users_shell() -> None:
    given = {"WEFT_JOB_STORE": "mongodb://db/weft", "WEFT_HOME": "/var/lib/weft", "WEFT_KEY": "k"}
    kept = {"WEFT_TEST_MONGO_URI": "mongodb://test/", "WEFT_N": "3"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    done = subprocess.run(
        [sys.executable, "-c", LEFT],
        cwd=ROOT,
        env={**others, **given, **kept},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == repr(sorted(kept))

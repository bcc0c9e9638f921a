"""What holds for every test."""

import asyncio
import os
import re
import sys
from collections.abc import Generator
from typing import Final

import hypothesis
import pytest

# Settings of the platforms that the tests start, and of their commands, would also be those of the user's own: tests on
# the stores of an operator's shell would fill them with jobs. These are of the tests themselves.
_OWN: Final = re.compile(r"WEFT_(TEST_\w+|FUZZ|HOSTILE|N|PROMISE|PYTHON|SEED)")
for _name in [name for name in os.environ if name.startswith("WEFT_") and not _OWN.fullmatch(name)]:
    del os.environ[_name]

# The same examples each time, so that a red run is about the change in hand; `make fuzz` looks further.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("fuzz", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("fuzz" if os.environ.get("WEFT_FUZZ") else "same")

# Rewritten assertions are kept where PYTHONDONTWRITEBYTECODE is set, too: each worker would rewrite all tests again.
# The processes that tests start still have the variable.
sys.dont_write_bytecode = False

pytest.register_assert_rewrite("tests.testbed.cluster_rules")  # tests that several files import
pytest_plugins = [
    "tests.testbed.built",
    "tests.testbed.go",
    "tests.testbed.etcd",
    "tests.testbed.ferretdb",
    "tests.testbed.interrupts",
    "tests.testbed.mongo",
    "tests.testbed.node_fixtures",
    "tests.testbed.rabbitmq",
    "tests.testbed.redis",
    "tests.testbed.s3",
    "tests.testbed.toxiproxy",
    "tests.testbed.workers",
    "tests.promises",
]


def pytest_configure() -> None:
    # pytest-asyncio asks for the current loop, to put it back afterwards; on Python 3.11
    # asking makes one, which nobody closes (pytest-asyncio's issue 724). Saying that there
    # is none keeps it from being made; a test that leaks a loop still fails.
    asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its platform did with its jobs: it may not fail again when it is looked into."""
    report = yield
    platforms = sys.modules.get("tests.testbed.platform")
    if report.failed and platforms is not None:
        report.sections += [("jobs of the platform", running.histories()) for running in platforms.RUNNING]
    return report

"""What holds for every test."""

import asyncio

pytest_plugins = ["tests.testbed.etcd", "tests.testbed.mongo"]


def pytest_configure() -> None:
    # pytest-asyncio asks for the current loop, to put it back afterwards; on Python 3.11
    # asking makes one, which nobody closes (pytest-asyncio's issue 724). Saying that there
    # is none keeps it from being made; a test that leaks a loop still fails.
    asyncio.set_event_loop(None)

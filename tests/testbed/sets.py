"""The two sets of stores that the platform is tried on: embedded (all in its own folder), and servers.

The servers are those of the session: a database and a bucket of its own keep one platform from another. The broker is
shared: a hint that another's worker takes is only late.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import pytest

from tests.testbed.mongo import at_database
from tests.testbed.rabbitmq import RabbitMQ
from tests.testbed.s3 import S3

_numbers = itertools.count(1)


def embedded(_: pytest.FixtureRequest) -> Mapping[str, str]:
    """What the environment says of SQLite, a folder and the broker on the file system: nothing."""
    return {}


def servers(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Of MongoDB's protocol, S3 and RabbitMQ, started now if they do not run yet."""
    mongo: str = request.getfixturevalue("mongo_server")
    s3: S3 = request.getfixturevalue("s3")
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq_of_platforms")
    name = f"weft-set-{os.getpid()}-{next(_numbers)}"
    return {"WEFT_JOB_STORE": at_database(mongo, name), "WEFT_BROKER_URL": rabbitmq.url, **s3.settings(name)}

"""The number of metrics shards is changed on the installed chart, as the operator guide says, while jobs train."""

from __future__ import annotations

import json

from tests.helm.installation import RELEASE, Installation
from tests.helm.ticking import LONG_S, Ticking
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.waiting import eventually


def _move(installed: Installation, before: int, count: int) -> None:
    """The three steps of the guide."""
    installed.upgrade(f"--set=metrics.shards={count},metrics.shardsBefore={before}")
    eventually(lambda: _moved(installed, before, count), LONG_S)
    installed.upgrade(f"--set=metrics.shards={count},metrics.shardsBefore=null")


def _moved(installed: Installation, before: int, count: int) -> bool:
    """Whether each shard of the new number has logged it."""
    for shard in range(count):
        try:
            lines = installed.kubectl("logs", f"{RELEASE}-metrics-{shard}", "--container=metrics").splitlines()
        except KubectlError:  # it is being replaced
            return False
        events = [json.loads(line) for line in lines if "shards.moved" in line]
        if {"count": count, "before": before} not in [
            {key: event[key] for key in ("count", "before")} for event in events
        ]:
            return False
    return True


def test_no_line_and_no_point_is_lost_while_shards_are_added_and_removed(trained: Installation) -> None:
    trained.upgrade()
    jobs = Ticking(trained, 4)
    _move(trained, 2, 3)
    assert len(trained.pods("metrics")) == 3
    _move(trained, 3, 2)
    eventually(lambda: len(trained.pods("metrics")) == 2, LONG_S)
    jobs.end()
    # As the guide says of a shard that has gone: the next test begins without.
    trained.kubectl("delete", "persistentvolumeclaim", f"data-{RELEASE}-metrics-2")

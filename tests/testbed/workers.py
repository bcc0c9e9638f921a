"""How the tests of a run are spread over worker processes (pytest-xdist): by units, the longest first.

The tests of a unit share fixtures that are expensive to make, and run in one worker. A unit is a test file, a folder of
``FOLDERS``, or all tests on one parameter of the platform that several files share (``weft_up`` in
tests/integration/conftest.py). Each worker has servers of its own (etcd, MongoDB, RabbitMQ, Redis, S3, toxiproxy),
which all its units use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

FOLDERS: Final = ("tests/cluster", "tests/browser", "tests/compose", "tests/helm")
"""Folders that are a unit: their tests share a Kubernetes cluster, a platform and a browser, or an installation. They
are packages, whose fixtures end with them."""
_SPLIT: Final = ("tests/cluster", "tests/browser")
"""Folders that are no unit where the tests of one are all that is run: their tests mostly wait, and each worker then
starts a cluster, or a platform and a browser."""
_WAITING: Final = "tests/cluster"
"""A folder whose tests wait more than others, for what the cluster does in its own time."""
_TOGETHER: Final = {"tests/helm": "tests/cluster"}
"""Folder -> the folder to whose unit it belongs: each starts a Kubernetes cluster, and two at once are slow."""
LONGEST: Final[Sequence[str]] = (
    "tests/cluster",
    "tests/cluster/test_cluster_port.py",
    "tests/cluster/test_life_in_pods.py",
    "tests/cluster/test_digits.py",
    "tests/cluster/test_lost_pods.py",
    "tests/cluster/test_crash_points.py",
    "tests/cluster/test_overload.py",
    "tests/cluster/test_testbed.py",
    "tests/cluster/test_failures.py",
    "tests/compose",
    "tests/browser",
    "tests/integration/test_digits.py",
    "tests/integration/test_static_checks.py",
    "tests/integration/test_up.py",
    "platform every-hint-dropped",
    "platform servers",
    "platform embedded",
    "tests/contract/test_hints_failures.py",
    "tests/chaos/test_recovery.py",
    "tests/chaos/test_chaos.py",
    "tests/integration/test_submit_promises.py",
    "tests/integration/test_drain.py",
    "tests/integration/test_crash_points.py",
    "tests/integration/test_backup.py",
    "tests/chaos/test_no_loss_under_kills.py",
    "tests/chaos/test_outages.py",
    "tests/integration/test_life_on_rabbitmq.py",
    "tests/integration/test_node_deaths.py",
    "tests/integration/test_helper.py",
    "tests/integration/test_stores_away.py",
    "tests/hostile/test_tricks.py",
    "tests/unit/test_pod_entry.py",
    "tests/unit/test_lcm_dispatcher.py",
    "tests/unit/test_kubernetes_api.py",
    "tests/unit/test_backup_archive.py",
    "tests/unit/test_liveness.py",
)
"""Units that take long, in the order in which they are begun. All others follow: no worker is left alone at the end."""
_PLATFORMS: Final = re.compile(r"[\[-](embedded|every-hint-dropped|servers)[\]-]")
_SERIAL: Final = frozenset({"usepdb", "trace", "collectonly"})

_CRASHED: Final = pytest.StashKey[dict[Any, object]]()
"""Node -> why it is down."""


def units(nodeids: Collection[str]) -> dict[str, str]:
    """Test -> its unit."""
    if any(all(nodeid.startswith(f"{folder}/") for nodeid in nodeids) for folder in _SPLIT):
        return {nodeid: _file(nodeid) for nodeid in nodeids}
    sharing = {_file(nodeid) for nodeid in nodeids if "every-hint-dropped" in nodeid}
    return {nodeid: _unit(nodeid, sharing) for nodeid in nodeids}


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _unit(nodeid: str, sharing: Collection[str]) -> str:
    folder = next((folder for folder in FOLDERS if nodeid.startswith(f"{folder}/")), None)
    if folder is not None:
        return _TOGETHER.get(folder, folder)
    platform = _PLATFORMS.search(nodeid.partition("::")[2])
    return f"platform {platform[1]}" if platform and _file(nodeid) in sharing else _file(nodeid)


def _rank(unit: str) -> int:
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # a library without types
    """Gives each worker whole units, in the order in which they were collected."""

    def schedule(self) -> None:
        self.config.option.loadscopereorder = False  # the order of the collection is that of ``LONGEST``
        super().schedule()

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._units = units(collection)
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]

    def remove_node(self, node: Any) -> str | None:
        """Returns the test at which the worker has crashed; it has failed, and is not begun again.

        pytest-xdist gives the whole rest of its unit to the next worker, this test included, which crashes that one,
        too, until no worker is left to run the other tests. And a crash after the last test of a worker fails nothing.
        """
        crashed = self._at(node)
        super().remove_node(node)
        error = self.config.stash[_CRASHED].pop(node, None)
        if crashed is None and error is not None:
            name = f"worker {node.gateway.id}"
            why = f"{name} crashed after its last test: {error}"
            report = pytest.TestReport(name, (name, None, name), {}, "failed", why, "???")  # type: ignore[arg-type]
            self.config.hook.pytest_runtest_logreport(report=report)
        return crashed

    def _at(self, node: Any) -> str | None:
        """The test that the worker runs, if any. It counts as completed from now on."""
        for unit in self.assigned_work.get(node, {}).values():
            for nodeid, completed in unit.items():
                if not completed:
                    unit[nodeid] = True
                    return str(nodeid)
        return None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CRASHED] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Before the node is removed."""
    if error is not None:
        node.config.stash[_CRASHED][node] = error


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling:
    return UnitScheduling(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: a worker for each processor and one more, because many tests wait for what they started.

    Two more for ``_WAITING`` alone. None for a single file, a debugger or a list of the tests.
    """
    alone = len(config.args) == 1 and re.search(r"\.py(::|$)", config.args[0]) is not None
    if alone or any(config.getoption(name) for name in _SERIAL):
        return 0
    waiting = bool(config.args) and all(arg.rstrip("/").endswith(_WAITING) for arg in config.args)
    return len(os.sched_getaffinity(0)) + (2 if waiting else 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: puts the tests of a unit together, and the longest units first."""
    if not hasattr(config, "workerinput"):
        return
    unit_of = units([item.nodeid for item in items])
    position = {unit: at for at, unit in reversed(list(enumerate(unit_of.values())))}
    items.sort(key=lambda item: (_rank(unit_of[item.nodeid]), position[unit_of[item.nodeid]]))

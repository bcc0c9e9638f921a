"""A learner that fills the disk ends with a reason, and its neighbour goes on."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.domain.plan import AttemptPlan
from tests.testbed.gangs import await_exit, await_state, start, stop, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import NodeProcess, plan
from tests.waiting import until


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    variant: Variant = request.param
    bounds = {
        "WEFT_NODE_DISK": "16MB",
        "WEFT_NODE_TENANT_DISK": "24MB",
        "WEFT_NODE_FILES": "2000",
        "WEFT_NODE_DISK_CHECK_S": "0.1",
    }
    with variant.node(bounds) as running:
        yield running


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("head -c 40000000 /dev/zero > $RESULT_DIR/large; exec sleep 1000", "it wrote more than"),
        ("head -c 40000000 /dev/zero > /tmp/large; exec sleep 1000", "it wrote more than"),
        ("head -c 40000000 /dev/zero; exec sleep 1000", "it wrote more than"),
        ("cd $HOME; seq 3000 | xargs touch; exec sleep 1000", "it made more than 2000 files"),
        ("exec 3> $HOME/x; rm $HOME/x; head -c 40000000 /dev/zero >&3; exec sleep 1000", "it wrote more than"),
    ],
    ids=["results", "tmp", "stdout", "many files", "a file that it has deleted"],
)
async def test_a_learner_that_writes_too_much_is_ended_with_the_reason(
    node: NodeProcess, cluster: LocalCluster, command: str, why: str
) -> None:
    if node.isolation == "trusted" and "/tmp/" in command:
        command = command.replace("/tmp/", "$TMPDIR/")  # there /tmp is the machine's
    neighbour = plan(["head -c 4000000 /dev/zero > $RESULT_DIR/small; exec sleep 1000"])
    hog = plan([command])
    await start(cluster, neighbour)
    await start(cluster, hog)
    end = await await_exit(cluster, hog)
    assert (end.signal, end.stop_cause) == (9, "")
    assert end.disk_exceeded.startswith(why)
    await await_state(cluster, neighbour, "running")
    for gang in (hog, neighbour):
        await teardown(cluster, gang)


async def test_largest_learner_of_a_tenant_beyond_its_bound_is_ended_and_other_tenants_continue(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    def writes(megabytes: int, tenant: str = "t") -> AttemptPlan:
        return plan([f"head -c {megabytes}000000 /dev/zero > $RESULT_DIR/data; exec sleep 1000"], tenant=tenant)

    small, large = writes(11), writes(14)
    others = [] if node.isolation == "trusted" else [writes(14, "other")]  # trusted serves one tenant
    for gang in (*others, small, large):
        await start(cluster, gang)
    end = await await_exit(cluster, large)
    assert end.disk_exceeded.startswith("the learners of its tenant on this machine wrote more than 0.0224 GiB")
    assert end.disk_exceeded.endswith("(WEFT_NODE_TENANT_DISK)")
    for gang in (*others, small):
        await await_state(cluster, gang, "running")
    for gang in (*others, small, large):
        await teardown(cluster, gang)


WRITES_IN_THE_GRACE = """
(trap "" TERM; until [ -e stop-requested ]; do sleep 0.05; done; sleep 0.5; head -c 40000000 /dev/zero; sleep 1000) &
touch "$RESULT_DIR/ready"
exec sleep 1000
"""


async def test_a_learner_that_writes_too_much_in_the_grace_of_its_stop_is_ended_before_the_grace_is_over(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([f'cd "$JOB_STATE_DIR"; {WRITES_IN_THE_GRACE}'])
    await start(cluster, gang)
    await until(lambda: next(node.folder(gang).glob("job/results/**/ready"), None))
    await stop(cluster, gang, "halt", grace_ms=86_400_000)
    end = await await_exit(cluster, gang)
    assert (end.stop_cause, end.disk_exceeded) == ("halt", "")
    await teardown(cluster, gang)

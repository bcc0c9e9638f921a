"""Machines that cannot separate tenants say so, and serve one; machines that must limit learners and cannot, refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.core.domain.errors import InvalidRequest
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import node_process, plan

TRUSTED = Variant("process", root=False)


def test_isolation_process_without_root_is_called_trusted_and_says_why(no_bubblewrap: Path) -> None:
    with TRUSTED.node() as node:
        assert node.isolation == "trusted"
        assert "learners run under the platform's own user" in node.reported_isolation["why"]
    with Variant("auto", root=False).node({"PATH": str(no_bubblewrap)}) as node:
        assert node.isolation == "trusted"
        assert "apt-get install bubblewrap" in node.reported_isolation["why"]


async def test_a_trusted_machine_refuses_the_job_of_a_second_tenant_also_after_a_restart() -> None:
    with TRUSTED.node() as node:
        cluster = await node.cluster()
        first = plan(["true"], tenant="blue")
        await start(cluster, first)
        await await_exit(cluster, first)
        await teardown(cluster, first)
        node.end()
        node.start()
        with pytest.raises(InvalidRequest, match=r"serves tenant blue already.*as root or installs bubblewrap"):
            await cluster.do("reserve", plan(["true"], tenant="red"))
        again = plan(["true"], tenant="blue")
        await start(cluster, again)
        await await_exit(cluster, again)
        (node.home / "node/.agent/tenant.json").unlink()
        other = plan(["true"], tenant="red")
        await start(cluster, other)
        await await_exit(cluster, other)
        await cluster.close()


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != TRUSTED], ids=lambda variant: variant.name)
async def test_machines_that_isolate_learners_serve_several_tenants(variant: Variant) -> None:
    with variant.node() as node:
        cluster = await node.cluster()
        for gang in (plan(["true"], tenant="blue"), plan(["true"], tenant="red")):
            await start(cluster, gang)
            await await_exit(cluster, gang)
        await cluster.close()


def test_required_limits_refuse_to_start_where_there_is_no_sandbox(no_bubblewrap: Path) -> None:
    message = "WEFT_NODE_LIMITS=required, but this machine lacks isolation sandbox .*apt-get install bubblewrap"
    with (
        pytest.raises(AssertionError, match=message),
        node_process({"WEFT_NODE_LIMITS": "required", "PATH": str(no_bubblewrap)}),
    ):
        pass


def test_required_limits_refuse_to_start_where_there_are_no_control_groups() -> None:
    message = "lacks control groups for memory and pids .*systemd-run --user --scope"
    settings = {"WEFT_NODE_LIMITS": "required", "WEFT_NODE_CGROUPS": "false", "WEFT_NODE_ISOLATION": "sandbox"}
    with pytest.raises(AssertionError, match=message), node_process(settings):
        pass

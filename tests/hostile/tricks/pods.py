"""Tricks that only a learner in a pod can try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from tests.hostile.arena import Arena
from tests.hostile.attacks import pods
from tests.hostile.clusters.pods import METADATA, OWN_SHELL_IMAGE, Pods, lets_pass
from tests.hostile.trick import Trick, described, of_learner
from tests.waiting import eventually
from weft._job import Job

Check = Callable[[Arena, Job], Iterable[str]]
_ONE_MACHINE: Final[Mapping[str, str]] = dict.fromkeys(
    ("process", "sandbox"), "A learner on one machine has no container, control volume, kubelet or API server."
)
_ANY_END: Final = frozenset({"COMPLETED", "FAILED"})


def _reaches(servers: str) -> Callable[[Arena, Job], Iterator[str]]:
    """The first of these has refused the attack: one that reaches nothing would always hold."""

    def check(arena: Arena, job: Job) -> Iterator[str]:
        first = arena.intel()[servers][0]
        lines = [line.text for line in job.logs(tail=10_000)]
        if not any(line.startswith("refused by") and line.endswith(first) for line in lines):
            yield f"the attack has not reached {first}: {lines[-5:]}"

    return check


def _fails_with_its_own_code(_: Arena, job: Job) -> Iterator[str]:
    """Neither a success, nor a stop by somebody else, which would use up no retry."""
    if (job.reason, job.attempt) != ("ExitCode", 1) or f"code {pods.FORGED_CODE}" not in job.message:
        yield described(job)


def _exceeds_the_disk(_: Arena, job: Job) -> Iterator[str]:
    """It is the learner's fault and uses up its retries: else it would fill one node after the other, for ever."""
    if (job.reason, job.attempt) != ("DiskExceeded", 1):
        yield described(job)


def _policy_closes_it(arena: Arena, job: Job) -> Iterator[str]:
    """The test bed stores network policies and enforces none (docs/limits.md), so what is stored is judged."""
    cluster = arena.cluster
    assert isinstance(cluster, Pods)
    policies = eventually(lambda: cluster.policies(job) or job.refresh().at_rest)
    if not isinstance(policies, list):
        yield "the attack has ended without a network policy"
        return
    for policy in policies:
        if lets_pass(policy, METADATA):
            yield f"a network policy lets {METADATA} pass: {policy}"
    if not any(lets_pass(policy, "198.41.0.4") for policy in policies):
        yield f"no network policy lets anything pass: the judge is wrong about {policies}"


def _trick(
    attack: Callable[[], None],
    *,
    spec: Mapping[str, Any] | None = None,
    ends: Collection[str] = ("COMPLETED",),
    finishes: bool = True,
    during: Check | None = None,
    check: Check | None = None,
) -> Trick:
    return of_learner(
        attack, spec=spec, ends=ends, finishes=finishes, during=during, check=check, pointless=_ONE_MACHINE
    )


def _forgery(attack: Callable[[], None]) -> Trick:
    return _trick(attack, ends=("FAILED",), finishes=False, check=_fails_with_its_own_code)


TRICKS: Final[tuple[Trick, ...]] = (
    _trick(pods.control_volume_is_written),
    _trick(pods.files_of_the_helper_are_read),
    _trick(pods.image_puts_links_where_its_helper_fetches, spec={"image": OWN_SHELL_IMAGE}),
    _trick(pods.api_server_is_used, check=_reaches("api_servers")),
    _trick(pods.kubelets_are_used, check=_reaches("kubelets")),
    _trick(pods.machines_are_scanned),
    _trick(pods.metadata_service_is_read, during=_policy_closes_it),
    _forgery(pods.exit_record_is_forged),
    _forgery(pods.termination_message_is_forged),
    _forgery(pods.records_of_the_end_are_forged_for_ever),
    of_learner(
        pods.programs_of_the_entry_are_replaced,
        spec={"env": {"PATH": "/weft/job/home/bin:/usr/local/bin:/usr/bin:/bin"}, "max_runtime": "10m"},
        ends=("FAILED",),
        finishes=False,
        check=_fails_with_its_own_code,
        pointless=_ONE_MACHINE,
    ),
    _trick(pods.start_is_forged, ends=_ANY_END, finishes=False),
    _trick(
        pods.volume_is_filled, spec={"max_runtime": "10m"}, ends=("FAILED",), finishes=False, check=_exceeds_the_disk
    ),
    _trick(pods.container_is_filled),
    _trick(pods.files_of_the_node_are_filled),
    # With so little memory that its processes do not fit, the kernel needs minutes to end them.
    _trick(
        pods.fork_bomb_goes_off, spec={"resources": {"cpus": 0.25, "memory": "1GiB"}}, ends=_ANY_END, finishes=False
    ),
)

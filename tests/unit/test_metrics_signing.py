"""The objects for which a learner's helper gets URLs."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import InvalidRequest, PermissionDenied
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.object_urls import READS, ObjectRequest, Verb
from services.metrics.signing import check

ME = LearnerIdentity(job="j1", tenant="acme", attempt=3, role="worker", rank=1, name="worker-1")
JOB = "tenants/acme/jobs/j1/"
OWN = f"{JOB}attempts/3/"
CODE = "tenants/acme/code/" + "a1" * 32
VERBS: tuple[Verb, ...] = get_args(Verb)
MINE = [
    f"{OWN}results/worker-1/model.npz",
    f"{OWN}results/worker-1/a/b c/ü",
    f"{OWN}logs/learner-2/training-log.txt",
    f"{OWN}checkpoints/worker-1/s/1",
    f"{OWN}checkpoints/worker-1.manifest.json",
]
TO_READ = [
    CODE,
    f"{JOB}attempts/1/checkpoints/worker-0/w",
    f"{JOB}attempts/2/checkpoints/worker-1.manifest.json",
    f"{OWN}checkpoints/worker-0/w",
]
FOREIGN = [
    f"{OWN}results/worker-0/x",
    f"{OWN}results/worker-11/x",
    f"{OWN}results/worker-1",
    f"{OWN}logs/learner-1/x",
    f"{OWN}logs/learner-22/x",
    f"{OWN}other/worker-1/x",
    f"{OWN}x",
    f"{JOB}attempts/2/results/worker-1/x",
    f"{JOB}attempts/4/checkpoints/worker-1/x",
    f"{JOB}attempts/33/checkpoints/x",
    f"{JOB}attempts/0/checkpoints/x",
    f"{JOB}attempts/03/checkpoints/x",
    f"{JOB}attempts/2/checkpoints",
    f"{JOB}x",
    "tenants/acme/jobs/j2/attempts/3/x",
    "tenants/acme/jobs/j11/attempts/3/results/worker-1/x",
    "tenants/evil/jobs/j1/attempts/3/results/worker-1/x",
    "tenants/evil/code/" + "a1" * 32,
    "tenants/acme/code/x",
    CODE + "/x",
    CODE + "0",
    "weft-check/x",
    "x",
]


def may(verb: Verb, key: str) -> bool:
    try:
        check(ME, ObjectRequest(verb, key, "u", 1))
    except (PermissionDenied, InvalidRequest):
        return False
    return True


@pytest.mark.parametrize("key", MINE)
def test_a_helper_reads_and_writes_its_own_objects(key: str) -> None:
    assert [verb for verb in VERBS if may(verb, key) and verb != "delete"] == [
        verb for verb in VERBS if verb != "delete"
    ]


def test_a_helper_removes_only_objects_of_its_own_checkpoints() -> None:
    keys = [*MINE, *TO_READ, *FOREIGN, f"{OWN}checkpoints/worker-11/x", f"{OWN}checkpoints/worker-1"]
    assert [key for key in keys if may("delete", key)] == [f"{OWN}checkpoints/worker-1/s/1"]


@pytest.mark.parametrize("key", TO_READ)
def test_a_helper_only_reads_code_and_other_checkpoints(key: str) -> None:
    assert {verb for verb in VERBS if may(verb, key)} == READS


@pytest.mark.parametrize("key", FOREIGN)
def test_a_helper_neither_reads_nor_writes_foreign_objects(key: str) -> None:
    assert [verb for verb in VERBS if may(verb, key)] == []


@pytest.mark.parametrize(
    "key",
    [
        f"{OWN}results/worker-1/../worker-0/x",
        f"{OWN}results/worker-1/..",
        f"{OWN}results/worker-1/./x",
        f"{OWN}results/worker-1//x",
        f"{OWN}results/worker-1/",
        f"/{OWN}results/worker-1/x",
        "",
        "..",
        f"{OWN}results/worker-1/x\n",
        f"{OWN}results/worker-1/\x00",
        f"{OWN}results/worker-1/" + "x" * 1024,
    ],
)
def test_a_key_that_leaves_the_folder_is_refused(key: str) -> None:
    for verb in VERBS:
        with pytest.raises((InvalidRequest, PermissionDenied)):
            check(ME, ObjectRequest(verb, key, "u", 1))


def test_unknown_verbs_are_refused() -> None:
    for verb in ("remove", "list", "GET", ""):
        with pytest.raises(InvalidRequest):
            check(ME, ObjectRequest(verb, MINE[0]))  # type: ignore[arg-type]


PART = st.sampled_from(
    ["tenants", "acme", "jobs", "j1", "attempts", "3", "2", "results", "worker-1", "logs", "x", ".."]
)


@given(st.lists(PART, max_size=9).map("/".join), st.sampled_from(VERBS))
def test_a_helper_writes_only_below_its_own_attempt(key: str, verb: Verb) -> None:
    if may(verb, key) and verb not in READS:
        assert key.startswith(OWN)
        assert ".." not in key

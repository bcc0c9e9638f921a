"""Pods that the cluster or its users end while the learner's command may go on: whose end it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.core.adapters.kubernetes.observed import Context, observe
from services.core.domain.learner import Exit
from tests.testbed.kubernetes.learner_pods import (
    DISRUPTED,
    ENDED_MS,
    NOW,
    RUNNING,
    STARTED,
    Document,
    deleted,
    ended,
    record,
)


@pytest.mark.parametrize(
    "end",
    [ended(143, record(signal=15)), ended(143, record(code=143)), ended(0, record(code=0)), RUNNING],
    ids=["signal", "code", "success", "still runs"],
)
@pytest.mark.parametrize("reported", [True, False])
def test_learner_whose_pod_somebody_deletes_is_tried_again_whatever_it_answers_to_sigterm(
    end: Document,
    reported: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """`kubectl delete pod` must not fail a job, nor complete one that saves a checkpoint and exits with 0."""
    exit_of_report = Exit(time=ENDED_MS, signal=15) if reported else None
    context = Context(now=NOW, report=replace(STARTED, exit=exit_of_report))
    process = observe(deleted(end, after_s=1), context)
    assert process.exit is not None
    assert (process.reason, process.exit.lost, process.state) == ("PodDeleted", True, "exited")
    assert process.message == "somebody has deleted the pod of the learner; it is tried again, from its last checkpoint"


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("conditions", [[], [{**DISRUPTED, "reason": "EvictionByEvictionAPI"}]], ids=["", "evicted"])
def test_learner_that_had_ended_before_its_pod_was_deleted_or_evicted_is_not_tried_again(
    code: int, conditions: list[Document]
) -> None:
    """Its helper was still storing."""
    storing = deleted(RUNNING, after_s=-1)
    over = deleted(ended(code, record(code=code)), after_s=-1)
    for document in (storing, over):
        document["status"]["conditions"] = conditions
        process = observe(document, Context(now=NOW, report=replace(STARTED, exit=Exit(time=ENDED_MS, code=code))))
        assert process.exit == Exit(time=ENDED_MS, code=code)
        assert process.reason == ""


def test_evicted_learner_that_saves_its_checkpoint_and_exits_with_0_has_not_completed() -> None:
    document = deleted(ended(0, record(code=0)), after_s=1)
    document["status"]["conditions"] = [{**DISRUPTED, "reason": "EvictionByEvictionAPI"}]
    process = observe(document, Context(now=NOW, report=STARTED))
    assert process.exit is not None
    assert (process.reason, process.exit.lost) == ("Evicted", True)


def test_learner_that_still_uses_its_grace_is_ending_and_one_on_a_lost_node_is_not() -> None:
    deleting = deleted(RUNNING, after_s=1)
    assert observe(deleting, Context(now=NOW, report=STARTED)).is_ending
    assert not observe(deleting, Context(now=NOW, report=STARTED, node_lost=True)).is_ending
    assert not observe(deleted(ended(143, record(code=143)), after_s=1), Context(now=NOW)).is_ending

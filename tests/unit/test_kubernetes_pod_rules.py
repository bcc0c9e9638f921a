"""What Weft's own check of rendered pods refuses, without a cluster (tests/cluster/test_walls.py: the API server's)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.core.adapters.kubernetes import pod_rules, pods
from services.core.adapters.kubernetes.options import GangMethod
from services.core.domain.errors import AdmissionDenied, InvalidRequest
from tests.testbed.kubernetes.hostile_pods import (
    OPTIONS,
    friendly_pod,
    hostile_pods,
    leaving_pods,
    older_pod,
    plan,
)

CORPUS = list(hostile_pods())


def test_corpus_has_at_least_two_hundred_different_pods() -> None:
    documents = {repr(hostile.pod()) for hostile in CORPUS}
    assert len(documents) == len(CORPUS)
    assert len(CORPUS) >= 200
    assert repr(friendly_pod()) not in documents


@pytest.mark.parametrize("gang", GangMethod)
def test_every_rendered_pod_keeps_the_rules(gang: GangMethod) -> None:
    attempt, options = plan(), replace(OPTIONS, gang=gang, kueue_queue="training")
    for learner in attempt.learners:
        pod_rules.check(pods.pod(attempt, learner, options, "u", gang=gang), options)


def test_each_hostile_pod_is_refused_with_the_name_of_its_field() -> None:
    unnamed = []
    for hostile in (*CORPUS, *leaving_pods()):
        broken = list(pod_rules.violations(hostile.pod(), OPTIONS))
        if not any(field.startswith(hostile.reported) for field in broken):
            unnamed.append((hostile.name, broken))
        with pytest.raises(AdmissionDenied, match="breaks Weft's own rules"):
            pod_rules.check(hostile.pod(), OPTIONS)
    assert unnamed == []


def test_pod_whose_learner_has_the_whole_volume_in_which_its_helper_fetches_is_not_rendered_any_more() -> None:
    with pytest.raises(AdmissionDenied, match=r"containers\[learner\].volumeMounts"):
        pod_rules.check(older_pod(), OPTIONS)


def test_image_that_the_operator_does_not_allow_is_refused_with_those_that_are() -> None:
    allowed = replace(plan(), image="registry.example/team/train:1")
    assert pods.image_of(allowed, OPTIONS) == "registry.example/team/train:1"
    foreign = replace(plan(), image="docker.io/someone/train:1")
    with pytest.raises(InvalidRequest, match=r"images here begin with testbed.invalid/, registry.example/team/"):
        pods.image_of(foreign, OPTIONS)

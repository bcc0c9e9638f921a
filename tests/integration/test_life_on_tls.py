"""The lives of jobs with mutual TLS between all services and etcd, in the place of sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.core.runtime.address import TLS
from services.local.layout import INNER
from tests.integration.test_data_s3 import (
    bucket,
    test_job_whose_secret_was_replaced_by_a_wrong_one_says_so,
    test_learner_finds_the_objects_and_the_secret_is_nowhere,
)
from tests.integration.test_life import (
    test_a_follower_gets_every_line_once_and_ends_when_the_job_is_released,
    test_a_halted_job_resumes_from_its_checkpoint,
    test_a_job_goes_through_every_status_once_and_leaves_its_result,
    test_a_killed_job_has_no_process_left_after_a_second,
    test_the_learner_that_failed_first_is_named_and_its_peers_are_ended,
)
from tests.testbed.platform import Platform, platform
from tests.waiting import eventually

__all__ = [
    "bucket",
    "test_a_follower_gets_every_line_once_and_ends_when_the_job_is_released",
    "test_a_halted_job_resumes_from_its_checkpoint",
    "test_a_job_goes_through_every_status_once_and_leaves_its_result",
    "test_a_killed_job_has_no_process_left_after_a_second",
    "test_job_whose_secret_was_replaced_by_a_wrong_one_says_so",
    "test_learner_finds_the_objects_and_the_secret_is_nowhere",
    "test_the_learner_that_failed_first_is_named_and_its_peers_are_ended",
]


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    settings = {
        "WEFT_TRANSPORT": "tls",
        "WEFT_NODE_CPUS": "4",
        "WEFT_PEER_GRACE_S": "1",
        "WEFT_HTTP_ALLOW": "127.0.0.0/8",
    }
    with platform(settings) as running:
        eventually(running.all_ready)
        yield running


@pytest.mark.parametrize("service", ["api", "lcm", "guardian", "metrics", "node", "worker"])
def test_the_operator_sees_when_the_certificate_of_a_service_ends(weft_up: Platform, service: str) -> None:
    left_s = weft_up.counter(service, "weft_certificate_seconds")
    assert 360 * 86_400 < left_s < 366 * 86_400


@pytest.mark.parametrize("service", ["api", "lcm", "guardian", "metrics", "node", "worker"])
def test_prometheus_renames_no_label_of_a_service(weft_up: Platform, service: str) -> None:
    """A label of a metric that is also one of its target becomes ``exported_...``."""
    samples = [
        sample for family in text_string_to_metric_families(weft_up.metrics(service)) for sample in family.samples
    ]
    labels = {label for sample in samples for label in sample.labels}
    assert "component" in labels
    assert not labels & {"service", "namespace", "pod", "container", "endpoint", "instance", "job"}


def test_every_inner_address_demands_tls(weft_up: Platform) -> None:
    addresses = weft_up.home.addresses()
    assert {name for name, address in addresses.items() if address.startswith(TLS)} == set(INNER)

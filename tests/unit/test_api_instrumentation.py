"""The metrics of the api do not grow with what its users send."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from services.api.instrumentation import Instrumentation
from services.core.domain.spec import parse_spec


@pytest.mark.slow
def test_jobs_of_ever_new_sizes_take_no_memory_for_ever() -> None:
    registry = CollectorRegistry()
    instrumentation = Instrumentation(registry)
    for number in range(2_000):
        spec = {"name": "n", "command": "true", "resources": {"memory": 2**30 + number}}
        instrumentation.count_accepted(parse_spec(spec))
    [created] = [metric for metric in registry.collect() if metric.name == "trainer_trainings_create"]
    counted = [sample for sample in created.samples if sample.name.endswith("_total")]
    assert len(counted) <= 501
    assert sum(sample.value for sample in counted) == 2_000
    assert {sample.labels["memory"] for sample in counted if sample.value > 1} == {"other"}

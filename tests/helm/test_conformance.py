"""`weft conformance` in a pod of an installed chart."""

from __future__ import annotations

import json

from tests.helm.installation import Installation


def test_conformance_says_what_passes_and_what_this_cluster_lacks(installed: Installation) -> None:
    command = ["exec", "deployment/weft-lcm", "--container=lcm", "--", "sh", "-c", "weft conformance -o json || true"]
    checks = {entry["check"]: entry for entry in json.loads(installed.kubectl(*command))["checks"]}
    verdicts = {name: entry["verdict"] for name, entry in checks.items()}
    # The test cluster's network enforces no policy, and its GPUs are numbers without devices.
    assert verdicts == {
        "versions": "pass",
        "kubernetes version": "pass",
        "job store": "pass",
        "object store": "pass",
        "rights": "pass",
        "policies": "pass",
        "gang": "pass",
        "two learners": "pass",
        "clocks": "pass",
        "walls": "fail",
        "gpu": "fail",
        "broker": "pass",
        "job store fail-over": "not applicable",
    }, checks
    assert all(entry["fix"] for entry in checks.values() if entry["verdict"] == "fail")
    assert "etcd" in checks["walls"]["detail"]

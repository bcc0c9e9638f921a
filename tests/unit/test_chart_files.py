"""The chart has the rights and admission policies of `weft manifests`."""

from __future__ import annotations

from scripts.chart_files import COPIES, SOURCES
from services.core.adapters.kubernetes.manifests import Right, rights


def test_the_chart_has_the_files_of_weft_manifests() -> None:
    assert {path.name for path in SOURCES} == {
        "rights.yaml",
        "policies.yaml",
        "guardian_jobs.yaml",
        "grafana.json",
    }
    for source in SOURCES:
        assert (COPIES / source.name).read_bytes() == source.read_bytes(), "run `make docs`"


def test_the_rights_of_a_role_are_those_of_the_manifests() -> None:
    granted = rights("lcm", "team")
    assert Right("bind", "rbac.authorization.k8s.io", "clusterroles", "team-learners") in granted
    assert Right("watch", "", "pods") in granted
    assert Right("create", "", "pods") not in granted
    assert Right("create", "", "pods") in rights("learners", "team")

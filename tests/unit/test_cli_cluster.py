"""`weft cluster`, `weft storage`: the nodes, what jobs hold of them, and what a tenant has stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft._cli.main import run

NODE: dict[str, Any] = {"cpus": 4, "memory": 10**9, "gpus": 0, "gpu_type": "", "ready": True}
JOB: dict[str, Any] = {
    "id": "j1",
    "name": "n",
    "user": "u",
    "tenant": "t",
    "status": "PROCESSING",
    "learners": 2,
    "resources": {"cpus": 2, "memory": 10**9, "gpus": 0},
    "spec": {
        "resources": {"cpus": 1, "memory": "500MB", "devices": {"rdma/hca": 2}},
        "roles": {"ps": {"count": 1, "devices": {}}, "worker": {"count": 1}},
    },
    "attempt": {"placement": {"ps-0": "a", "worker-0": "a"}},
}

USE: dict[str, Any] = {"job": "j1", "gpus": 2, "idle": 2, "used": None, "cpus": 0.01}


def answer(request: Request, _number: int) -> Answer:
    path = request.path.partition("?")[0]
    nodes = [{**NODE, "name": "a", "devices": {"rdma/hca": 4}}, {**NODE, "name": "b", "devices": {}}]
    return json_answer(
        {
            "/v1/whoami": {"user": "u", "tenant": "t", "scope": "user"},
            "/v1/cluster": {"nodes": nodes, "jobs": {"PROCESSING": 1}, "isolation": "pod", "gpu_jobs": [USE]},
            "/v1/jobs": {"jobs": [JOB], "next": None},
            "/v1/sizes": {"sizes": [{"name": "cpu", "cpus": 1, "memory": 10**9, "gpus": 0}]},
        }[path]
    )


def test_cluster_shows_the_devices_of_nodes_who_holds_them_and_which_gpus_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_KEY", "weft_k_s")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    with scripted(answer) as server:
        monkeypatch.setenv("WEFT_URL", server.url)
        assert run(["cluster", "-o", "wide"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert run(["cluster", "-o", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert [line.split()[-2:] for line in shown if line.startswith(("a ", "b "))] == [["rdma/hca", "2/4"], ["-", "-"]]
    held = {learner["learner"]: learner["devices"] for learner in document["nodes"][0]["learners"]}
    assert held == {"ps-0": {}, "worker-0": {"rdma/hca": 2}}
    assert "not measured, 2 idle" in "\n".join(shown)
    assert document["gpu_jobs"] == [USE]


def test_storage_shows_sizes_for_people_and_bytes_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`weft storage` printed 2581000 bytes."""
    usage = {"tenant": "t", "objects": 12, "bytes": 2_581_000, "complete": True, "kinds": {"code": 1_750_000}}
    monkeypatch.setenv("WEFT_KEY", "weft_k_s")
    with scripted(lambda _request, _number: json_answer(usage)) as server:
        monkeypatch.setenv("WEFT_URL", server.url)
        assert run(["storage"]) == 0
        assert capsys.readouterr().out.splitlines()[2:] == ["size     2.6 MB", "  code   1.8 MB"]
        assert run(["storage", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == usage

"""Tables on narrow terminals: each row is as narrow as the terminal, and ids are whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, signed_in
from weft._cli.columns import cell_width
from weft._cli.commands.platform import _marked
from weft._cli.main import run

ID = "j01k8zzzzzzzzzzzzzzzzzz"
TIME = "2026-11-24T14:00:00Z"
LONG = "nightly-" + "n" * 50
RESOURCES = {"cpus": 1.5, "memory": 24_000_000_000, "gpus": 16}
JOB = {
    "id": ID,
    "name": LONG,
    "status": "DOWNLOADING",
    "learners": 128,
    "created": TIME,
    "progress": 0.5,
    "user": f"ada-{LONG}",
    "tenant": f"acme-{LONG}",
    "resources": RESOURCES,
    "reason": "EnvironmentFailed",
    "message": "waits for 16 more GPUs: 112 of 128 are free on nodes with the label zone=a",
    "position": 1000,
    "metrics": [{"name": name, "last": -1.234e-5, "best": 1.0} for name in ("loss", "accuracy", "validation/accuracy")],
    "attempt": {"number": 1, "started": TIME, "placement": {"worker-0": "node-of-a-rack-with-a-long-name"}},
}
NODE = {"name": "node-of-a-rack-with-a-long-name", "ready": False, **RESOURCES, "cpus": 256, "gpu_type": "h100"}
CURVE = {
    "name": "validation/accuracy",
    "role": "worker",
    "rank": 0,
    "context": {"subset": "test"},
    "steps": list(range(1_000_000, 1_000_040)),
    "values": [step / 7 for step in range(40)],
    "times": [TIME] * 40,
    "attempts": [1] * 40,
}
EVENT = {
    "seq": 1,
    "time": TIME,
    "actor": "lcm",
    "generation": 1,
    "from": None,
    "to": "DOWNLOADING",
    "attempt": 12,
    "reason": "EnvironmentFailed",
    "message": "requirements.txt: no wheel of https://packages.example.com/simple/a-package-with-a-long-name",
}
KEY = {"id": ID.replace("j", "k"), "name": LONG, "scope": "admin", "created": TIME}
PEOPLE = {"user": JOB["user"], "tenant": JOB["tenant"], "scope": "admin"}
ANSWERS = {
    "/v1/whoami": PEOPLE,
    "/v1/jobs": {"jobs": [JOB], "next": None},
    f"/v1/jobs/{ID}": JOB,
    f"/v1/jobs/{ID}/explain": {
        "id": ID,
        "status": "DOWNLOADING",
        "summary": "is DOWNLOADING for 1 min 5 s",
        "hints": [f"`weft logs -f {ID}` follows what it prints"],
        "startup": [{"step": "launch", "began": TIME, "ended": TIME}, {"step": "first_step", "began": TIME}],
    },
    f"/v1/jobs/{ID}/history": {"events": [EVENT]},
    f"/v1/jobs/{ID}/metrics": {"series": [CURVE]},
    "/v1/queue": {"waiting": [JOB]},
    "/v1/cluster": {"nodes": [NODE], "jobs": {"DOWNLOADING": 1}, "isolation": "sandbox", "enforced": ["memory"]},
    "/v1/usage": {
        "since": TIME,
        "until": TIME,
        "users": [
            {"tenant": LONG, "user": LONG, "jobs": 12_345, "gpu_hours": 1_234_567.891, "cpu_hours": 98_765_432.1},
            {"tenant": "acme", "user": "ada", "jobs": 1, "gpu_hours": 0.25, "cpu_hours": 2},
        ],
        "unreadable": 1,
    },
    "/v1/sizes": {"sizes": [{"name": "cpu", **RESOURCES}]},
    "/v1/frameworks": {
        "frameworks": [
            {
                "id": "sklearn-xgboost",
                "name": "sklearn-xgboost",
                "version": "3.2.0",
                "size_mb": 5600,
                "lock_digest": f"sha256:{'d' * 64}",
                "description": "XGBoost, scikit-learn and what they need",
            }
        ]
    },
    "/v1/keys": {"keys": [{**KEY, **PEOPLE}]},
    "/v1/secrets": {
        "secrets": [{"name": "s3-of-the-group", "keys": [LONG], "changed": TIME, "changed_by": LONG, "damaged": False}]
    },
}
TABLES = (
    ["list"],
    ["list", "-m", "loss", "-m", "accuracy", "-m", "validation/accuracy"],
    ["queue"],
    ["cluster"],
    ["usage"],
    ["events", ID],
    ["explain", ID],
    ["metrics", ID],
    ["metrics", ID, ID],
    ["key"],
    ["user"],
    ["secret"],
    ["frameworks"],
    ["sizes"],
)


def answer(request: Request, _n: int) -> Answer:
    return json_answer(ANSWERS[request.path.partition("?")[0]])


@pytest.fixture
def platform() -> Iterator[None]:
    with signed_in(answer):
        yield


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("command", TABLES, ids=" ".join)
@pytest.mark.parametrize("columns", [50, 60, 79, 80])
def test_no_row_of_a_table_is_wider_than_a_narrow_terminal(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(command) == 0
    out = capsys.readouterr().out
    assert max(map(cell_width, out.splitlines())) <= columns, out
    if command[0] in {"list", "queue", "cluster"}:
        assert ID in out
    if command[0] == "key":
        assert KEY["id"] in out


@pytest.mark.usefixtures("platform")
def test_a_list_on_a_narrow_terminal_keeps_the_value_of_a_requested_metric(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert run(["list", "-m", "loss"]) == 0
    assert "-1.234e-05" in capsys.readouterr().out


def test_long_checks_of_doctor_are_wrapped_behind_their_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = _marked("ok  ", f"etcd: etcd Version: 3.5.1 ({'/a-folder' * 4}) and more", indent=5).split("\n")
    assert lines[0] == "ok   etcd: etcd Version: 3.5.1"
    assert all(line.startswith("     ") and len(line) <= 50 for line in lines[1:])

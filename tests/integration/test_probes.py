"""The probes of a service while a store is away."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx2

from services.core.runtime.address import Address
from services.core.runtime.operations_client import read_operations
from tests.testbed.api import SPEC, a_zip
from tests.testbed.api_process import ApiProcess, api_processes
from tests.waiting import HANG_S, until
from weft.http_exchange import Answer

ROOT = Path(__file__).parents[2]


def ask(api: ApiProcess, path: str, key: str = "") -> Answer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return read_operations(Address(api.operations_address), path, timeout_s=HANG_S, headers=headers)


def ready(api: ApiProcess, key: str) -> dict[str, str]:
    """Check -> 1.0 or 0.0, of the metrics."""
    metrics = ask(api, "/metrics", key).body.decode()
    return dict(re.findall(r'^weft_ready\{check="(\w+)"\} (\S+)$', metrics, re.MULTILINE))


def test_containers_are_probed_for_serving_not_for_their_stores() -> None:
    for file in ("docker-compose.yml", "helm/weft/templates/_service.tpl"):
        probes = re.findall(r"services\.local\.containers, (\w+)\]", (ROOT / file).read_text())
        assert "serving" in probes
        assert set(probes) <= {"serving", "alive", "setup", "mongodb"}


async def test_the_api_gets_requests_and_answers_clear_errors_while_its_objects_are_away(tmp_path: Path) -> None:
    async with (
        api_processes(tmp_path, 1) as (api,),
        httpx2.AsyncClient(base_url=api.url, timeout=HANG_S, trust_env=False) as client,
    ):
        await until(lambda: ask(api, "/readyz").status == 200)
        assert json.loads(ask(api, "/servingz").body) == {"serving": True}
        (tmp_path / "objects").rename(tmp_path / "away")
        assert ask(api, "/readyz").status == 503
        assert [ask(api, path).status for path in ("/servingz", "/healthz")] == [200, 200]
        key = await api.key()
        # A store that does not answer within two seconds is not ready at that moment.
        shown = {"api": "1.0", "jobs": "1.0", "records": "1.0", "objects": "0.0"}
        await until(lambda: ready(api, key) == shown)
        files = {"spec": ("job.yaml", json.dumps(SPEC).encode()), "code": ("code.zip", a_zip({"train.py": b""}))}
        refused = await client.post("/v1/jobs", files=files, headers={"Authorization": f"Bearer {key}"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        (tmp_path / "away").rename(tmp_path / "objects")
        await until(lambda: ask(api, "/readyz").status == 200)

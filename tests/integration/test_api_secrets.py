"""Secrets of tenants: what users can set, list and delete, and where their values never appear."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.core.gen.weft.v1 import platform_pb2 as pp
from tests.contract.hostile import TEXTS
from tests.testbed.api import Api, running_api
from tests.testbed.user_rpc import speaking

VALUE = "wJalrXUtnFEMI-the-value"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as api:
        yield api


def body(**values: str) -> dict[str, Any]:
    return {"values": values or {"secret_key": VALUE}}


async def listed(client: Any, **params: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/secrets", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["secrets"])


async def test_a_secret_is_set_listed_replaced_and_deleted(api: Api) -> None:
    async with api.client(await api.key("ada", "acme")) as ada:
        made = await ada.put("/v1/secrets/s3", json=body(secret_key=VALUE, access_key="AKIA"))
        assert made.status_code == 200, made.text
        secret = made.json()
        assert {name: secret[name] for name in ("name", "keys", "changed_by", "damaged")} == {
            "name": "s3",
            "keys": ["access_key", "secret_key"],
            "changed_by": "ada",
            "damaged": False,
        }
        assert secret["created"] == secret["changed"]
        assert await listed(ada) == [secret]
        again = (await ada.put("/v1/secrets/s3", json=body(token="t"))).json()
        assert again["keys"] == ["token"], "all keys are replaced"
        assert (again["created"], again["changed"] >= secret["changed"]) == (secret["created"], True)
        assert (await ada.delete("/v1/secrets/s3")).status_code == 204
        assert (await ada.delete("/v1/secrets/s3")).status_code == 404
        assert await listed(ada) == []


async def test_another_tenant_s_secrets_are_as_if_missing(api: Api) -> None:
    async with (
        api.client(await api.key("ada", "acme")) as ada,
        api.client(await api.key("bob", "acme")) as bob,
        api.client(await api.key("eve", "acme2")) as eve,
    ):
        await ada.put("/v1/secrets/s3", json=body())
        assert await listed(eve) == []
        assert (await eve.delete("/v1/secrets/s3")).status_code == 404
        for tenant in ("acme", "*"):
            assert (await eve.get("/v1/secrets", params={"tenant": tenant})).status_code == 403
        assert (await eve.put("/v1/secrets/s3", params={"tenant": "acme"}, json=body())).status_code == 403
        assert (await eve.delete("/v1/secrets/s3", params={"tenant": "acme"})).status_code == 403
        await eve.put("/v1/secrets/s3", json=body(other="x"))
        assert [secret["keys"] for secret in await listed(bob)] == [["secret_key"]]
        changed = await api.admin.put("/v1/secrets/s3", params={"tenant": "acme"}, json=body(by="admin"))
        assert changed.json()["changed_by"] == "default/admin"
        assert [secret["changed_by"] for secret in await listed(bob)] == ["default/admin"]
        assert [secret["keys"] for secret in await listed(eve)] == [["other"]]
        assert await listed(api.admin) == []


WRONG: dict[str, tuple[Any, str]] = {
    "no values": ({}, "/values"),
    "no keys": ({"values": {}}, "/values"),
    "too many keys": ({"values": {f"k{number}": "v" for number in range(17)}}, "/values"),
    "an empty value": (body(a=""), "/values/a"),
    "a number": ({"values": {"a": 1}}, "/values/a"),
    "null": ({"values": {"a": None}}, "/values/a"),
    "a list": ({"values": [VALUE]}, "/values"),
    "a text": ({"values": VALUE}, "/values"),
    "a long key": ({"values": {"k" * 65: "v"}}, "/values"),
    "an empty key": ({"values": {"": "v"}}, "/values"),
    "a key with a line break": ({"values": {"a\n": "v"}}, "/values"),
    "too large together": (body(a=VALUE + "x" * 40_000, b="y" * 25_600), "/values"),
    "another field": ({"values": {"a": VALUE}, "tenant": "acme"}, "/tenant"),
}


@pytest.mark.parametrize("why", WRONG)
async def test_a_malformed_secret_is_refused_without_its_values(api: Api, why: str) -> None:
    sent, pointer = WRONG[why]
    refused = await api.admin.put("/v1/secrets/s3", json=sent)
    assert refused.status_code == 400, refused.text
    assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]
    assert VALUE not in refused.text
    assert await listed(api.admin) == []


async def test_a_body_that_is_no_json_or_too_long_is_refused(api: Api) -> None:
    for content, status in (
        (b"{", 400),
        (VALUE.encode(), 400),
        (b'{"values": {"a": "\\ud800"}}', 400),
        (b"\xff", 400),
        (b" " * 600_000, 413),
    ):
        refused = await api.admin.put("/v1/secrets/s3", content=content, headers={"Content-Type": "application/json"})
        assert refused.status_code == status, refused.text
        assert VALUE not in refused.text
    assert await listed(api.admin) == []


async def test_the_largest_secret_is_accepted(api: Api) -> None:
    values = {f"{'k' * 62}{number:02d}": "\x01" * 4096 for number in range(16)}
    assert (await api.admin.put(f"/v1/secrets/{'n' * 63}", json=body(**values))).status_code == 200
    assert [len(secret["keys"]) for secret in await listed(api.admin)] == [16]


async def test_a_hostile_name_is_refused(api: Api) -> None:
    async with speaking(api.grpc, api.admin_key) as rpc:
        texts = [text for text in TEXTS.values() if len(text) < 100_000]  # longer ones fit in no message
        sendable = [text for text in texts if not any("\ud800" <= letter <= "\udfff" for letter in text)]
        bad = [text for text in sendable if len(text) > 63 or not re.fullmatch("[a-z0-9]+", text)]
        for name in [*bad, "..", "../x", "a/b", "A", "a.b", "a_b", "-a", "a-", "a" * 64, "a\n", ""]:
            setting = pp.SetSecretRequest(name=name, values={"a": VALUE})
            refused = await rpc.refused(rpc.secrets.SetSecret(setting, metadata=rpc.metadata))
            assert (refused.code, [*refused.fields]) == ("invalid-request", ["/name"]), name
            deletion = pp.DeleteSecretRequest(name=name)
            refused = await rpc.refused(rpc.secrets.DeleteSecret(deletion, metadata=rpc.metadata))
            assert refused.code == "not-found", name
            assert len(refused.message) < 1_000
    for name in ("..%2Fx", "%00", "A", "a%0A"):
        assert (await api.admin.put(f"/v1/secrets/{name}", json=body())).status_code in {400, 404}
    assert await listed(api.admin) == []


async def test_a_tenant_has_a_bounded_number_of_secrets(tmp_path: Path) -> None:
    async with running_api(tmp_path, max_tenant_secrets=3) as api, api.client(await api.key("ada", "acme")) as ada:
        racing = await asyncio.gather(*[ada.put(f"/v1/secrets/s{number}", json=body()) for number in range(6)])
        assert sorted(answer.status_code for answer in racing) == [200, 200, 200, 409, 409, 409]
        refused = next(answer for answer in racing if answer.status_code == 409)
        assert "WEFT_MAX_TENANT_SECRETS" in refused.json()["detail"]
        names = [secret["name"] for secret in await listed(ada)]
        assert (await ada.put(f"/v1/secrets/{names[0]}", json=body(new="x"))).status_code == 200, "a change fits"
        assert (await api.admin.put("/v1/secrets/other", json=body())).status_code == 200, "another tenant's"
        assert (await ada.delete(f"/v1/secrets/{names[0]}")).status_code == 204
        assert (await ada.put("/v1/secrets/last", json=body())).status_code == 200


async def test_a_value_is_in_no_answer_log_metric_or_file(
    api: Api, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = [
        await api.admin.put("/v1/secrets/s3", json=body()),
        await api.admin.put("/v1/secrets/s3", json=body()),
        await api.admin.put("/v1/secrets/Bad", json=body()),
        await api.admin.put("/v1/secrets/s3", json={"values": {VALUE * 4: VALUE}}),
        await api.admin.get("/v1/secrets"),
        await api.admin.get("/v1/secrets/s3"),
        await api.admin.get("/v1/quarantine"),
        await api.admin.delete("/v1/secrets/s3"),
        await api.admin.put("/v1/secrets/s3", json=body()),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400, 200, 405, 200, 204, 200]
    logged = capfd.readouterr()
    assert "secret.set" in logged.out
    assert "secret.deleted" in logged.out
    assert VALUE not in "".join(answer.text for answer in answers) + logged.out + logged.err + api.measured()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"tenant%2Fdefault%2Fs3" in path.read_bytes() for path in files)
    assert [path for path in files if VALUE.encode() in path.read_bytes()] == []


async def test_a_damaged_secret_is_shown_and_can_be_set_again_or_deleted(api: Api, tmp_path: Path) -> None:
    for name in ("broken", "gone", "whole"):
        await api.admin.put(f"/v1/secrets/{name}", json=body())
    damage(tmp_path, "broken", "gone")
    assert [(secret["name"], secret["damaged"], secret["created"] is None) for secret in await listed(api.admin)] == [
        ("broken", True, True),
        ("gone", True, True),
        ("whole", False, False),
    ]
    assert (await api.admin.put("/v1/secrets/broken", json=body())).status_code == 200
    assert (await api.admin.delete("/v1/secrets/gone")).status_code == 204
    assert [(secret["name"], secret["damaged"]) for secret in await listed(api.admin)] == [
        ("broken", False),
        ("whole", False),
    ]


def damage(home: Path, first: str, second: str) -> None:
    """Exchanges what is stored of these secrets of the tenant ``default``, as somebody with the disk may."""
    ids = [f"=tenant%2Fdefault%2F{name}" for name in (first, second)]
    with contextlib.closing(sqlite3.connect(home / "records.sqlite")) as database, database:
        bodies = [database.execute("SELECT body FROM records WHERE id = ?", (id_,)).fetchone()[0] for id_ in ids]
        for id_, stored in zip(ids, reversed(bodies), strict=True):
            database.execute("UPDATE records SET body = ? WHERE id = ?", (stored, id_))

"""Which URLs of tenants' own S3 stores the api signs: by the job document, the learner's token and the secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.api.data_urls import DataUrls
from services.core.adapters.encrypted import EncryptedSecretStore, MasterKeyFile
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import PermissionDenied, StaleFence, Unavailable
from services.core.domain.job import Job, admitted, released
from services.core.domain.spec import dump_spec, parse_spec
from services.core.domain.status import Status
from services.core.domain.tokens import LearnerIdentity
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, stored_name
from tests.documents import NOW, a_job, at_status
from tests.testbed.memory import MemoryJobStore, MemoryRecordStore

STORE = {"type": "s3", "url": "s3://photos/set", "endpoint": "https://s3.example.org", "secret": "photos"}
SPEC = dump_spec(
    parse_spec(
        {
            "name": "photos",
            "command": "true",
            "data_stores": [
                {"id": "s", **STORE},
                {"id": "m", **STORE, "secret": "missing"},
                {"id": "h", "type": "http", "url": "https://example.org/a"},
            ],
            "inputs": [
                {"store": "s", "mount": "all"},
                {"store": "s", "path": "a.txt", "mount": "one"},
                {"store": "m", "mount": "missing"},
                {"store": "h", "mount": "web"},
            ],
        }
    )
)
KEYS = {"access_key": "AKIA", "secret_key": "canary"}


def a_secret(values: dict[str, str]) -> StoredSecret:
    return StoredSecret(created=1, changed=1, changed_by="", values=values)


class SetClock(SystemClock):
    def __init__(self) -> None:
        self.at = 1_000.0

    def boottime(self) -> float:
        return self.at


class Tenant:
    """A tenant with a running job, its secret and the api's signer."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.secrets, self.clock = MemoryJobStore(), FolderSecretStore(folder), SetClock()
        self.urls = DataUrls(self.jobs, self.secrets, self.clock)
        self.job = admitted(a_job(spec=SPEC), placement={"worker-0": "local"}, dispatcher_term=1, now=NOW)

    async def start(self) -> None:
        self.job = await self.jobs.insert(self.job)
        await self.set_secret(**KEYS)

    async def set_secret(self, **values: str) -> None:
        await self.secrets.put(stored_name("acme", "photos"), encoded(a_secret(values)))

    async def change(self, changed: Callable[[Job], Job]) -> None:
        self.job = await self.jobs.replace(self.job, changed(self.job))

    def learner(self, **changes: Any) -> LearnerIdentity:
        identity = LearnerIdentity(self.job.id, "acme", 1, "worker", 0, "worker-0")
        return replace(identity, **changes)

    async def sign(self, mount: str, key: str = "", after: str = "", **changes: Any) -> str:
        return await self.urls.sign(self.learner(**changes), mount=mount, key=key, after=after)


@pytest.fixture
async def tenant(tmp_path: Path) -> Tenant:
    made = Tenant(tmp_path)
    await made.start()
    return made


async def test_learner_gets_urls_for_the_objects_of_its_inputs_and_for_pages_of_their_list(tenant: Tenant) -> None:
    url = urlsplit(await tenant.sign("all", "set/a b.txt"))
    assert (url.scheme, url.netloc, url.path) == ("https", "s3.example.org", "/photos/set/a%20b.txt")
    assert "canary" not in url.query
    for after in ("", "token/1+"):
        page = parse_qs(urlsplit(await tenant.sign("all", after=after)).query)
        assert (page["prefix"], page["max-keys"]) == (["set/"], ["1000"])
        assert page.get("continuation-token", [""]) == [after]


@pytest.mark.parametrize(
    ("mount", "key"),
    [
        ("all", "other/a"),
        ("all", "set2"),
        ("one", "set/b.txt"),
        ("one", ""),
        ("s", "set/a.txt"),
        ("web", ""),
        ("", ""),
    ],
)
async def test_objects_that_no_input_names_are_refused(tenant: Tenant, mount: str, key: str) -> None:
    with pytest.raises(PermissionDenied, match=r"this object is in no input|the job has no input"):
        await tenant.sign(mount, key)


async def test_learner_of_another_tenant_or_of_no_job_is_refused(tenant: Tenant) -> None:
    for changes in ({"tenant": "evil"}, {"job": "j-none"}):
        with pytest.raises(PermissionDenied, match="the job has no input"):
            await tenant.sign("all", "set/a", **changes)


async def test_token_of_an_attempt_that_is_over_gets_no_url_after_five_seconds(tenant: Tenant) -> None:
    await tenant.sign("all", "set/a")
    with pytest.raises(StaleFence, match=r"attempt 2 of job .* is over"):
        await tenant.sign("all", "set/a", attempt=2)
    await tenant.change(lambda job: released(at_status(job, Status.QUEUED), now=NOW))
    await tenant.sign("all", "set/a")  # an input of many objects does not read the document for each
    tenant.clock.at += 5
    with pytest.raises(StaleFence, match=r"attempt 1 of job .* is over"):
        await tenant.sign("all", "set/a")
    await tenant.change(lambda job: admitted(job, placement={"worker-0": "local"}, dispatcher_term=1, now=NOW))
    with pytest.raises(StaleFence, match=r"attempt 1 of job .* is over"):
        await tenant.sign("all", "set/a")
    await tenant.sign("all", "set/a", attempt=2)


async def test_ended_job_gets_no_url(tenant: Tenant) -> None:
    await tenant.change(lambda job: at_status(job, Status.KILLED))
    with pytest.raises(StaleFence):
        await tenant.sign("all", "set/a")


async def test_changed_secret_counts_at_once(tenant: Tenant) -> None:
    assert "AKIA" in await tenant.sign("all", "set/a")
    await tenant.set_secret(access_key="ANOTHER", secret_key="x", session_token="session")
    url = await tenant.sign("all", "set/a")
    assert "ANOTHER" in url
    assert "X-Amz-Security-Token=session" in url


async def test_secret_that_cannot_be_used_is_named_with_what_to_do(tenant: Tenant) -> None:
    with pytest.raises(PermissionDenied, match=r"no secret 'missing' any more; set it with `weft secret set missing "):
        await tenant.sign("missing", "set/a")
    await tenant.set_secret(access_key="AKIA")
    with pytest.raises(PermissionDenied, match=r"'photos' has no secret_key any more; set it with"):
        await tenant.sign("all", "set/a")
    await tenant.secrets.put(stored_name("acme", "photos"), b"damaged")
    with pytest.raises(PermissionDenied, match=r"'photos' cannot be read; set it with"):
        await tenant.sign("all", "set/a")


async def test_job_waits_while_the_master_key_is_missing(tenant: Tenant, tmp_path: Path) -> None:
    master = MasterKeyFile(tmp_path / "master-key", made_here=True)
    secrets = await EncryptedSecretStore.open(MemoryRecordStore(), master)
    await secrets.put(stored_name("acme", "photos"), encoded(a_secret(KEYS)))
    urls = DataUrls(tenant.jobs, secrets, tenant.clock)
    await urls.sign(tenant.learner(), mount="all", key="set/a", after="")
    master.path.unlink()
    with pytest.raises(Unavailable, match=r"^the platform cannot read tenants' secrets now$"):
        await urls.sign(tenant.learner(), mount="all", key="set/a", after="")


async def test_cache_of_inputs_is_bounded(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.api.data_urls._KEPT", 1)
    reads: list[str] = []
    get = tenant.jobs.get

    async def counted(job_id: str) -> Job | None:
        reads.append(job_id)
        return await get(job_id)

    monkeypatch.setattr(tenant.jobs, "get", counted)
    for mount in ("all", "all", "one", "all"):
        await tenant.sign(mount, "set/a.txt")
    assert len(reads) == 3

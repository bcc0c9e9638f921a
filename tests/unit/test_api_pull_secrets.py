"""Which credentials of images the api gives to a Guardian: by the job document, its claim and the tenant's secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.api.pull_secrets import PullSecrets
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.domain.errors import NotFound, SecretInvalid, SecretsUnavailable, StaleFence, Unavailable
from services.core.domain.job import Job, admitted, released
from services.core.domain.spec import dump_spec, parse_spec
from services.core.domain.status import Status
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, stored_name
from tests.documents import NOW, a_job, at_status
from tests.testbed.memory import MemoryJobStore

SPEC = {"name": "n", "command": "true", "image": "registry.example.org/train:1", "image_pull_secret": "registry"}
LOGIN = {"username": "ada", "password": "canary"}
HOW = "set it with `weft secret set registry username=NAME password=@FILE`, and submit the job again"


class Tenant:
    """A tenant with an admitted job that a Guardian of term 3 has claimed, and its secret."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.secrets = MemoryJobStore(), FolderSecretStore(folder)
        self.given = PullSecrets(self.jobs, self.secrets)

    async def start(self, **fields: object) -> None:
        spec = dump_spec(parse_spec({**SPEC, **fields}))
        job = admitted(a_job(spec=spec), placement={"worker-0": "node"}, dispatcher_term=1, now=NOW)
        self.job = await self.jobs.insert(replace(job, guardian=replace(job.guardian, term=3)))

    async def set_secret(self, tenant: str = "acme", **values: str) -> None:
        secret = StoredSecret(created=1, changed=1, changed_by="", values=values)
        await self.secrets.put(stored_name(tenant, "registry"), encoded(secret))

    async def change(self, changed: Callable[[Job], Job]) -> None:
        self.job = await self.jobs.replace(self.job, changed(self.job))

    async def docker_config(self, attempt: int = 1, term: int = 3) -> str:
        return await self.given.docker_config(self.job.id, attempt=attempt, term=term)


@pytest.fixture
async def tenant(tmp_path: Path) -> Tenant:
    made = Tenant(tmp_path)
    await made.start()
    await made.set_secret(**LOGIN)
    return made


async def test_guardian_gets_the_credentials_that_the_jobs_spec_names_and_no_log_line_has_them(tenant: Tenant) -> None:
    with capture_logs() as lines:
        config = json.loads(await tenant.docker_config())
    assert config["auths"]["registry.example.org"]["password"] == "canary"
    assert [line["event"] for line in lines] == ["pull_credentials.given"]
    assert "canary" not in str(lines)


async def test_secret_of_another_tenant_is_not_read(tenant: Tenant) -> None:
    await tenant.secrets.delete(stored_name("acme", "registry"))
    await tenant.set_secret("other", **LOGIN)
    with pytest.raises(SecretInvalid, match="there is no secret 'registry' any more"):
        await tenant.docker_config()


async def test_attempt_that_is_over_and_superseded_guardian_get_nothing(tenant: Tenant) -> None:
    for attempt, term in ((2, 3), (0, 3), (1, 2), (1, 4)):
        with pytest.raises(StaleFence):
            await tenant.docker_config(attempt, term)
    await tenant.change(lambda job: released(at_status(job, Status.QUEUED), now=NOW))
    with pytest.raises(StaleFence, match="is over"):
        await tenant.docker_config()


async def test_job_that_does_not_exist_or_names_no_secret_gets_nothing(tenant: Tenant) -> None:
    with pytest.raises(NotFound, match="no such job"):
        await tenant.given.docker_config("unknown", attempt=1, term=3)
    await tenant.change(lambda job: replace(job, spec=dump_spec(parse_spec({"name": "n", "command": "true"}))))
    with pytest.raises(NotFound, match="names no secret"):
        await tenant.docker_config()


async def test_deleted_or_unfit_secret_is_named_with_what_to_do(tenant: Tenant) -> None:
    await tenant.set_secret(username="ada")
    with pytest.raises(SecretInvalid) as refused:
        await tenant.docker_config()
    assert refused.value.message == f"image_pull_secret: the secret 'registry' has no password; {HOW}"
    await tenant.secrets.delete(stored_name("acme", "registry"))
    with pytest.raises(SecretInvalid) as refused:
        await tenant.docker_config()
    assert refused.value.message == f"image_pull_secret: there is no secret 'registry' any more; {HOW}"


async def test_damaged_secret_is_no_outage(tenant: Tenant, tmp_path: Path) -> None:
    await tenant.secrets.put(stored_name("acme", "registry"), b"{}")
    with pytest.raises(SecretInvalid, match="the secret 'registry' cannot be read"):
        await tenant.docker_config()


class AwayStore(FolderSecretStore):
    async def get(self, name: str) -> bytes | None:
        raise Unavailable("the store is away: canary")


class AwayJobs(MemoryJobStore):
    async def get(self, job_id: str) -> Job | None:
        raise Unavailable("the store is away")


async def test_store_that_is_away_is_an_outage(tenant: Tenant, tmp_path: Path) -> None:
    for given in (PullSecrets(tenant.jobs, AwayStore(tmp_path)), PullSecrets(AwayJobs(), tenant.secrets)):
        with pytest.raises(SecretsUnavailable) as refused:
            await given.docker_config(tenant.job.id, attempt=1, term=3)
        assert "canary" not in refused.value.message

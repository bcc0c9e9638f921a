"""What the api checks of the secrets that a job's data stores name."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from services.api.access import Principal
from services.api.tenant_secrets import TenantSecrets
from services.core.adapters.encrypted import EncryptedSecretStore, MasterKeyFile
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.sqlite import SqliteRecordStore
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import InvalidSpec, SecretInvalid
from services.core.domain.spec import parse_spec
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, read_needed_secret, stored_name


class CountingStore(FolderSecretStore):
    """Counts what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = 0

    async def get(self, name: str) -> bytes | None:
        self.reads += 1
        return await super().get(name)


async def test_a_spec_with_thousands_of_data_stores_does_not_keep_the_api_busy(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    values = {"access_key": "a", "secret_key": "b"}
    for name in ("s3", "half"):
        secret = StoredSecret(created=1, changed=1, changed_by="", values=values if name == "s3" else {})
        await store.put(stored_name("acme", name), encoded(secret))
    of_tenant = TenantSecrets(store, clock=SystemClock(), most_of_tenant=2)

    def spec(*names: str) -> dict[str, object]:
        stores = [
            {"id": f"d{number}", "type": "s3", "url": "s3://photos", "secret": name}
            for number, name in enumerate(names)
        ]
        return {"name": "photos", "command": "true", "data_stores": stores}

    await of_tenant.check_spec("acme", parse_spec(spec(*["s3"] * 1_000)))
    assert store.reads == 1
    wrong = parse_spec(spec("s3", "half", *(f"missing{number}" for number in range(1_000))))
    with pytest.raises(InvalidSpec) as refused:
        await of_tenant.check_spec("acme", wrong)
    assert store.reads == 3
    assert [error.pointer for error in refused.value.errors][:2] == ["/data_stores/1/secret", "/data_stores/2/secret"]
    assert len(refused.value.errors) == 1_001


async def test_submit_refuses_a_secret_that_cannot_pull_the_image(tmp_path: Path) -> None:
    store = FolderSecretStore(tmp_path)
    of_tenant = TenantSecrets(store, clock=SystemClock(), most_of_tenant=9)
    spec = parse_spec({"name": "n", "command": "true", "image": "r.example/train:1", "image_pull_secret": "registry"})
    how = "; set it: `weft secret set registry username=NAME password=@FILE`"

    async def refusal(**values: str) -> str:
        secret = StoredSecret(created=1, changed=1, changed_by="", values=values)
        await store.put(stored_name("acme", "registry"), encoded(secret))
        with pytest.raises(InvalidSpec) as refused:
            await of_tenant.check_spec("acme", spec)
        return refused.value.message

    await store.put(stored_name("other", "registry"), b"of another tenant")
    with pytest.raises(InvalidSpec) as refused:
        await of_tenant.check_spec("acme", spec)
    assert refused.value.message == f"image_pull_secret: tenant acme has no secret 'registry'{how}"
    assert await refusal(username="canary") == f"image_pull_secret: the secret 'registry' has no password{how}"
    other = await refusal(username="canary", password="canary", server="other.example")
    assert (
        other
        == f"image_pull_secret: the secret 'registry' has another server than the image's registry, r.example{how}"
    )
    await store.put(stored_name("acme", "registry"), b"damaged")
    with pytest.raises(InvalidSpec, match="the secret 'registry' of tenant acme is damaged"):
        await of_tenant.check_spec("acme", spec)
    login = StoredSecret(created=1, changed=1, changed_by="", values={"username": "ada", "password": "canary"})
    await store.put(stored_name("acme", "registry"), encoded(login))
    await of_tenant.check_spec("acme", spec)


async def test_a_secret_whose_record_is_damaged_stops_no_other_and_can_be_set_again(tmp_path: Path) -> None:
    file = tmp_path / "records.sqlite"
    records = await SqliteRecordStore.open(file)
    store = await EncryptedSecretStore.open(records, MasterKeyFile(tmp_path / "master-key", made_here=True))
    of_tenant = TenantSecrets(store, clock=SystemClock(), most_of_tenant=9)
    ada = Principal(key_id="k", user="ada", tenant="acme", scope="user")
    for name in ("photos", "registry"):
        await of_tenant.set(ada, "acme", name, {"password": "p"})
    damaging = apsw.Connection(str(file))
    damaging.execute("UPDATE records SET body = '{' WHERE id LIKE '%photos'")
    damaging.close()
    with pytest.raises(SecretInvalid, match="cannot be read"):
        await read_needed_secret(store, "acme", "photos")
    assert [secret.name for secret in await of_tenant.list("acme")] == ["registry"]
    await of_tenant.set(ada, "acme", "photos", {"password": "new"})
    assert (await read_needed_secret(store, "acme", "photos")).values == {"password": "new"}
    assert [secret.name for secret in await of_tenant.list("acme")] == ["photos", "registry"]
    await records.close()

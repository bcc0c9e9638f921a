"""What the api checks of the secrets that a job's data stores name."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.api.tenant_secrets import TenantSecrets
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import InvalidSpec
from services.core.domain.spec import parse_spec
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, stored_name


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

    await of_tenant.check_data_stores("acme", parse_spec(spec(*["s3"] * 1_000)))
    assert store.reads == 1
    wrong = parse_spec(spec("s3", "half", *(f"missing{number}" for number in range(1_000))))
    with pytest.raises(InvalidSpec) as refused:
        await of_tenant.check_data_stores("acme", wrong)
    assert store.reads == 3
    assert [error.pointer for error in refused.value.errors][:2] == ["/data_stores/1/secret", "/data_stores/2/secret"]
    assert len(refused.value.errors) == 1_001

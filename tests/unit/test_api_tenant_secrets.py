"""Which platforms take data stores that need a tenant's secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.api.tenant_secrets import TenantSecrets
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import InvalidSpec
from services.core.domain.spec import parse_spec
from services.core.use_cases.tenant_secrets import StoredSecret, encoded, stored_name

SPEC = {
    "name": "photos",
    "command": "true",
    "data_stores": [{"id": "d", "type": "s3", "url": "s3://photos", "secret": "s3"}],
    "inputs": [{"store": "d"}],
}


async def test_a_job_that_would_wait_for_a_secret_nobody_can_read_is_refused(tmp_path: Path) -> None:
    store = FolderSecretStore(tmp_path)
    values = {"access_key": "a", "secret_key": "b"}
    await store.put(
        stored_name("acme", "s3"), encoded(StoredSecret(created=1, changed=1, changed_by="", values=values))
    )
    shared, apart = (
        TenantSecrets(store, clock=SystemClock(), most_of_tenant=1, for_data=for_data) for for_data in (True, False)
    )
    await shared.check_data_stores("acme", parse_spec(SPEC))
    with pytest.raises(InvalidSpec, match=r"/data_stores/0/secret: .* as in containers; use a data store of type http"):
        await apart.check_data_stores("acme", parse_spec(SPEC))

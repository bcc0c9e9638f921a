"""What an installation of containers or pods has: keys, certificates and passwords, each made once and at random.

All of it is in one folder, which no service can read. ``container_files`` says which service gets what.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from services.core.adapters.certificates import issue
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.identity import PublicKeys
from services.core.adapters.identity.learner_tokens import OVERLAP_MS
from services.core.adapters.identity.service import own_key_pair
from services.core.domain.ids import RANDOM_BITS, make_id
from services.core.domain.service_access import SERVICES
from services.core.runtime.address import TlsFiles
from services.local.container_files import (
    ADMIN_KEY,
    DASHBOARDS,
    ETCD,
    LEARNER_TOKENS,
    PASSWORDS,
    SCRAPER,
    TLS_FOLDER,
    Made,
)

SECRETS_FOLDER: Final = "secrets"
PUBLIC_KEYS: Final = "public-keys.json"


async def make(installation: Path, *, hosts: Mapping[str, str] | None = None) -> Made:
    """Returns what the installation has; makes what is missing. Raises WeftError and OSError.

    ``hosts``: service -> a host name of its certificate besides the service's name.
    """
    store = FolderSecretStore(installation / SECRETS_FOLDER)

    async def once(name: str, fresh: str) -> str:
        return (await store.get_or_create(name, fresh.encode())).decode().strip()

    passwords = {name: await once(name, secrets.token_hex(24)) for name in PASSWORDS}
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    key_id = make_id("k", now_ms=now_ms, random_bits=secrets.randbits(RANDOM_BITS))
    admin_key = await once(ADMIN_KEY, f"weft_{key_id}_{secrets.token_hex(32)}")
    public_keys, private_keys = PublicKeys(installation / PUBLIC_KEYS), {}
    for owner in (*sorted(SERVICES), LEARNER_TOKENS):
        name = owner if owner == LEARNER_TOKENS else f"identity-{owner}"
        pair = await own_key_pair(store, owner, name=name)
        public_keys.publish(pair, **({"overlap_ms": OVERLAP_MS} if owner == LEARNER_TOKENS else {}))
        private_keys[owner] = await store.get(name) or b""
    names = (*sorted(SERVICES), ETCD, SCRAPER, DASHBOARDS)
    issue(installation / TLS_FOLDER, names, datetime.now(UTC), hosts=hosts)
    return Made(
        passwords=passwords,
        admin_key=admin_key,
        private_keys=private_keys,
        public_keys=(installation / PUBLIC_KEYS).read_bytes(),
        certificates={name: _certificate(TlsFiles.of(installation / TLS_FOLDER, name)) for name in names},
    )


def _certificate(files: TlsFiles) -> dict[str, bytes]:
    paths = {"authority.pem": files.authority, "certificate.pem": files.certificate, "key.pem": files.key}
    return {name: path.read_bytes() for name, path in paths.items()}

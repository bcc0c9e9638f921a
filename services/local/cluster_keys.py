"""Makes the Secrets of an installation on Kubernetes (helm/weft): keys, certificates and passwords.

    python -m services.local.cluster_keys --prefix weft --namespace weft --write api --write mongodb

The Secret ``<prefix>-installation`` keeps all that was made, and no pod mounts it. From it each service and each store
gets a Secret with what it needs (``secrets_of``). Repeated before each upgrade: a value that was removed is made anew,
a certificate is renewed in the second half of its time, nothing else changes (docs/adr/0024-helm-chart.md).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.kubernetes.api import Api, Document
from services.core.domain.errors import Duplicate, NotFound, WeftError
from services.core.domain.service_access import SERVICES
from services.local.container_files import ADMIN_KEY, ETCD, LEARNER_TOKENS, SCRAPER, TLS_FOLDER, Made
from services.local.installation import PUBLIC_KEYS, SECRETS_FOLDER, make

Files = dict[str, bytes]
_MASTER_KEY: Final = "master-key"
_SECRET_PREFIX: Final = "secret."  # noqa: S105 - the beginning of names
_TLS_PREFIX: Final = "tls."
_STORES: Final = {
    "mongodb": {"password": "mongodb", "admin-password": "mongodb-admin", "replica-set-key": "mongodb-key"},
    "rabbitmq": {"password": "rabbitmq", "erlang-cookie": "erlang-cookie"},
    "s3": {"access-key": "s3-access", "secret-key": "s3-secret"},
}
"""Store -> key of its Secret -> the password of this name."""


def secrets_of(made: Made, master_key: str) -> dict[str, Files]:
    """Returns the content of all Secrets, by the last part of their names."""
    content: dict[str, Files] = {}
    for service in sorted(SERVICES):
        files = {
            "identity": made.private_keys[service],
            "public-keys.json": made.public_keys,
            ADMIN_KEY: made.admin_key.encode(),
            **_certificate(made, service),
        }
        if service == "guardian":
            files[LEARNER_TOKENS] = made.private_keys[LEARNER_TOKENS]
        if service == "api":
            files[_MASTER_KEY] = master_key.encode()
        content[service] = files
    for store, keys in _STORES.items():
        content[store] = {key: made.passwords[name].encode() for key, name in keys.items()}
    content[ETCD] = _certificate(made, ETCD)
    content[SCRAPER] = {ADMIN_KEY: made.admin_key.encode(), **_certificate(made, SCRAPER)}
    content[ADMIN_KEY] = {"key": made.admin_key.encode()}
    return content


def _certificate(made: Made, name: str) -> Files:
    names = {"ca.crt": "authority.pem", "tls.crt": "certificate.pem", "tls.key": "key.pem"}
    return {key: made.certificates[name][file] for key, file in names.items()}


def unpack(data: Mapping[str, bytes], folder: Path) -> None:
    """Writes the content of the Secret ``<prefix>-installation`` as the folder of ``installation.make``."""
    for part in (SECRETS_FOLDER, TLS_FOLDER):
        (folder / part).mkdir(mode=0o700)
    for key, content in data.items():
        path = _path(folder, key)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)


def _path(folder: Path, key: str) -> Path:
    if key.startswith(_SECRET_PREFIX):
        return folder / SECRETS_FOLDER / f"={key.removeprefix(_SECRET_PREFIX)}"
    if key.startswith(_TLS_PREFIX):
        return folder / TLS_FOLDER / key.removeprefix(_TLS_PREFIX)
    if key != PUBLIC_KEYS:
        raise WeftError(f"the Secret of the installation has a key {key!r}, which this version does not know")
    return folder / key


def pack(folder: Path) -> Files:
    """The inverse of ``unpack``."""
    packed = {PUBLIC_KEYS: (folder / PUBLIC_KEYS).read_bytes()}
    for path in (folder / SECRETS_FOLDER).glob("=*"):
        packed[f"{_SECRET_PREFIX}{path.name.removeprefix('=')}"] = path.read_bytes()
    for path in (folder / TLS_FOLDER).iterdir():
        packed[f"{_TLS_PREFIX}{path.name}"] = path.read_bytes()
    return packed


async def make_all(before: Mapping[str, bytes], hosts: Mapping[str, str]) -> tuple[Files, dict[str, Files]]:
    """Makes what ``before`` does not have. Returns the installation's Secret, and the others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(before, folder)
        made = await make(folder, hosts=hosts)
        fresh = f"weftmk1_{secrets.token_hex(32)}\n".encode()
        master_key = await FolderSecretStore(folder / SECRETS_FOLDER).get_or_create(_MASTER_KEY, fresh)
        return pack(folder), secrets_of(made, master_key.decode())


class ClusterSecrets:
    """The Secrets of one installation, whose names begin with ``prefix``."""

    def __init__(self, api: Api, namespace: str, prefix: str, instance: str) -> None:
        self._api, self._prefix, self._instance = api, prefix, instance
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self, name: str) -> Files:
        """Empty if there is none."""
        try:
            document = await self._api.get(f"{self._collection}/{self._prefix}-{name}")
        except NotFound:
            return {}
        return {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}

    async def write(self, name: str, files: Files) -> None:
        """Creates it, or changes these keys of it."""
        document: Document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{self._prefix}-{name}", "labels": self._labels()},
            "type": "Opaque",
            "data": {key: base64.b64encode(content).decode() for key, content in sorted(files.items())},
        }
        try:
            await self._api.create(self._collection, document)
        except Duplicate:
            await self._api.patch(f"{self._collection}/{self._prefix}-{name}", document)

    def _labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": self._instance,
            "app.kubernetes.io/managed-by": "weft-keys",
        }


async def run(secrets_in_cluster: ClusterSecrets, hosts: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Writes the Secrets ``names`` that are missing or differ. Returns their names."""
    before = await secrets_in_cluster.read("installation")
    installation, others = await make_all(before, hosts)
    written: list[str] = []
    # First that from which all others can be made again.
    for name, files in {"installation": installation, **{name: others[name] for name in names}}.items():
        present = before if name == "installation" else await secrets_in_cluster.read(name)
        if {key: present.get(key) for key in files} != files:
            await secrets_in_cluster.write(name, files)
            written.append(name)
    return written


async def _main(arguments: argparse.Namespace) -> list[str]:
    api = Api(None)
    prefix, domain = arguments.prefix, f"{arguments.namespace}.svc.{arguments.domain}"
    hosts = {name: f"{prefix}-{name}.{domain}" for name in (*sorted(SERVICES), ETCD)}
    try:
        return await run(ClusterSecrets(api, arguments.namespace, prefix, arguments.instance), hosts, arguments.write)
    finally:
        await api.close()


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m services.local.cluster_keys", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--prefix", required=True, help="the beginning of the names of Secrets and Services")
    parser.add_argument("--instance", default="weft", help="the label app.kubernetes.io/instance of the Secrets")
    parser.add_argument("--domain", default="cluster.local", help="of the cluster's names")
    parser.add_argument("--write", action="append", default=[], metavar="NAME", help="a Secret to write; repeatable")
    arguments = parser.parse_args()
    try:
        written = asyncio.run(_main(arguments))
    except (WeftError, OSError) as error:
        sys.stderr.write(f"keys: {error}\n")
        return 1
    sys.stdout.write(f"written: {', '.join(written) or 'nothing, all is there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

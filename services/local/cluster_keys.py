"""Makes the Secrets of an installation on Kubernetes (helm/weft): keys, certificates and passwords.

    python -m services.local.cluster_keys --prefix weft --namespace weft --write api --write mongodb

The Secret ``<prefix>-installation`` keeps all that was made, and no pod mounts it. From it each service and each store
gets a Secret with what it needs (``secrets_of``). Repeated before each upgrade: a value that was removed is made anew,
a certificate is renewed in the second half of its time, nothing else changes (docs/adr/0024-helm-chart.md).

A value that opens data (``_OPENS_DATA``) is made for a new installation only. If it is missing while other parts of the
installation exist, the command refuses and changes nothing: a new value would overwrite the last copy, or hide that
there is none. Each write names the state of the Secret that it changes, so of two runs at the same time one begins
anew with what the other has made.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.kubernetes.api import Api, Document
from services.core.domain.errors import Conflict, Duplicate, NotFound, StaleRevision, WeftError
from services.core.domain.service_access import SERVICES
from services.local.chart_hooks import fail
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
_OPENS_DATA: Final = {
    _MASTER_KEY: ("api", _MASTER_KEY),
    "mongodb": ("mongodb", "password"),
    "mongodb-admin": ("mongodb", "admin-password"),
}
"""What opens stored data, and cannot be made again -> the Secret that has a copy, and its key there."""
_TRIES: Final = 5
"""A run begins anew so often, as long as other runs change the same Secrets meanwhile."""


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


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """A Secret as it was read."""

    files: Files
    version: str = ""
    """Its resource version; empty: there is none of this name."""


class ClusterSecrets:
    """The Secrets of one installation, whose names begin with ``prefix``."""

    def __init__(self, api: Api, namespace: str, prefix: str, instance: str) -> None:
        self._api, self.prefix, self._instance = api, prefix, instance
        self._namespace = f"/api/v1/namespaces/{namespace}"

    async def read(self, name: str) -> ClusterSecret:
        """Returns the Secret; an empty one if it does not exist."""
        try:
            document = await self._api.get(f"{self._namespace}/secrets/{self.prefix}-{name}")
        except NotFound:
            return ClusterSecret({})
        files = {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
        return ClusterSecret(files, document["metadata"]["resourceVersion"])

    async def write(self, name: str, files: Files, before: ClusterSecret) -> None:
        """Creates the Secret, or changes these keys of it. Raises Conflict if it is not as ``before`` any more."""
        metadata: Document = {"name": f"{self.prefix}-{name}", "labels": self._labels()}
        document: Document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "Opaque",
            "data": {key: base64.b64encode(content).decode() for key, content in sorted(files.items())},
        }
        if not before.version:
            await self._api.create(f"{self._namespace}/secrets", document)
            return
        metadata["resourceVersion"] = before.version
        try:
            await self._api.patch(f"{self._namespace}/secrets/{self.prefix}-{name}", document)
        except NotFound as error:
            raise StaleRevision(f"the Secret {self.prefix}-{name} was removed meanwhile") from error

    async def volumes(self, names: Sequence[str]) -> list[str]:
        """Returns those of the PersistentVolumeClaims that exist."""
        present: list[str] = []
        for name in names:
            with suppress(NotFound):
                await self._api.get(f"{self._namespace}/persistentvolumeclaims/{name}")
                present.append(name)
        return present

    def _labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": self._instance,
            "app.kubernetes.io/managed-by": "weft-keys",
        }


def refuse_loss(
    prefix: str, installation: Mapping[str, bytes], others: Mapping[str, Files], volumes: Sequence[str]
) -> None:
    """Raises Conflict if a value that opens data would be made again, or its last copy overwritten.

    ``others``: Secrets that exist, without the installation's. ``volumes``: PersistentVolumeClaims that exist.
    """
    kept = f"{prefix}-installation"
    if not installation:
        remains = [f"Secret {prefix}-{name}" for name in others]
        if remains := remains + [f"PersistentVolumeClaim {name}" for name in volumes]:
            raise Conflict(
                f"the Secret {kept} is gone, and these parts of the installation exist: {', '.join(remains)}. Nothing "
                f"was changed: new keys would not open its data. Put {kept} back from your copy (kubectl apply). "
                "Without a copy, see the section on keys in the operator guide"
            )
        return
    for name, (secret, key) in _OPENS_DATA.items():
        value, copy = installation.get(f"{_SECRET_PREFIX}{name}"), others.get(secret, {}).get(key)
        if value is None:
            hint = f" The Secret {prefix}-{secret} has it under {key}." if copy else ""
            raise Conflict(
                f"the Secret {kept} has no {_SECRET_PREFIX}{name}, which opens stored data. Nothing was changed: a new "
                f"one would not open it. Put it back from your copy of {kept}.{hint}"
            )
        if copy is not None and not set(_lines(copy)) <= set(_lines(value)):
            raise Conflict(
                f"the Secret {prefix}-{secret} has another {key} than {kept} has under {_SECRET_PREFIX}{name}. Nothing "
                "was changed: it may be the only copy of what opens stored data. Make both the same: put the value "
                f"that the platform has run with into {kept}; of master keys, all lines"
            )


def _lines(value: bytes) -> list[bytes]:
    """A master key file has one key in each line, and comments."""
    return [line.strip() for line in value.splitlines() if line.strip() and not line.startswith(b"#")]


async def run(
    secrets_in_cluster: ClusterSecrets, hosts: Mapping[str, str], names: Sequence[str], *, volumes: Sequence[str] = ()
) -> list[str]:
    """Writes the Secrets ``names`` that are missing or differ. Returns their names.

    ``volumes``: names of PersistentVolumeClaims, of which an installation has some. Raises Conflict as ``refuse_loss``
    does, and if other runs change the same Secrets again and again.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return await _run_once(secrets_in_cluster, hosts, names, volumes)
        except (Duplicate, StaleRevision):
            if tries == _TRIES:
                raise


async def _run_once(
    secrets_in_cluster: ClusterSecrets, hosts: Mapping[str, str], names: Sequence[str], volumes: Sequence[str]
) -> list[str]:
    # The installation's last: it is written first, so of a run beside this one no other Secret is seen without it.
    present = {name: await secrets_in_cluster.read(name) for name in (*names, "installation")}
    before = present["installation"]
    others = {name: present[name].files for name in names if present[name].version}
    remains = [] if before.files else await secrets_in_cluster.volumes(volumes)
    refuse_loss(secrets_in_cluster.prefix, before.files, others, remains)
    installation, made = await make_all(before.files, hosts)
    written: list[str] = []
    # First that from which all others can be made again.
    for name, files in {"installation": installation, **{name: made[name] for name in names}}.items():
        if {key: present[name].files.get(key) for key in files} != files:
            await secrets_in_cluster.write(name, files, present[name])
            written.append(name)
    return written


async def _main(arguments: argparse.Namespace) -> list[str]:
    api = Api(None)
    prefix, domain = arguments.prefix, f"{arguments.namespace}.svc.{arguments.domain}"
    hosts = {name: f"{prefix}-{name}.{domain}" for name in (*sorted(SERVICES), ETCD)}
    cluster = ClusterSecrets(api, arguments.namespace, prefix, arguments.instance)

    try:
        return await run(cluster, hosts, arguments.write, volumes=arguments.volume)
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
    parser.add_argument("--volume", action="append", default=[], metavar="NAME", help="a claim with data; repeatable")
    arguments = parser.parse_args()
    try:
        written = asyncio.run(_main(arguments))
    except (WeftError, OSError) as error:
        return fail("keys", error)
    sys.stdout.write(f"written: {', '.join(written) or 'nothing, all is there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Lays out the private files of a pod of the chart (helm/weft) before its container starts, from mounted Secrets.

    python -m services.local.pod_home api            the home of a service, in WEFT_HOME
    python -m services.local.pod_home mongodb        the key file of the MongoDB server
    python -m services.local.pod_home mongodb-users  makes the replica set and the users; runs beside the server

A Secret's volume belongs to root, and its files are readable by a group. Services and stores need files that only their
own user can read, and settings with passwords in one file (docs/adr/0024-helm-chart.md).

    /etc/weft/keys/     the Secret of this service or store (services.local.cluster_keys)
    /etc/weft/stores/   mongodb-uri or mongodb-password, rabbitmq-uri or rabbitmq-password, s3-access-key, s3-secret-key
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.core.adapters.mongo.installing import Installation, install
from services.core.domain.errors import WeftError
from services.core.domain.service_access import SERVICES
from services.core.ports.secret_store import escaped
from services.core.runtime.durable_files import write_text
from services.core.runtime.home import Home, default_home
from services.local.container_files import (
    ADMIN_KEY,
    LEARNER_TOKENS,
    USES_BROKER,
    USES_JOB_STORE,
    USES_OBJECT_STORE,
    addresses,
    mongodb_uri,
    rabbitmq_settings,
    rabbitmq_uri,
    s3_credentials,
    s3_variables,
)
from services.local.layout import prepare

MOUNTED: Final = Path("/etc/weft")
PRIVATE: Final = Path("/run/weft")
"""A store's emptyDir."""
_MONGODB_PORT: Final = 27_017
_MONGODB_WITHIN_S: Final = 240.0
_STORES: Final = ("mongodb", "mongodb-users", "rabbitmq", "s3")


def lay_out_service(service: str, mounted: Path, home: Path, environ: Mapping[str, str]) -> None:
    """Fills the home of a service. Raises WeftError for a Secret without a key that the service needs.

    ``environ``: WEFT_POD_HOSTS, the host name of a service with ``{}`` for its name; WEFT_POD_ETCD, host:port of an
    etcd outside; WEFT_POD_METRICS_FOLDER, the volume of the metric store.
    """
    home.mkdir(mode=0o700, exist_ok=True)
    if (volume := environ.get("WEFT_POD_METRICS_FOLDER")) and not (home / "metrics").is_symlink():
        Path(volume).mkdir(mode=0o700, exist_ok=True)
        (home / "metrics").symlink_to(volume)
    prepare(Home(home))
    keys, stores = mounted / "keys", mounted / "stores"
    secrets = {f"identity-{service}": "identity", ADMIN_KEY: ADMIN_KEY}
    if service == "guardian":
        secrets[LEARNER_TOKENS] = LEARNER_TOKENS
    for name, key in secrets.items():
        _write(home / "secrets" / escaped(name), _read(keys / key))
    _write(home / "secrets" / "public-keys.json", _read(keys / "public-keys.json"))
    hosts = environ["WEFT_POD_HOSTS"]
    known = addresses(service, hosts=hosts, etcd=environ.get("WEFT_POD_ETCD", ""))
    write_text(Home(home).addresses_file, json.dumps(known))
    write_text(home / "settings.env", _settings(service, stores, hosts))
    if service in USES_OBJECT_STORE:
        access, secret = (_text(stores / f"s3-{kind}-key") for kind in ("access", "secret"))
        write_text(home / "s3-credentials", s3_credentials(access, secret))


def _settings(service: str, stores: Path, hosts: str) -> str:
    lines: list[str] = []
    if service in USES_JOB_STORE:
        lines.append(f"WEFT_JOB_STORE={job_store_uri(stores, hosts)}\n")
    if service in USES_BROKER:
        uri = stores / "rabbitmq-uri"
        inside = hosts.format("rabbitmq")
        value = _text(uri) if uri.exists() else rabbitmq_uri(inside, _text(stores / "rabbitmq-password"))
        lines.append(f"WEFT_BROKER_URL={value}\n")
    return "".join(lines)


def job_store_uri(stores: Path, hosts: str) -> str:
    """The URI of MongoDB, outside or in the release. ``stores``: the folder of mounted Secrets."""
    uri = stores / "mongodb-uri"
    return _text(uri) if uri.exists() else mongodb_uri(hosts.format("mongodb"), _text(stores / "mongodb-password"))


def lay_out_store(store: str, mounted: Path, private: Path) -> None:
    """Writes the files of a store that the chart has itself. ``private``: an emptyDir. Raises WeftError."""
    keys = mounted / "keys"
    if store == "mongodb":
        _write(private / "weft.key", _read(keys / "replica-set-key"))
    elif store == "rabbitmq":
        _write(private / ".erlang.cookie", _read(keys / "erlang-cookie"))
        write_text(private / "weft.conf", rabbitmq_settings(_text(keys / "password")))
    else:
        access, secret = _text(keys / "access-key"), _text(keys / "secret-key")
        write_text(private / "variables.sh", s3_variables(access, secret))


def make_mongodb_users(mounted: Path, member: str) -> None:
    """Runs in the server's pod. Raises Unavailable if the server does not get ready."""
    keys = mounted / "keys"
    wanted = Installation(
        replica_set="weft",
        member=f"{member}:{_MONGODB_PORT}",
        user="weft",
        password=_text(keys / "password"),
        admin_password=_text(keys / "admin-password"),
    )
    install(wanted, port=_MONGODB_PORT, within_s=_MONGODB_WITHIN_S)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise WeftError(f"the Secret that is mounted at {path.parent} has no key {path.name}") from None


def _text(path: Path) -> str:
    """Without the line end that editors add."""
    return _read(path).decode().strip()


def _write(path: Path, content: bytes) -> None:
    """Readable by its owner only."""
    unfinished = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    unfinished.rename(path)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m services.local.pod_home", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", choices=(*sorted(SERVICES), *_STORES))
    parser.add_argument("--folder", type=Path, action="append", default=[], help="make this folder too; repeatable")
    arguments = parser.parse_args()
    name: str = arguments.name
    os.umask(0o077)
    try:
        for folder in arguments.folder:
            folder.mkdir(parents=True, exist_ok=True)
        if name in SERVICES:
            lay_out_service(name, MOUNTED, default_home(), os.environ)
        elif name == "mongodb-users":
            make_mongodb_users(MOUNTED, os.environ["WEFT_POD_HOSTS"].format("mongodb"))
        else:
            lay_out_store(name, MOUNTED, PRIVATE)
    except (WeftError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The files that each container of an installation gets (docker-compose.yml): pure, from what ``containers`` has made.

A service gets its own private key, its own certificate, and the passwords of the stores that it uses. A path is below
the volume of the service or store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.core.domain.service_access import SERVICES
from services.core.ports.secret_store import escaped

Files = dict[str, bytes]
ETCD: Final = "etcd"
SCRAPER: Final = "prometheus"
DASHBOARDS: Final = "grafana"
GRAFANA_DASHBOARD: Final = Path(__file__).with_name("grafana.json")
LEARNER_TOKENS: Final = "learner-tokens"
ADMIN_KEY: Final = "admin-key"
PASSWORDS: Final = (
    "mongodb",
    "mongodb-admin",
    "mongodb-key",
    "rabbitmq",
    "erlang-cookie",
    "s3-access",
    "s3-secret",
    "grafana",
)
_REST, _API_GRPC, _INNER, _OPERATIONS, _ETCD_PORT = 8080, 8081, 7000, 7001, 2379
USES_JOB_STORE: Final = frozenset({"api", "lcm", "guardian", "metrics"})
USES_BROKER: Final = frozenset({"api", "lcm", "worker"})
"""The lcm for `weft conformance`, which runs in its container."""
USES_OBJECT_STORE: Final = frozenset({"api", "lcm", "metrics"})
TLS_FOLDER: Final = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What an installation has, each value made once and at random."""

    passwords: Mapping[str, str] = field(repr=False)
    """By the names in ``PASSWORDS``."""
    admin_key: str = field(repr=False)
    private_keys: Mapping[str, bytes] = field(repr=False)
    """Service, or ``LEARNER_TOKENS``, -> its private key (docs/adr/0015-identities.md)."""
    public_keys: bytes
    """The file of all public keys."""
    certificates: Mapping[str, Mapping[str, bytes]] = field(repr=False)
    """Service or store, ``SCRAPER`` or ``DASHBOARDS`` -> PEM files: authority.pem, certificate.pem, key.pem."""


@dataclass(frozen=True, slots=True)
class Volume:
    files: Files
    folders: tuple[str, ...] = ()
    """Folders for data, which a container may fill."""
    home: bool = False
    """It is the WEFT_HOME of a service."""


def volumes(made: Made) -> dict[str, Volume]:
    """Returns the content of each volume, by the name of its service or store."""
    content = {service: Volume(_home(service, made), home=True) for service in sorted(SERVICES)}
    passwords = made.passwords
    users = {name: passwords[name] for name in ("mongodb", "mongodb-admin")}
    content["mongodb"] = Volume(
        {"weft.key": passwords["mongodb-key"].encode(), "users.json": json.dumps(users).encode()}, ("data",)
    )
    content["rabbitmq"] = Volume(
        {
            "weft.conf": rabbitmq_settings(passwords["rabbitmq"]).encode(),
            ".erlang.cookie": passwords["erlang-cookie"].encode(),
        }
    )
    content["s3"] = Volume(
        {"variables.sh": s3_variables(passwords["s3-access"], passwords["s3-secret"]).encode()},
        ("objects", "objects/weft"),
    )
    content[ETCD] = Volume(_tls(made, ETCD), ("data",))
    content[SCRAPER] = Volume(
        {
            **_tls(made, SCRAPER),
            ADMIN_KEY: made.admin_key.encode(),
            "prometheus.yml": _prometheus().encode(),
            "web.yml": _prometheus_server().encode(),
        },
        ("data",),
    )
    content[DASHBOARDS] = Volume(
        {
            "admin-password": passwords["grafana"].encode(),
            "provisioning/datasources/weft.yaml": _grafana_source(made.certificates[DASHBOARDS]).encode(),
            "provisioning/dashboards/weft.yaml": _grafana_dashboards().encode(),
            "dashboards/weft.json": GRAFANA_DASHBOARD.read_bytes(),
        },
        ("data",),
    )
    return content


def _home(service: str, made: Made) -> Files:
    secrets = {f"identity-{service}": made.private_keys[service], ADMIN_KEY: made.admin_key.encode()}
    if service == "guardian":
        secrets[LEARNER_TOKENS] = made.private_keys[LEARNER_TOKENS]
    files = {f"secrets/{escaped(name)}": value for name, value in secrets.items()}
    files |= _tls(made, service)
    files["secrets/public-keys.json"] = made.public_keys
    files["run/addresses.json"] = json.dumps(addresses(service)).encode()
    files["settings.env"] = settings(service, made.passwords).encode()
    if service in USES_OBJECT_STORE:
        access, secret = made.passwords["s3-access"], made.passwords["s3-secret"]
        files["s3-credentials"] = s3_credentials(access, secret).encode()
    return files


def _tls(made: Made, name: str) -> Files:
    return {f"{TLS_FOLDER}/{file}": content for file, content in made.certificates[name].items()}


def addresses(service: str, *, hosts: str = "{}", etcd: str = "") -> dict[str, str]:
    """The addresses of all, as one service sees them: its own are on all interfaces of its container.

    ``hosts``: the host name of a service, with ``{}`` for the service. ``etcd``: host:port, if it has another one.
    """

    def host(name: str) -> str:
        return "0.0.0.0" if name == service else hosts.format(name)  # noqa: S104 - of a container

    known = {"api": f"{host('api')}:{_REST}", "api-grpc": f"{host('api')}:{_API_GRPC}"}
    known["api-inner"] = f"tls:{host('api')}:{_INNER}"
    known[ETCD] = f"tls:{etcd or f'{hosts.format(ETCD)}:{_ETCD_PORT}'}"
    for name in sorted(SERVICES):
        known[f"{name}-ops"] = f"tls:{host(name)}:{_OPERATIONS}"
        if name not in {"api", "worker"}:
            known[name] = f"tls:{host(name)}:{_INNER}"
    return known


def settings(service: str, passwords: Mapping[str, str]) -> str:
    """The settings with passwords, as the file that ``WEFT_SETTINGS_FILE`` names."""
    lines: list[str] = []
    if service in USES_JOB_STORE:
        lines.append(f"WEFT_JOB_STORE={mongodb_uri('mongodb', passwords['mongodb'])}")
    if service in USES_BROKER:
        lines.append(f"WEFT_BROKER_URL={rabbitmq_uri('rabbitmq', passwords['rabbitmq'])}")
    return "".join(f"{line}\n" for line in lines)


def mongodb_uri(host: str, password: str) -> str:
    """Of the server that the installation has itself."""
    return f"mongodb://weft:{password}@{host}:27017/weft?replicaSet=weft"


def rabbitmq_uri(host: str, password: str) -> str:
    """Of the server that the installation has itself."""
    return f"amqp://weft:{password}@{host}:5672/weft"


def s3_credentials(access: str, secret: str) -> str:
    """The file that ``WEFT_S3_CREDENTIALS_FILE`` names."""
    return f"[default]\naws_access_key_id={access}\naws_secret_access_key={secret}\n"


def rabbitmq_settings(password: str) -> str:
    """RabbitMQ's file of settings."""
    permissions = "".join(f"default_permissions.{name} = .*\n" for name in ("configure", "read", "write"))
    user = f"default_vhost = weft\ndefault_user = weft\ndefault_pass = {password}\n"
    return f"{user}{permissions}listeners.tcp.default = 5672\n"


def s3_variables(access: str, secret: str) -> str:
    """The S3 server's variables, to be read by a shell."""
    return f"export ROOT_ACCESS_KEY={access} ROOT_SECRET_KEY={secret}\n"


def _prometheus() -> str:
    """JSON, which is YAML."""
    tls = {"ca_file": "authority.pem", "cert_file": "certificate.pem", "key_file": "key.pem"}
    job = {
        "job_name": "weft",
        "scheme": "https",
        "tls_config": {name: f"/prometheus/{TLS_FOLDER}/{file}" for name, file in tls.items()},
        "authorization": {"credentials_file": f"/prometheus/{ADMIN_KEY}"},
        "static_configs": [{"targets": [f"{name}:{_OPERATIONS}" for name in sorted(SERVICES)]}],
    }
    return json.dumps({"global": {"scrape_interval": "15s"}, "scrape_configs": [job]}, indent=2)


def _prometheus_server() -> str:
    """It shares a network with the node agent, so with learners: it demands a certificate of the installation."""
    files = {"cert_file": "certificate.pem", "key_file": "key.pem", "client_ca_file": "authority.pem"}
    server = {name: f"/prometheus/{TLS_FOLDER}/{file}" for name, file in files.items()}
    return json.dumps({"tls_server_config": {**server, "client_auth_type": "RequireAndVerifyClientCert"}}, indent=2)


def _grafana_source(certificate: Mapping[str, bytes]) -> str:
    secure = {"tlsCACert": "authority.pem", "tlsClientCert": "certificate.pem", "tlsClientKey": "key.pem"}
    source = {
        "name": "Weft",
        "type": "prometheus",
        "url": "https://prometheus:9090",
        "isDefault": True,
        "jsonData": {"tlsAuth": True, "tlsAuthWithCACert": True, "serverName": "prometheus"},
        "secureJsonData": {name: certificate[file].decode() for name, file in secure.items()},
    }
    return json.dumps({"apiVersion": 1, "datasources": [source]}, indent=2)


def _grafana_dashboards() -> str:
    provider = {"name": "Weft", "type": "file", "options": {"path": "/var/lib/grafana/dashboards"}}
    return json.dumps({"apiVersion": 1, "providers": [provider]}, indent=2)

"""The files that an installation of containers gets, and docker-compose.yml itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.core.adapters.identity import PublicKeys
from services.core.domain.errors import WeftError
from services.core.domain.service_access import SERVICES
from services.core.runtime.home import Home
from services.core.runtime.settings import SETTINGS_FILE, Settings
from services.local.containers import setup

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OVERRIDE: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "compose" / "override.yml").read_text())
VOLUMES = (*SERVICES, "mongodb", "etcd", "rabbitmq", "s3", "prometheus", "grafana")


def _set_up(folder: Path, *, uid: int | None = None) -> Path:
    """Returns the folder of the volumes. Repeated: the same installation starts again."""
    (folder / "installation").mkdir(parents=True, exist_ok=True)
    for name in VOLUMES:
        (folder / "volumes" / name).mkdir(parents=True, exist_ok=True)
    setup(folder / "installation", folder / "volumes", uid=os.geteuid() if uid is None else uid)
    return folder / "volumes"


def _content(volumes: Path) -> dict[str, bytes]:
    return {str(path.relative_to(volumes)): path.read_bytes() for path in volumes.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a new installation; for tests that change nothing."""
    return _set_up(tmp_path_factory.mktemp("containers"))


@pytest.mark.slow
def test_a_second_start_changes_no_file(tmp_path: Path) -> None:
    first = _content(_set_up(tmp_path))
    assert _content(_set_up(tmp_path)) == first


@pytest.mark.slow
def test_two_installations_share_no_key_and_no_password(tmp_path: Path) -> None:
    first, second = (_content(_set_up(tmp_path / name)) for name in ("a", "b"))
    assert first.keys() == second.keys()
    without_secrets = {
        "run/addresses.json",
        "VERSION",
        "prometheus.yml",
        "web.yml",
        "dashboards/weft.yaml",
        "weft.json",
        "worker/settings.env",
    }
    equal = [name for name in first if first[name] == second[name]]
    # Services that use no store with a password have an empty file of settings.
    assert [name for name in equal if first[name] and not name.endswith(tuple(without_secrets))] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
def test_a_restore_may_write_everywhere_in_the_new_volume_of_the_api(tmp_path: Path) -> None:
    """The folder of the objects had one of root's, and `weft restore` ended with Permission denied."""
    volumes = _set_up(tmp_path, uid=10_001)
    assert {path.stat().st_uid for path in (volumes / "api").rglob("*")} == {10_001}


def test_a_service_gets_its_own_private_keys_only(volumes: Path) -> None:
    for service in SERVICES:
        names = {path.name for path in (volumes / service / "secrets").iterdir() if path.is_file()}
        own = {f"=identity-{service}"} | ({"=learner-tokens"} if service == "guardian" else set())
        assert names == own | {"=admin-key", "public-keys.json"}
        assert {path.name for path in (volumes / service / "tls").iterdir()} == {
            "authority.pem",
            "certificate.pem",
            "key.pem",
        }


def test_a_service_gets_the_passwords_of_the_stores_that_it_uses(volumes: Path) -> None:
    settings = {service: (volumes / service / "settings.env").read_text() for service in SERVICES}
    assert {service for service in SERVICES if "mongodb://" in settings[service]} == {
        "api",
        "lcm",
        "guardian",
        "metrics",
    }
    assert {service for service in SERVICES if "amqp://" in settings[service]} == {"api", "lcm", "worker"}
    with_s3 = {service for service in SERVICES if (volumes / service / "s3-credentials").exists()}
    assert with_s3 == {"api", "lcm", "metrics"}


def test_files_can_be_read_by_their_owner_only(volumes: Path) -> None:
    open_files = [path for path in volumes.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert open_files == []


@pytest.mark.slow
def test_a_removed_private_key_is_made_anew_and_known_to_every_service(tmp_path: Path) -> None:
    volumes = _set_up(tmp_path)
    key = volumes / "lcm" / "secrets" / "=identity-lcm"
    before = key.read_bytes()
    (tmp_path / "installation" / "secrets" / "=identity-lcm").unlink()
    _set_up(tmp_path)
    assert key.read_bytes() != before
    published = {(volumes / service / "secrets" / "public-keys.json").read_bytes() for service in SERVICES}
    assert len(published) == 1
    keys = PublicKeys(volumes / "api" / "secrets" / "public-keys.json")
    keys.refresh()
    of_lcm = [entry.until for entry in keys._keys.values() if entry.owner == "lcm"]
    assert len(of_lcm) == 2, "the old key stays valid for a while"


def test_a_service_cannot_lead_its_files_into_another_volume(tmp_path: Path) -> None:
    volumes = _set_up(tmp_path)
    (volumes / "api" / "tls").rename(volumes / "api" / "moved")
    (volumes / "api" / "tls").symlink_to(volumes / "lcm" / "tls")
    before = _content(volumes / "lcm")
    with pytest.raises(WeftError, match="is a link"):
        _set_up(tmp_path)
    assert _content(volumes / "lcm") == before


def test_each_service_listens_in_its_container_and_calls_others_by_their_names(volumes: Path) -> None:
    for service in SERVICES:
        addresses = Home(volumes / service).addresses()
        own = {name for name, address in addresses.items() if ":0.0.0.0:" in f":{address}"}
        assert {name.split("-")[0] for name in own} == {service}
        inner = {name: address for name, address in addresses.items() if name not in {"api", "api-grpc"}}
        assert all(address.startswith("tls:") for address in inner.values())


def test_settings_come_from_the_file_unless_the_environment_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.env"
    file.write_text("WEFT_JOB_STORE=mongodb://weft:secret@mongodb/weft\nWEFT_SWEEP_S=3\n")
    monkeypatch.setenv(SETTINGS_FILE, str(file))
    monkeypatch.setenv("WEFT_SWEEP_S", "2")
    assert (Settings().job_store, Settings().sweep_s) == ("mongodb://weft:secret@mongodb/weft", 2.0)


def test_a_missing_file_of_settings_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTINGS_FILE, str(tmp_path / "missing.env"))
    with pytest.raises(FileNotFoundError):
        Settings()


# --- docker-compose.yml ----------------------------------------------------------------


def test_override_holds_images_alone() -> None:
    assert set(OVERRIDE) == {"services"}
    assert {name: set(fields) for name, fields in OVERRIDE["services"].items()} == {
        name: {"image"} for name in ("mongodb", "etcd", "rabbitmq", "s3", "prometheus")
    }


def test_only_the_api_is_published_and_on_loopback() -> None:
    published = {name: fields["ports"] for name, fields in COMPOSE["services"].items() if "ports" in fields}
    assert set(published) == {"api", "prometheus", "grafana"}
    assert all(
        port.startswith(("127.0.0.1:", "${WEFT_ADDRESS:-127.0.0.1}:")) for ports in published.values() for port in ports
    )


def test_learners_reach_no_store_but_the_object_store() -> None:
    networks = {name: set(fields.get("networks", ())) for name, fields in COMPOSE["services"].items()}
    assert networks["node"] == {"learners"}
    stores = {"mongodb", "etcd", "rabbitmq", "s3"}
    assert {name for name in stores if "learners" in networks[name]} == {"s3"}
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_containers_have_read_only_roots_and_no_rights_but_those_listed() -> None:
    for name, fields in COMPOSE["services"].items():
        assert fields["read_only"] is True, name
        assert fields["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in fields["security_opt"], name
        assert (fields.get("user") == "0:0") == (name in {"setup", "node"}), name
        assert ("cap_add" in fields) == (name in {"setup", "node"}), name


def test_servers_have_health_checks_and_are_started_again() -> None:
    one_shot = {"setup", "mongodb-users", "tools"}
    for name, fields in COMPOSE["services"].items():
        assert fields["restart"] == ("no" if name in one_shot else "unless-stopped"), name
        if name not in one_shot | {"prometheus", "grafana"}:
            assert "healthcheck" in fields, name


def test_each_variable_is_explained_with_its_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    defaults = dict(re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", text))
    # Without a value they are taken from the environment.
    defaults |= dict.fromkeys(re.findall(r"^ +([A-Z0-9_]+):$", text, re.MULTILINE), "")
    example = (ROOT / ".env.example").read_text()
    assert dict(re.findall(r"^#([A-Z0-9_]+)=(.*)$", example, re.MULTILINE)) == defaults


def test_no_password_is_in_the_file() -> None:
    for name, fields in COMPOSE["services"].items():
        for variable, value in (fields.get("environment") or {}).items():
            secret = re.search("PASSWORD|SECRET|KEY$|TOKEN", variable)
            assert secret is None or str(value).startswith("/"), f"{name}: {variable}"

"""The Secrets of an installation on Kubernetes, and the homes that pods make of them."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from services.core.adapters.encrypted import MasterKeyFile
from services.core.domain.errors import Conflict, WeftError
from services.core.domain.service_access import SERVICES
from services.core.runtime.home import Home
from services.local.cluster_keys import Files, make_all, refuse_loss
from services.local.pod_home import lay_out_service, lay_out_store

HOSTS = {name: f"weft-{name}.system.svc.cluster.local" for name in (*SERVICES, "etcd")}
ENVIRON = {"WEFT_POD_HOSTS": "weft-{}.system.svc.cluster.local"}


@pytest.fixture(scope="module")
def made() -> tuple[Files, dict[str, Files]]:
    return asyncio.run(make_all({}, HOSTS))


def test_an_upgrade_changes_no_key_and_no_certificate(made: tuple[Files, dict[str, Files]]) -> None:
    assert asyncio.run(make_all(made[0], HOSTS)) == made


def test_a_key_that_was_removed_from_the_installation_is_made_anew(made: tuple[Files, dict[str, Files]]) -> None:
    installation = {key: value for key, value in made[0].items() if key != "secret.rabbitmq"}
    _, others = asyncio.run(make_all(installation, HOSTS))
    changed = {name for name in others if others[name] != made[1][name]}
    assert changed == {"rabbitmq"}


def test_no_new_key_is_made_where_any_part_of_an_installation_is_left(made: tuple[Files, dict[str, Files]]) -> None:
    refuse_loss("weft", {}, {}, [])
    with pytest.raises(Conflict, match=r"weft-installation is gone.*: Secret weft-worker\. Nothing was changed.*copy"):
        refuse_loss("weft", {}, {"worker": made[1]["worker"]}, [])
    with pytest.raises(Conflict, match=r"PersistentVolumeClaim data-weft-mongodb-0\. Nothing was changed"):
        refuse_loss("weft", {}, {}, ["data-weft-mongodb-0"])


@pytest.mark.parametrize(
    ("name", "copy"),
    [("master-key", "weft-api has it under master-key"), ("mongodb-admin", "weft-mongodb has it under admin-password")],
)
def test_a_key_that_opens_data_is_not_made_anew_and_its_copy_is_named(
    made: tuple[Files, dict[str, Files]], name: str, copy: str
) -> None:
    installation = {key: value for key, value in made[0].items() if key != f"secret.{name}"}
    with pytest.raises(Conflict, match=f"has no secret.{name}, .*Nothing was changed.*{copy}"):
        refuse_loss("weft", installation, made[1], [])
    with pytest.raises(Conflict, match=r"Put it back from your copy of weft-installation\.$"):
        refuse_loss("weft", installation, {}, [])


def test_the_last_copy_of_a_master_key_is_not_overwritten_by_an_older_installation(
    made: tuple[Files, dict[str, Files]],
) -> None:
    newer = f"weftmk1_{'ab' * 32}\n".encode()
    rotated = newer + made[0]["secret.master-key"]
    with pytest.raises(Conflict, match="weft-api has another master-key than weft-installation"):
        refuse_loss("weft", made[0], {**made[1], "api": {"master-key": rotated}}, [])
    refuse_loss("weft", {**made[0], "secret.master-key": rotated}, made[1], [])


def test_a_secret_of_a_service_has_its_own_private_keys_only(made: tuple[Files, dict[str, Files]]) -> None:
    private = {name: set(files) - {"ca.crt", "tls.crt", "public-keys.json"} for name, files in made[1].items()}
    common = {"identity", "admin-key", "tls.key"}
    assert {name: private[name] - common for name in SERVICES} == {
        "api": {"master-key"},
        "guardian": {"learner-tokens"},
        "lcm": set(),
        "metrics": set(),
        "node": set(),
        "worker": set(),
    }
    identities = [made[1][name]["identity"] for name in SERVICES]
    assert len(set(identities)) == len(identities)


def test_keys_of_the_installations_secret_are_names_that_kubernetes_allows(
    made: tuple[Files, dict[str, Files]],
) -> None:
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
    assert not [key for key in made[0] if set(key) - allowed]
    assert sum(map(len, made[0].values())) < 2**19


def test_a_key_that_this_version_does_not_know_is_refused_before_anything_is_made() -> None:
    with pytest.raises(WeftError, match="'later'"):
        asyncio.run(make_all({"later": b""}, HOSTS))


def _mount(folder: Path, files: Files, stores: Files) -> Path:
    for part, content in (("keys", files), ("stores", stores)):
        (folder / part).mkdir(parents=True)
        for name, value in content.items():
            (folder / part / name).write_bytes(value)
            (folder / part / name).chmod(0o440)
    return folder


def test_the_home_of_a_pod_has_private_files_and_the_addresses_of_all(
    made: tuple[Files, dict[str, Files]], tmp_path: Path
) -> None:
    stores = {"mongodb-password": b"m\n", "rabbitmq-uri": b"redis://:r@cache:6379/0\n"}
    stores |= {"s3-access-key": b"a\n", "s3-secret-key": b"s\n"}
    mounted = _mount(tmp_path / "etc", made[1]["api"], stores)
    for _ in range(2):  # the container starts again
        lay_out_service("api", mounted, tmp_path / "home", ENVIRON)
    home = Home(tmp_path / "home")
    assert home.address("api").text == "0.0.0.0:8080"
    assert home.address("lcm").text == "tls:weft-lcm.system.svc.cluster.local:7000"
    assert (home / "settings.env").read_text().splitlines() == [
        "WEFT_JOB_STORE=mongodb://weft:m@weft-mongodb.system.svc.cluster.local:27017/weft?replicaSet=weft",
        "WEFT_BROKER_URL=redis://:r@cache:6379/0",
    ]
    assert (home / "s3-credentials").read_text().splitlines()[1:] == ["aws_access_key_id=a", "aws_secret_access_key=s"]
    private = [home / "settings.env", home / "s3-credentials", *(home / "secrets").glob("=*")]
    assert len(private) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_the_metric_store_of_a_pod_is_on_its_volume(made: tuple[Files, dict[str, Files]], tmp_path: Path) -> None:
    stores = {"mongodb-uri": b"mongodb://outside/weft", "s3-access-key": b"a", "s3-secret-key": b"s"}
    mounted = _mount(tmp_path / "etc", made[1]["metrics"], stores)
    (tmp_path / "volume").mkdir()
    environ = {**ENVIRON, "WEFT_POD_METRICS_FOLDER": str(tmp_path / "volume" / "metrics")}
    lay_out_service("metrics", mounted, tmp_path / "home", environ)
    assert (tmp_path / "home" / "metrics").resolve() == tmp_path / "volume" / "metrics"
    assert stat.S_IMODE((tmp_path / "volume" / "metrics").stat().st_mode) == 0o700


def test_a_service_reaches_an_etcd_outside(made: tuple[Files, dict[str, Files]], tmp_path: Path) -> None:
    mounted = _mount(tmp_path / "etc", made[1]["worker"], {"rabbitmq-password": b"r"})
    lay_out_service("worker", mounted, tmp_path / "home", {**ENVIRON, "WEFT_POD_ETCD": "etcd.example:2379"})
    assert json.loads(Home(tmp_path / "home").addresses_file.read_text())["etcd"] == "tls:etcd.example:2379"


def test_a_secret_without_a_key_that_is_needed_is_named(made: tuple[Files, dict[str, Files]], tmp_path: Path) -> None:
    mounted = _mount(tmp_path / "etc", made[1]["worker"], {})
    with pytest.raises(WeftError, match=r"stores has no key rabbitmq-password"):
        lay_out_service("worker", mounted, tmp_path / "home", ENVIRON)


def test_the_stores_get_files_that_only_they_can_read(made: tuple[Files, dict[str, Files]], tmp_path: Path) -> None:
    for store in ("mongodb", "rabbitmq", "s3"):
        private = tmp_path / store / "private"
        mounted = _mount(tmp_path / store / "etc", made[1][store], {})
        private.mkdir()
        lay_out_store(store, mounted, private)
        assert {stat.S_IMODE(path.stat().st_mode) for path in private.iterdir()} == {0o600}
    assert made[1]["rabbitmq"]["password"].decode() in (tmp_path / "rabbitmq" / "private" / "weft.conf").read_text()


def test_the_made_master_key_opens_the_secret_store(made: tuple[Files, dict[str, Files]], tmp_path: Path) -> None:
    (tmp_path / "master-key").write_bytes(made[1]["api"]["master-key"])
    (tmp_path / "master-key").chmod(0o440)  # as Kubernetes mounts it
    assert len(MasterKeyFile(tmp_path / "master-key", made_here=False).keys().ids) == 1

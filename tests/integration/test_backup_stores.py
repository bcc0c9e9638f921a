"""Backup and restore of a platform's stores, whatever they are; whoever dies in between, nothing passes for whole."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from services.core.domain.errors import Conflict, InvalidRequest, NoSpace, WeftError
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import Batch, LogLine, SourceId
from services.core.runtime.home import Home
from services.core.runtime.processes import identify
from services.local.backup.archive import Entry, Reader, Writer
from services.local.backup.keys import key_file
from services.local.backup.restore_marker import is_half_restored
from services.local.backup.restoring import stop_command
from services.local.backup.stores import Stores
from services.local.commands import PLATFORM
from tests.documents import NOW, a_job
from tests.testbed.backups import EMBEDDED, backup, kinds, restore, snapshot
from tests.testbed.filled_stores import ADMIN_KEY, SECRETS, fill, with_stores
from tests.testbed.s3 import S3
from tests.waiting import HANG_S

WEFT = Path(sys.executable).with_name("weft")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A platform with some of everything in it."""
    with_stores(tmp_path / "home", EMBEDDED, fill, writing=True)
    return tmp_path / "home"


_KILLED = """
import os, signal, sys
from pathlib import Path
from services.core.runtime.home import Home
from services.local.backup.restore_marker import is_half_restored
from services.local.commands import PLATFORM

what, home, file, share = sys.argv[1:]

def told(done, whole):
    if done >= float(share) * whole and (what == "backup" or is_half_restored(Home(Path(home)))):
        os.kill(os.getpid(), signal.SIGKILL)

if what == "backup":
    PLATFORM.backup(file, home, progress=told)
else:
    PLATFORM.restore(file, home, halted=True, progress=told)
"""


def killed(what: str, home: Path, file: Path, share: float) -> None:
    """Backup or restore, by a process that kills itself (-9) once it has done this share of its work."""
    words = [sys.executable, "-c", _KILLED, what, str(home), str(file), str(share)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


# --- from any set of stores to any other -------------------------------------------


@pytest.fixture
def servers(mongo_uri: str, s3: S3) -> dict[str, str]:
    return {"WEFT_JOB_STORE": mongo_uri, **s3.settings("backup-" + mongo_uri.rpartition("_")[2])}


@pytest.mark.parametrize("way", ["embedded-embedded", "embedded-servers", "servers-embedded"])
def test_restore_onto_other_stores_is_complete(tmp_path: Path, servers: dict[str, str], way: str) -> None:
    source_stores, target_stores = [EMBEDDED if name == "embedded" else servers for name in way.split("-")]
    with_stores(tmp_path / "one", source_stores, fill, writing=True)
    before = snapshot(tmp_path / "one", source_stores)
    made = backup(tmp_path / "one", tmp_path / "b", source_stores)
    answer = restore(tmp_path / "other", tmp_path / "b", target_stores)
    after = snapshot(tmp_path / "other", target_stores)

    same = ("sources", "line", "point", "record", "secret", "file")
    assert kinds(after, *same) == kinds(before, *same)
    events = kinds(before, "event")
    assert events.items() <= kinds(after, "event").items()
    assert set(kinds(after, "job")) == set(kinds(before, "job"))
    assert made["counts"] == answer["counts"]
    assert made["counts"]["jobs"] == 5
    assert made["counts"]["events"] == len(events)
    assert made["counts"]["lines"] == len(kinds(before, "line"))
    assert made["warnings"] == []

    waiting, running, ending, ended, deleted = (after[name] for name in kinds(after, "job"))
    assert [job["state"]["status"] for job in (waiting, running)] == ["QUEUED", "QUEUED"]
    assert sorted(answer["again"]) == sorted([waiting["id"], running["id"]])
    assert [job["state"]["status"] for job in (ending, ended, deleted)] == ["COMPLETED"] * 3
    assert all(job["released"] for job in (running, ending, ended, deleted))
    for untouched in (waiting, ended, deleted):
        assert untouched == before[f"job {untouched['id']}"]


def test_backup_of_a_stopped_platform_from_a_terminal_without_its_settings_is_refused(
    home: Path, tmp_path: Path, servers: dict[str, str]
) -> None:
    """Before, it was a backup of the empty stores that the terminal's settings name, with exit status 0."""
    other = tmp_path / "other"
    backup(home, tmp_path / "b")
    restore(other, tmp_path / "b", servers)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InvalidRequest, match=r"WEFT_JOB_STORE was mongodb://.* and is sqlite here"):
        backup(other, tmp_path / "c")
    assert {path.name for path in tmp_path.iterdir()} == before
    assert backup(other, tmp_path / "c", servers)["counts"]["jobs"] == 5


def test_restored_terms_do_not_fall_and_keys_of_services_are_new(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    restore(tmp_path / "other", tmp_path / "b")

    async def look(stores: Stores) -> tuple[int, bytes | None]:
        return (await stores.jobs.dispatcher()).term, await stores.installation.get("identity-lcm")

    term, key = with_stores(tmp_path / "other", EMBEDDED, look, writing=False)
    assert term >= 7
    assert key is None


def test_halted_restore_has_no_job_that_would_run(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    answer = restore(tmp_path / "other", tmp_path / "b", halted=True)
    jobs = kinds(snapshot(tmp_path / "other"), "job").values()
    assert {job["state"]["status"] for job in jobs} == {"HALTED", "COMPLETED"}
    assert (answer["again"], len(answer["halted"])) == ([], 2)


def test_backup_of_restored_platform_equals_the_first_backup(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    restore(tmp_path / "other", tmp_path / "b", halted=True)
    backup(tmp_path / "other", tmp_path / "b2")
    restore(tmp_path / "third", tmp_path / "b2")
    assert snapshot(tmp_path / "third") == snapshot(tmp_path / "other")


# --- what can be read in it ---------------------------------------------------------


def test_backup_contains_no_plain_secret_and_has_mode_0600(home: Path, tmp_path: Path) -> None:
    made = backup(home, tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b.key").stat().st_mode & 0o777 == 0o600
    assert (made["key"], made["key_made"]) == (str(tmp_path / "b.key"), True)
    plain = [(tmp_path / "b").read_bytes()]
    with tarfile.open(tmp_path / "b") as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            if member.name.endswith(".gz"):
                plain.append(gzip.decompress(content.read()))
    master = (home / "secrets" / "master-key").read_text().split("weftmk1_")[1].strip()
    for value in (*SECRETS.values(), ADMIN_KEY, b"of this platform alone", master.encode()):
        for form in (value, value.hex().encode()):
            assert not form or not any(form in text for text in plain)


def test_backup_with_passphrase_is_restored(home: Path, tmp_path: Path) -> None:
    made = backup(home, tmp_path / "b", passphrase="right horse")
    assert made["key"] == ""
    assert not (tmp_path / "b.key").exists()
    for wrong in (None, "wrong horse"):
        with pytest.raises(InvalidRequest, match="passphrase"):
            restore(tmp_path / "other", tmp_path / "b", passphrase=wrong)
    assert not (tmp_path / "other").exists()
    restore(tmp_path / "other", tmp_path / "b", passphrase="right horse")
    assert kinds(snapshot(tmp_path / "other"), "secret") == kinds(snapshot(home), "secret")


def test_backup_without_its_key_is_verified_but_not_restored(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    assert PLATFORM.verify_backup(str(tmp_path / "b"))["authentic"] is True
    (tmp_path / "b.key").rename(tmp_path / "elsewhere")
    report = PLATFORM.verify_backup(str(tmp_path / "b"))
    assert report["authentic"] is False
    assert report["counts"]["jobs"] == 5
    with pytest.raises(InvalidRequest, match="--key FILE"):
        restore(tmp_path / "other", tmp_path / "b")
    restore(tmp_path / "other", tmp_path / "b", key=str(tmp_path / "elsewhere"))


def test_rewritten_backup_with_valid_checksums_is_refused(home: Path, tmp_path: Path) -> None:
    """Everything but the secrets can be read, and written anew; only the key can say that it was Weft."""
    backup(home, tmp_path / "b")
    with (tmp_path / "b").open("rb") as file, (tmp_path / "forged").open("wb") as forged:
        reader, writer = Reader(file), Writer(forged)
        for entry in reader:
            assert isinstance(entry, Entry)
            content = b"".join(entry.chunks())
            writer.put(entry.name, b"Trust me.\n" if entry.name == "README.txt" else content)
        writer.finish(reader.end["counts"], lambda _: reader.end["mac"])
    assert PLATFORM.verify_backup(str(tmp_path / "forged"))["authentic"] is False
    with pytest.raises(InvalidRequest, match="it was changed"):
        restore(tmp_path / "other", tmp_path / "forged", key=str(tmp_path / "b.key"))
    assert not (tmp_path / "other").exists()


def test_backup_that_lacks_points_is_restored_up_to_there_and_says_so(home: Path, tmp_path: Path) -> None:
    """As earlier versions wrote it: all of it was refused by the restore, after the platform had been emptied."""
    backup(home, tmp_path / "b")
    key = key_file(tmp_path / "b.key")
    lacking: list[str] = []
    with (tmp_path / "b").open("rb") as file, (tmp_path / "older").open("wb") as older:
        reader, writer = Reader(file), Writer(older)
        for entry in reader:
            assert isinstance(entry, Entry)
            content = b"".join(entry.chunks())
            if entry.name.startswith("metrics/") and not lacking:
                lacking.append(entry.name.split("/")[1])
                content = without_point(3, content)
            writer.put(entry.name, content)
        writer.finish(reader.end["counts"], key.mac)
    (tmp_path / "b.key").rename(tmp_path / "older.key")
    warnings = [f"the backup lacks points of job {lacking[0]} after number 2; the rest of the job is in it"]
    assert PLATFORM.verify_backup(str(tmp_path / "older"))["warnings"] == warnings
    assert restore(tmp_path / "other", tmp_path / "older")["warnings"] == warnings
    before, after = snapshot(home), snapshot(tmp_path / "other")
    lost = {name for name in before if name.startswith(f"point {lacking[0]} ") and int(name.split()[-1]) > 2}
    assert lost
    same = {name: value for name, value in before.items() if name not in lost}
    assert kinds(after, "line", "point", "file") == kinds(same, "line", "point", "file")


def without_point(number: int, content: bytes) -> bytes:
    """Documents of metrics without the point of this number."""
    documents = [json.loads(text) for text in gzip.decompress(content).splitlines()]
    for document in documents:
        document.get("points", [])[:] = [row for row in document.get("points", []) if row[0] != number]
    return gzip.compress("".join(f"{json.dumps(document)}\n" for document in documents).encode())


# --- whoever dies -------------------------------------------------------------------


def test_killed_backup_leaves_no_valid_file(home: Path, tmp_path: Path) -> None:
    file, part = tmp_path / "b", tmp_path / "b.part"
    for share in (0.5, 1):
        killed("backup", home, file, share)
        assert not file.exists()
        with pytest.raises(InvalidRequest):
            PLATFORM.verify_backup(str(part))
    backup(home, file)
    assert not part.exists()
    assert PLATFORM.verify_backup(str(file))["counts"]["files"] == 4


def test_full_disk_ends_backup_with_one_clear_error_and_no_file(home: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(NoSpace, match="make room"):
            backup(home, tmp_path / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_killed_restore_blocks_start_and_can_be_repeated(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    backup(home, tmp_path / "b")
    for share in (0, 0.9):
        killed("restore", other, tmp_path / "b", share)
        assert is_half_restored(Home(other))
        with pytest.raises(WeftError, match=f"run `weft restore {tmp_path / 'b'} --home {other}` again"):
            PLATFORM.up(str(other), report=lambda _: None)
    restore(other, tmp_path / "b", halted=True)
    assert not is_half_restored(Home(other))
    restore(tmp_path / "undisturbed", tmp_path / "b", halted=True)
    actual, expected = snapshot(other), snapshot(tmp_path / "undisturbed")
    assert actual.keys() == expected.keys()
    same = ("sources", "line", "point", "record", "secret", "file")
    assert kinds(actual, *same) == kinds(expected, *same)


def test_restore_is_refused_while_a_service_in_another_container_runs(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    other = tmp_path / "other"
    (other / "run").mkdir(parents=True)
    with socket.create_server(("127.0.0.2", 0)) as lcm:
        addresses = {"lcm": "tls:127.0.0.2:1", "lcm-ops": f"tls:127.0.0.2:{lcm.getsockname()[1]}"}
        (other / "run" / "addresses.json").write_text(json.dumps(addresses))
        with pytest.raises(Conflict, match=r"lcm still run in other containers; .*docker compose stop lcm"):
            restore(other, tmp_path / "b", replace=True)
    restore(other, tmp_path / "b", replace=True)


def test_restore_names_the_command_that_stops_the_services_of_containers_and_of_pods() -> None:
    """On Kubernetes it said `docker compose stop`."""
    in_containers = {name: f"tls:{name}:7001" for name in ("api", "lcm", "metrics", "node")}
    assert stop_command(in_containers) == "docker compose stop api lcm metrics node"
    in_pods = {name: f"tls:weft-{name}.weft-system.svc.cluster.local:7001" for name in in_containers}
    assert stop_command({**in_pods, "api": "tls:0.0.0.0:7001"}) == (
        "kubectl --namespace weft-system scale --replicas=0 "
        "deployment/weft-api deployment/weft-lcm statefulset/weft-metrics"
    )


def test_restore_on_full_disk_reports_it_and_can_be_repeated(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 2**20, hard))
    try:
        with pytest.raises(NoSpace):
            restore(tmp_path / "other", tmp_path / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert is_half_restored(Home(tmp_path / "other"))
    restore(tmp_path / "other", tmp_path / "b")
    assert kinds(snapshot(tmp_path / "other"), "file") == kinds(snapshot(home), "file")


# --- the first lines after a restore ------------------------------------------------


def append_to_all(home: Path) -> None:
    """A learner of the next attempt of each job reports a line. Fails if a line is not stored."""

    async def append(stores: Stores) -> None:
        for job in await stores.jobs.find(JobQuery(deleted=True)):
            lines, points = await stores.metrics.counts(job.id)
            batch = Batch(SourceId(99, "worker", 0, 1, "stdout"), 0, 5, [LogLine(0, NOW, "epoch")])
            assert await stores.metrics.append(job.id, [batch]) == [5]
            assert await stores.metrics.counts(job.id) == (lines + 1, points)

    with_stores(home, EMBEDDED, append, writing=True)


def test_job_that_waited_has_logs_after_restore_with_replace(home: Path, tmp_path: Path) -> None:
    """Its lines were refused ("job ... was deleted") for ever: the restore had deleted the metrics of every job."""
    backup(home, tmp_path / "b")
    before = snapshot(home)
    restore(home, tmp_path / "b", replace=True)
    assert kinds(snapshot(home), "line", "point", "sources") == kinds(before, "line", "point", "sources")
    append_to_all(home)


def test_job_that_waited_has_logs_after_an_interrupted_restore(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    killed("restore", tmp_path / "other", tmp_path / "b", 0.9)
    restore(tmp_path / "other", tmp_path / "b")
    append_to_all(tmp_path / "other")


def test_job_that_was_deleted_after_the_backup_has_logs_after_restore(home: Path, tmp_path: Path) -> None:
    """Its mark as deleted is older than the restore, which finds no job to remove."""
    backup(home, tmp_path / "b")

    async def delete_all(stores: Stores) -> None:
        for job in await stores.jobs.find(JobQuery(deleted=True)):
            await stores.metrics.delete(job.id)
            await stores.jobs.delete(job.id)

    with_stores(home, EMBEDDED, delete_all, writing=True)
    restore(home, tmp_path / "b", replace=True)
    append_to_all(home)


def test_restored_job_does_not_continue_the_metrics_of_a_lost_document(home: Path, tmp_path: Path) -> None:
    """The job waited at the backup, then ran; then the job store was lost, and the folder of metrics was not."""
    backup(home, tmp_path / "b")
    append_to_all(home)
    (home / "jobs.sqlite").unlink()
    restore(home, tmp_path / "b", replace=True)
    append_to_all(home)


def test_erased_job_gets_no_metrics_by_restore(home: Path, tmp_path: Path) -> None:
    erased = a_job(deleted=NOW, erased=NOW)

    async def insert(stores: Stores) -> None:
        await stores.jobs.insert(erased)

    with_stores(home, EMBEDDED, insert, writing=True)
    backup(home, tmp_path / "b")
    restore(tmp_path / "other", tmp_path / "b")
    assert len(list((tmp_path / "other" / "metrics").glob("j*"))) == 5
    assert not (tmp_path / "other" / "metrics" / erased.id).exists()


# --- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize("harm", ["cut", "flipped", "not a backup", "newer"])
def test_damaged_backup_is_refused_before_any_change(home: Path, tmp_path: Path, harm: str) -> None:
    backup(home, tmp_path / "b")
    data = bytearray((tmp_path / "b").read_bytes())
    if harm == "cut":
        del data[len(data) // 2 :]
    elif harm == "flipped":
        data[len(data) // 2] ^= 16
    elif harm == "newer":
        data[:] = data.replace(b'"format": 2', b'"format": 3')
    else:
        data[:] = b"PK" + os.urandom(5_000)
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(InvalidRequest) as caught:
        restore(tmp_path / "other", tmp_path / "b")
    messages = {"cut": "entry objects/", "flipped": "entry objects/", "newer": "newer Weft", "not a backup": "backup"}
    assert messages[harm] in caught.value.message
    assert not (tmp_path / "other").exists()


def test_used_platform_is_overwritten_only_with_replace(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    before = snapshot(home)
    with pytest.raises(Conflict, match="--replace"):
        restore(home, tmp_path / "b")
    assert snapshot(home) == before
    assert not is_half_restored(Home(home))

    async def change(stores: Stores) -> None:
        (first, *_) = await stores.jobs.find(JobQuery(), newest_first=False)
        await stores.jobs.delete(first.id)
        await stores.metrics.delete((await stores.jobs.find(JobQuery()))[0].id)
        await (await stores.secrets()).put("since", b"x")
        await stores.objects.put("tenants/acme/since", one_chunk(b"x"))

    with_stores(home, EMBEDDED, change, writing=True)
    restore(home, tmp_path / "b", replace=True)
    same = ("sources", "line", "point", "record", "secret", "file")
    assert kinds(snapshot(home), *same) == kinds(before, *same)


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data


def test_existing_file_is_never_overwritten(home: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("precious")
    with pytest.raises(Conflict, match="exists already"):
        backup(home, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "precious"
    (tmp_path / "folder").mkdir()
    made = Path(backup(home, tmp_path / "folder")["file"])
    assert made.parent == tmp_path / "folder"
    assert made.name.startswith("weft-")


def test_concurrent_backups_to_one_file_conflict(home: Path, tmp_path: Path) -> None:
    """The second begins while the first is half done: it is refused, and harms nothing."""
    refused: list[str] = []

    def once_more(_done: int, _whole: int) -> None:
        if not refused:
            with ThreadPoolExecutor() as threads, pytest.raises(Conflict) as caught:
                threads.submit(backup, home, tmp_path / "b", key=str(tmp_path / "b.key")).result()
            refused.append(caught.value.message)

    backup(home, tmp_path / "b", progress=once_more)
    assert "another backup is writing" in refused[0]
    assert PLATFORM.verify_backup(str(tmp_path / "b"))["authentic"] is True


def test_backup_of_a_folder_without_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no platform"):
        backup(tmp_path / "nothing", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_running_platform_is_not_restored_over(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    mine = identify(os.getpid())
    assert mine is not None
    (tmp_path / "other" / "run").mkdir(parents=True)
    document = {"schema": 1, "pid": mine.pid, "start_time": mine.start_time, "boot_id": mine.boot_id}
    (tmp_path / "other" / "run" / "guardian.json").write_text(json.dumps(document))
    with pytest.raises(Conflict, match="guardian still run"):
        restore(tmp_path / "other", tmp_path / "b")


def test_unreadable_documents_are_kept_and_reported(home: Path, tmp_path: Path) -> None:
    database = apsw.Connection(str(home / "jobs.sqlite"))
    first = database.execute("SELECT min(id) FROM jobs").get
    database.execute("UPDATE jobs SET doc = '{\"id\": 1}' WHERE id = ?", (first,))
    database.close()
    made = backup(home, tmp_path / "b")
    assert made["counts"]["jobs"] == 4
    assert made["counts"]["unreadable"] == 1
    assert str(first) in made["warnings"][0]
    with tarfile.open(tmp_path / "b") as tar:
        content = tar.extractfile("unreadable/000001.jsonl.gz")
        assert content is not None
        assert json.loads(gzip.decompress(content.read()))["id"] == first
    assert restore(tmp_path / "other", tmp_path / "b")["counts"]["jobs"] == 4


def test_unreadable_record_is_reported_and_repaired_by_restore(home: Path, tmp_path: Path) -> None:
    before = snapshot(home)
    backup(home, tmp_path / "sound")
    database = apsw.Connection(str(home / "records.sqlite"))
    ruined = database.execute("SELECT min(id) FROM records WHERE kind = 'keys'").get
    database.execute("UPDATE records SET body = '{' WHERE kind = 'keys' AND id = ?", (ruined,))
    database.close()
    made = backup(home, tmp_path / "b")
    assert [text for text in made["warnings"] if f"{ruined} of keys" in text] == made["warnings"] != []
    restore(home, tmp_path / "sound", replace=True)
    assert kinds(snapshot(home), "record") == kinds(before, "record")


# --- the lost master key --------------------------------------------------------------


def test_restore_repairs_a_lost_master_key(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    before = snapshot(home)
    (home / "secrets" / "master-key").unlink()
    with pytest.raises(WeftError, match="master-key is gone"):
        snapshot(home)
    with pytest.raises(WeftError, match="master-key is gone"):
        backup(home, tmp_path / "b2")
    assert not (tmp_path / "b2.key").exists()
    restore(home, tmp_path / "b", replace=True)
    assert kinds(snapshot(home), "secret") == kinds(before, "secret")


def test_restore_with_missing_master_key_file_changes_nothing(home: Path, tmp_path: Path) -> None:
    backup(home, tmp_path / "b")
    before = snapshot(home)
    missing = {"WEFT_MASTER_KEY_FILE": str(tmp_path / "nowhere")}
    with pytest.raises(WeftError, match="no master key file"):
        restore(home, tmp_path / "b", missing, replace=True)
    assert snapshot(home) == before


def test_master_key_is_rotated_and_the_old_one_retired(home: Path) -> None:
    before = snapshot(home)
    old = PLATFORM.master_key(str(home))
    assert old["keys"] == [{"id": old["current"], "secrets": 3}]
    new = PLATFORM.master_key(str(home), rotate=True)
    assert new["rewrapped"] == 3
    assert new["keys"] == [{"id": new["current"], "secrets": 3}, {"id": old["current"], "secrets": 0}]
    retired = PLATFORM.master_key(str(home), retire=True)
    assert retired["retired"] == [old["current"]]
    assert retired["keys"] == [{"id": new["current"], "secrets": 3}]
    assert kinds(snapshot(home), "secret") == kinds(before, "secret")

"""The adapters that the services share, for the profile they run in. Each service's own ``wiring`` picks from here.

Imports are inside the functions: a service pays only for what it uses.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from services.core.domain.errors import InvalidRequest
from services.core.runtime.settings import Settings

if TYPE_CHECKING:
    from services.core.adapters.encrypted import EncryptedSecretStore, MasterKeyFile
    from services.core.adapters.rpc.telemetry import Telemetry
    from services.core.adapters.s3.bucket import Bucket
    from services.core.ports.clock import Clock
    from services.core.ports.cluster import Cluster
    from services.core.ports.hints import Hints
    from services.core.ports.job_store import JobStore
    from services.core.ports.object_store import ObjectStore
    from services.core.ports.object_urls import ObjectUrls
    from services.core.ports.record_store import RecordStore
    from services.core.ports.secret_store import SecretStore
    from services.core.ports.status_store import StatusStore

SERVICE_SECRET = "service"  # noqa: S105 - its name, not its value


def clock() -> Clock:
    """The machine's."""
    from services.core.adapters.system_clock import SystemClock

    return SystemClock()


def installation_secrets(settings: Settings) -> SecretStore:
    """Private files in the installation's folder: what must be there before any store answers."""
    from services.core.adapters.folder.secrets import FolderSecretStore

    return FolderSecretStore(settings.installation / "secrets")


def master_keys(settings: Settings) -> MasterKeyFile:
    """What the secrets of the record store are wrapped with."""
    from services.core.adapters.encrypted import MasterKeyFile

    given = settings.master_key_file
    return MasterKeyFile(given or settings.installation / "secrets" / "master-key", made_here=given is None)


async def secret_store(settings: Settings, records: RecordStore) -> EncryptedSecretStore:
    """What belongs to the data, and lies beside it: encrypted, among the records."""
    from services.core.adapters.encrypted import EncryptedSecretStore

    return await EncryptedSecretStore.open(records, master_keys(settings))


async def service_secret(settings: Settings) -> bytes:
    """What the services know each other by, and what learners' tokens are made with. Made at the first start."""
    return await installation_secrets(settings).get_or_create(SERVICE_SECRET, os.urandom(32))


def _on_mongo(settings: Settings) -> bool:
    if settings.job_store == "sqlite":
        return False
    if settings.job_store.startswith(("mongodb://", "mongodb+srv://")):
        return True
    # Without what it is: a mistyped URI may hold a password.
    raise InvalidRequest("WEFT_JOB_STORE is neither 'sqlite' nor a URI that begins with mongodb:// or mongodb+srv://")


async def job_store(settings: Settings) -> JobStore:
    """Job documents, their history and the dispatcher's term."""
    if _on_mongo(settings):
        from services.core.adapters.mongo import MongoJobStore, trusted

        return await MongoJobStore.on(await trusted(settings.job_store))
    from services.core.adapters.sqlite.jobs import SqliteJobStore

    return await SqliteJobStore.open(settings.installation / "jobs.sqlite")


async def check_job_store(settings: Settings) -> None:
    """Only whether it can be trusted, where it is a MongoDB: InvalidRequest or Unavailable where not. Makes nothing."""
    if _on_mongo(settings):
        from services.core.adapters.mongo import close, trusted

        await close(await trusted(settings.job_store))


async def record_store(settings: Settings) -> RecordStore:
    """Keys, users and the like."""
    if _on_mongo(settings):
        from services.core.adapters.mongo import MongoRecordStore, trusted

        return await MongoRecordStore.on(await trusted(settings.job_store))
    from services.core.adapters.sqlite.records import SqliteRecordStore

    return await SqliteRecordStore.open(settings.installation / "records.sqlite")


def _bucket(settings: Settings) -> Bucket | None:
    """None: objects are in a folder. InvalidRequest."""
    if settings.object_store == "folder":
        return None
    from services.core.adapters.s3.bucket import Credentials, bucket, read_credentials

    if settings.s3_credentials_file is not None:
        credentials = read_credentials(settings.s3_credentials_file)
    else:
        credentials = Credentials(settings.s3_access_key, settings.s3_secret_key, settings.s3_session_token)
    return bucket(
        settings.object_store, endpoint=settings.s3_endpoint, region=settings.s3_region, credentials=credentials
    )


def object_store(settings: Settings) -> ObjectStore:
    """Code, results, logs, checkpoints. Its first ``ping`` says whether it can be used."""
    bucket = _bucket(settings)
    if bucket is not None:
        from services.core.adapters.s3.objects import S3ObjectStore

        return S3ObjectStore(bucket)
    from services.core.adapters.folder.objects import FolderObjectStore

    return FolderObjectStore(settings.installation / "objects")


def object_urls(settings: Settings) -> ObjectUrls | None:
    """What helpers move objects by; None where they have the folder. Nothing is sent."""
    bucket = _bucket(settings)
    if bucket is None:
        return None
    from services.core.adapters.s3.signing import Signer

    return Signer(bucket)


async def status_store(settings: Settings) -> StatusStore:
    """Liveness and learners' phases. Made inside the loop that uses it."""
    from services.core.adapters.etcd.store import EtcdStatusStore

    return EtcdStatusStore(settings.installation.address("etcd"))


def cluster(settings: Settings, secret: bytes) -> Cluster:
    """Where learners run."""
    from services.core.adapters.local.cluster import LocalCluster

    return LocalCluster(settings.installation.address("node"), secret=secret)


def hints(settings: Settings, secret: bytes) -> Hints:
    """From the api. On one machine straight to the service, and by the broker where that does not answer; else by the
    broker. InvalidRequest for a broker that Weft does not know.
    """
    from services.core.adapters.celery.broker import FOLDER, Broker
    from services.core.adapters.celery.hints import CeleryHints, DropHints
    from services.core.adapters.rpc.hints import RpcHints

    if settings.hints == "drop":
        return DropHints()
    by_broker = CeleryHints(settings)
    if Broker.of(settings).kind != FOLDER:
        return by_broker
    return RpcHints(settings.installation.address, secret, otherwise=by_broker)


def check_broker(settings: Settings) -> str:
    """What carries the hints, asked there now: InvalidRequest or Unavailable where it cannot."""
    from services.core.adapters.celery.broker import Broker
    from services.core.adapters.celery.check import check_broker

    return check_broker(Broker.of(settings))


def direct_hints(settings: Settings, secret: bytes) -> Hints:
    """From one of the inner services straight to another, wherever they run."""
    from services.core.adapters.celery.hints import DropHints
    from services.core.adapters.rpc.hints import RpcHints

    return DropHints() if settings.hints == "drop" else RpcHints(settings.installation.address, secret)


def telemetry(settings: Settings, secret: bytes) -> Telemetry:
    """What jobs have reported, asked of the metrics service."""
    from services.core.adapters.rpc.telemetry import Telemetry

    return Telemetry(settings.installation.address("metrics"), secret)

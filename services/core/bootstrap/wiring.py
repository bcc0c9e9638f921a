"""Chooses and creates the adapters by the settings. Each service's own ``wiring`` module calls these functions.

Imports are inside the functions, so that a service imports only the adapters that it uses.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.core.domain.errors import InvalidRequest
from services.core.domain.sizes import Size
from services.core.runtime.settings import Settings

if TYPE_CHECKING:
    from services.core.adapters.encrypted import EncryptedSecretStore, MasterKeyFile
    from services.core.adapters.identity import Identity, LearnerTokenSigner, LearnerTokenVerifier, PublicKeys
    from services.core.adapters.rpc.server import Guard
    from services.core.adapters.rpc.telemetry import Telemetry
    from services.core.adapters.s3.bucket import Bucket
    from services.core.bootstrap.operations_access import OperationsAccess
    from services.core.ports.clock import Clock
    from services.core.ports.cluster import Cluster
    from services.core.ports.guardian_launcher import GuardianLauncher
    from services.core.ports.hints import Hints
    from services.core.ports.job_store import JobStore
    from services.core.ports.object_store import ObjectStore
    from services.core.ports.object_urls import ObjectUrls
    from services.core.ports.record_store import RecordStore
    from services.core.ports.secret_store import SecretStore
    from services.core.ports.status_store import StatusStore

SHARED_SECRET = "service"  # noqa: S105 - the name of the secret, not its value
"""Of installations before docs/adr/0015-identities.md; nothing makes it any more. It verifies older learner tokens."""


def clock() -> Clock:
    """Returns the clock of the machine."""
    from services.core.adapters.system_clock import SystemClock

    return SystemClock()


def installation_secrets(settings: Settings) -> SecretStore:
    """Returns the store of the secrets that the services need before any other store: private files in the home."""
    from services.core.adapters.folder.secrets import FolderSecretStore

    return FolderSecretStore(settings.installation / "secrets")


def master_keys(settings: Settings) -> MasterKeyFile:
    """Returns the key file for the secrets in the record store. It is created unless the setting names one."""
    from services.core.adapters.encrypted import MasterKeyFile

    configured = settings.master_key_file
    return MasterKeyFile(configured or settings.installation / "secrets" / "master-key", made_here=configured is None)


async def secret_store(settings: Settings, records: RecordStore) -> EncryptedSecretStore:
    """Returns the store of users' and tenants' secrets: encrypted, in the record store."""
    from services.core.adapters.encrypted import EncryptedSecretStore

    return await EncryptedSecretStore.open(records, master_keys(settings))


def _public_keys(settings: Settings) -> PublicKeys:
    from services.core.adapters.identity import PublicKeys

    return PublicKeys(settings.installation / "secrets" / "public-keys.json")


async def identity(settings: Settings, service: str) -> Identity:
    """Returns the identity of a service. Its key pair is made at the first call, and its public key published."""
    from services.core.adapters.identity import open_identity

    return await open_identity(installation_secrets(settings), _public_keys(settings), service)


async def guard(settings: Settings, identity: Identity, *, services: bool = True, learners: bool = False) -> Guard:
    """Returns what authenticates the calls of a service. ``services``, ``learners``: which callers it may have."""
    from services.core.adapters.identity import LearnerTokenVerifier
    from services.core.adapters.rpc.server import Guard

    verifier = None
    if learners:
        shared = await installation_secrets(settings).get(SHARED_SECRET)
        verifier = LearnerTokenVerifier(identity.keys, shared)
    return Guard(identity.name, identity.verifier() if services else None, verifier)


def learner_token_verifier(identity: Identity) -> LearnerTokenVerifier:
    """Returns what verifies the tokens of learners that a calling service hands on."""
    from services.core.adapters.identity import LearnerTokenVerifier

    return LearnerTokenVerifier(identity.keys)


def operations_access(settings: Settings, service: str) -> OperationsAccess:
    """Returns what authenticates the readers of a service's operations address."""
    from services.core.adapters.identity import ServiceTokenVerifier
    from services.core.bootstrap.operations_access import OperationsAccess

    verifier = ServiceTokenVerifier(_public_keys(settings), service)
    return OperationsAccess(service, installation_secrets(settings), verifier)


async def learner_token_signer(settings: Settings) -> LearnerTokenSigner:
    """Returns what makes learners' tokens. Only the guardian service calls this: no other one has the key."""
    from services.core.adapters.identity.learner_tokens import OVERLAP_MS, OWNER, LearnerTokenSigner
    from services.core.adapters.identity.service import own_key_pair

    pair = await own_key_pair(installation_secrets(settings), OWNER, name=OWNER)
    _public_keys(settings).publish(pair, overlap_ms=OVERLAP_MS)
    return LearnerTokenSigner(pair)


def _uses_mongo(settings: Settings) -> bool:
    if settings.job_store == "sqlite":
        return False
    if settings.job_store.startswith(("mongodb://", "mongodb+srv://")):
        return True
    # The message does not quote the value: a mistyped URI may contain a password.
    raise InvalidRequest("WEFT_JOB_STORE is neither 'sqlite' nor a URI that begins with mongodb:// or mongodb+srv://")


async def job_store(settings: Settings) -> JobStore:
    """Opens the job store. Raises Unavailable, and InvalidRequest for a wrong setting or an unfit MongoDB."""
    if _uses_mongo(settings):
        from services.core.adapters.mongo import MongoJobStore, trusted

        return await MongoJobStore.on(await trusted(settings.job_store))
    from services.core.adapters.sqlite.jobs import SqliteJobStore

    return await SqliteJobStore.open(settings.installation / "jobs.sqlite")


async def check_job_store(settings: Settings) -> None:
    """Checks a MongoDB that is set as job store; no effect on SQLite. Raises as ``job_store``; writes nothing."""
    if _uses_mongo(settings):
        from services.core.adapters.mongo import close, trusted

        await close(await trusted(settings.job_store))


async def record_store(settings: Settings) -> RecordStore:
    """Opens the record store, which is where the job store is. Raises as ``job_store``."""
    if _uses_mongo(settings):
        from services.core.adapters.mongo import MongoRecordStore, trusted

        return await MongoRecordStore.on(await trusted(settings.job_store))
    from services.core.adapters.sqlite.records import SqliteRecordStore

    return await SqliteRecordStore.open(settings.installation / "records.sqlite")


def _bucket(settings: Settings, *, signs: bool = False) -> Bucket | None:
    """Returns the S3 bucket of the settings; None where objects are in a folder. Raises InvalidRequest.

    ``signs``: with the credentials for the URLs of helpers.
    """
    if settings.object_store == "folder":
        return None
    from services.core.adapters.s3.bucket import Credentials, bucket, read_credentials

    credentials_file = (signs and settings.s3_signing_credentials_file) or settings.s3_credentials_file
    if credentials_file is not None:
        credentials = read_credentials(credentials_file)
    else:
        credentials = Credentials(settings.s3_access_key, settings.s3_secret_key, settings.s3_session_token)
    return bucket(
        settings.object_store, endpoint=settings.s3_endpoint, region=settings.s3_region, credentials=credentials
    )


def object_store(settings: Settings) -> ObjectStore:
    """Returns the object store. Its first ``ping`` checks the settings. Raises InvalidRequest for malformed ones."""
    bucket = _bucket(settings)
    if bucket is not None:
        from services.core.adapters.s3.objects import S3ObjectStore

        return S3ObjectStore(bucket)
    from services.core.adapters.folder.objects import FolderObjectStore

    return FolderObjectStore(settings.installation / "objects")


def object_urls(settings: Settings) -> ObjectUrls | None:
    """Returns the signer of URLs for helpers; None where they use the folder. Does no network I/O."""
    bucket = _bucket(settings, signs=True)
    if bucket is None:
        return None
    from services.core.adapters.s3.signing import Signer

    return Signer(bucket)


async def status_store(settings: Settings) -> StatusStore:
    """Returns the status store. Must be called in the event loop that uses it."""
    from services.core.adapters.etcd.store import EtcdStatusStore

    return EtcdStatusStore(settings.installation.address("etcd"))


CLUSTERS: Final = ("local", "kubernetes")


def check_cluster(settings: Settings) -> None:
    """Raises InvalidRequest for an unknown kind of cluster."""
    if settings.cluster not in CLUSTERS:
        kinds = ", ".join(CLUSTERS)
        raise InvalidRequest(f"WEFT_CLUSTER={settings.cluster} is no kind of cluster; there are: {kinds}")


def cluster(settings: Settings, identity: Identity, status: StatusStore) -> Cluster:
    """Returns the cluster. Must be called in the event loop that uses it. Raises InvalidRequest for an unknown one.

    ``status``: where the kubernetes adapter keeps fences and reads helpers' reports.
    """
    check_cluster(settings)
    if settings.cluster == "kubernetes":
        from services.core.bootstrap.kubernetes import kubernetes_cluster

        return kubernetes_cluster(settings, identity, status)
    from services.core.adapters.local.cluster import LocalCluster

    return LocalCluster(settings.installation.address("node"), identity.credential("node"))


def guardian_launcher(settings: Settings) -> GuardianLauncher | None:
    """Returns what starts a Guardian for each job; None if a pool guards them all.

    Raises InvalidRequest for settings that are missing or wrong.
    """
    if settings.cluster != "kubernetes":
        return None
    from services.core.bootstrap import kubernetes

    return kubernetes.guardian_launcher(settings)


def learner_overhead(settings: Settings) -> Size:
    """Returns what each learner takes of its node besides its own size: its helper, where that has its own share."""
    from services.core.runtime.kubernetes_settings import KubernetesSettings

    if settings.cluster != "kubernetes":
        return Size(0, 0, 0)
    kubernetes = KubernetesSettings()
    return Size(0, kubernetes.helper_cpus, kubernetes.helper_memory)


def hints(settings: Settings, identity: Identity) -> Hints:
    """Returns the hints of the api. On one machine they go by direct calls, and by the broker if a service does not
    answer; elsewhere by the broker; with ``WEFT_HINTS=drop`` nowhere. Raises InvalidRequest for an unknown broker.
    """
    from services.core.adapters.celery.broker import FOLDER, Broker
    from services.core.adapters.celery.hints import CeleryHints, DropHints
    from services.core.adapters.rpc.hints import RpcHints

    if settings.hints == "drop":
        return DropHints()
    by_broker = CeleryHints(settings)
    if Broker.of(settings).kind != FOLDER:
        return by_broker
    return RpcHints(settings.installation.address, identity.credential, otherwise=by_broker)


def check_broker(settings: Settings) -> str:
    """Connects to the broker and returns its description. Raises InvalidRequest or Unavailable where it is unfit."""
    from services.core.adapters.celery import check
    from services.core.adapters.celery.broker import Broker

    return check.check_broker(Broker.of(settings))


def deliver_hint(settings: Settings) -> float:
    """Sends a hint through the broker and receives it. Returns the seconds that it took. Raises as ``check_broker``."""
    from services.core.adapters.celery import check
    from services.core.adapters.celery.broker import Broker

    return check.deliver_hint(Broker.of(settings))


def direct_hints(settings: Settings, identity: Identity) -> Hints:
    """Returns the hints that go from one service directly to another over gRPC."""
    from services.core.adapters.celery.hints import DropHints
    from services.core.adapters.rpc.hints import RpcHints

    return DropHints() if settings.hints == "drop" else RpcHints(settings.installation.address, identity.credential)


def telemetry(settings: Settings, identity: Identity) -> Telemetry:
    """Returns the client of the metrics service for what jobs have reported."""
    from services.core.adapters.rpc.telemetry import Telemetry

    return Telemetry(settings.installation.address("metrics"), identity.credential("metrics"))

"""What the use cases work with, wired once at start-up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from services.api.artifacts import Artifacts
from services.api.clients import TelemetryClient
from services.api.code_difference import CodeDifferences
from services.api.data_urls import DataUrls
from services.api.following import Following
from services.api.gpu_use import GpuUses
from services.api.held_hardware import HeldHardware
from services.api.instrumentation import Instrumentation
from services.api.job_watcher import Watcher
from services.api.jobs import Jobs
from services.api.keys import Keys
from services.api.platform import Platform
from services.api.pull_secrets import PullSecrets
from services.api.search_budget import SearchBudget
from services.api.sessions import Sessions
from services.api.settings import ApiSettings
from services.api.storage import Storage, StorageBound
from services.api.submit import Submissions
from services.api.tenant_secrets import TenantSecrets
from services.api.uploads import Uploads
from services.core.frameworks.images import LibraryImages


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    settings: ApiSettings
    keys: Keys
    sessions: Sessions
    secrets: TenantSecrets
    data_urls: DataUrls
    pull_secrets: PullSecrets
    jobs: Jobs
    submissions: Submissions
    uploads: Uploads
    storage_bound: StorageBound
    searches: SearchBudget
    artifacts: Artifacts
    code_differences: CodeDifferences
    telemetry: TelemetryClient
    following: Following
    watcher: Watcher
    platform: Platform
    gpu_uses: GpuUses
    held_hardware: HeldHardware
    storage: Storage
    instrumentation: Instrumentation
    library_images: LibraryImages | None
    """Images of the framework library; None: learners are no pods, or the api has no settings of the cluster."""
    devices: tuple[str, ...] | None
    """Beside GPUs, those that learners may have; None as of ``library_images``."""
    checks: Mapping[str, Callable[[], Awaitable[object]]]
    """What readiness depends on: name of a port -> its ping."""
    stopping: asyncio.Event
    """Set when the service stops; live streams are then cut without an ``end``."""

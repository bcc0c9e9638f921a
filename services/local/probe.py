"""``weft up --cluster kubernetes``: a pod tries images and ways before the first job needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from services.core.bootstrap import wiring
from services.core.bootstrap.kubernetes import probe_cluster
from services.core.ports.object_urls import ObjectRequest
from services.core.runtime.address import TlsFiles
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings
from services.local.pods import LEARNERS

_TENANT: Final = "default"
"""Of the first administrator: its namespace is needed first."""
_NO_OBJECT: Final = "probe/there-is-no-such-object"
Report = Callable[[str], None]


async def probe(home: Home, settings: Settings, report: Report) -> list[dict[str, Any]]:
    """Returns ``[{name, problem, fix}]``: what works, and what keeps jobs from running."""
    signer = wiring.object_urls(settings)
    urls = [] if signer is None else [signer.url(ObjectRequest("get", _NO_OBJECT))]
    authority = TlsFiles.of(home / "tls", LEARNERS).authority
    checks = await probe_cluster(
        tenant=_TENANT, metrics=home.address(LEARNERS).text, authority=authority, urls=urls, report=report
    )
    return [asdict(check) for check in checks]

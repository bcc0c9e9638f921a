"""Which broker carries the hints. Known without importing Celery: services refuse a mistyped URL when they start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.errors import InvalidRequest
from services.core.runtime.settings import Settings

FOLDER, RABBITMQ, REDIS = "folder", "RabbitMQ", "Redis"
_KINDS: Final = {"filesystem": FOLDER, "amqp": RABBITMQ, "redis": REDIS}
"""Scheme of the URL -> what answers there."""
QUEUE_AT_MOST: Final = 1000
"""Hints that wait for a worker; those beyond are dropped. The sweeps find what they were about."""


@dataclass(frozen=True, slots=True)
class Broker:
    url: str
    """``filesystem://``, ``amqp://...``, ``redis://...``."""
    folder: Path
    """Of the filesystem transport."""

    @classmethod
    def of(cls, settings: Settings) -> Broker:
        """InvalidRequest for a URL of another kind."""
        broker = cls(settings.broker_url, settings.installation / "broker")
        _ = broker.kind
        return broker

    @property
    def kind(self) -> str:
        scheme, separator, _ = self.url.partition("://")
        if not separator or scheme not in _KINDS:
            # Without what it is: a mistyped URL may hold a password.
            raise InvalidRequest("WEFT_BROKER_URL begins neither with filesystem:// nor with amqp:// or redis://")
        return _KINDS[scheme]

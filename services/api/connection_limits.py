"""The bounds on connections of clients, for REST and for gRPC: each listener counts its own."""

from __future__ import annotations

from functools import partial
from typing import Final

from services.api.instrumentation import Instrumentation
from services.api.settings import ApiSettings
from services.core.runtime.connections import Connections, affordable

_COSTS: Final = {"rest": (1, 0.25), "grpc": (3, 0.5)}
"""Listener -> (open files of a connection, its share of the files that the process may open). gRPC: both ends of the
relay, and gRPC's own. The rest is for stores and uploads."""


def connections(listener: str, settings: ApiSettings, instrumentation: Instrumentation) -> Connections:
    """``listener``: rest | grpc."""
    descriptors, share = _COSTS[listener]
    counted = Connections(
        most=affordable(settings.max_connections, descriptors=descriptors, share=share),
        most_of_client=settings.max_client_connections,
        count_refused=lambda why: instrumentation.connections_refused.labels(listener, why).inc(),
    )
    instrumentation.connections.labels(listener).set_function(partial(len, counted))
    return counted

"""The table of permitted calls between services, which every server checks, and the names of the services.

A call is allowed if the table names its caller for the called service and its gRPC service. What is not in the table is
refused, so a new call needs a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SERVICES: Final = frozenset({"api", "lcm", "guardian", "metrics", "node", "worker"})
"""Those with an identity of their own."""

LEARNER_SERVICES: Final = frozenset({"weft.v1.Intake"})
"""gRPC services that only learners' helpers may call."""

# The same for the operations addresses (HTTP), besides the first administrator's key.
_OPERATIONS: Final[Mapping[str, frozenset[str]]] = {"weft.v1.Operations": frozenset({"api"})}

CALLERS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    # The metrics service hands on the token of the learner for which it calls.
    "api": {
        **_OPERATIONS,
        "weft.v1.DataUrls": frozenset({"metrics"}),
        "weft.v1.PullSecrets": frozenset({"guardian"}),
    },
    "worker": {**_OPERATIONS},
    "lcm": {
        **_OPERATIONS,
        "weft.v1.Control": frozenset({"api", "guardian", "worker"}),
        "weft.v1.Queue": frozenset({"api"}),
    },
    "guardian": {**_OPERATIONS, "weft.v1.Control": frozenset({"api", "lcm", "worker"})},
    # The shards of the metrics service call one another.
    "metrics": {
        "weft.v1.Operations": frozenset({"api", "metrics"}),
        "weft.v1.Telemetry": frozenset({"api", "guardian", "lcm", "metrics"}),
        "weft.v1.Shard": frozenset({"metrics"}),
    },
    "node": {**_OPERATIONS, "weft.v1.Node": frozenset({"lcm", "guardian"})},
}
"""Called service -> its gRPC service -> the services that may call it."""


def may_call(caller: str, server: str, grpc_service: str) -> bool:
    """Whether the service ``caller`` may call ``grpc_service`` (``weft.v1.Queue``) of the service ``server``."""
    return caller in CALLERS.get(server, {}).get(grpc_service, frozenset())

"""The scheduling policies by name (WEFT_POLICY). To add one: a module beside this one, and its line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.domain.errors import InvalidRequest
from services.lcm.scheduling.fifo import FifoWalk
from services.lcm.scheduling.policy import Policy

POLICIES: Final[Mapping[str, Policy]] = {"fifo": FifoWalk}


def find_policy(name: str) -> Policy:
    """The policy of this name. Raises InvalidRequest with the names that exist."""
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidRequest(f"WEFT_POLICY={name} is no scheduling policy; there are: {', '.join(sorted(POLICIES))}")
    return policy

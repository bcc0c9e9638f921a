"""What the tests of any cluster are given."""

from __future__ import annotations

from dataclasses import dataclass

from tests.testbed.kubernetes.kubectl import Kubectl


@dataclass(frozen=True)
class Access:
    kubectl: Kubectl
    image: str
    """With busybox's commands; the nodes have it, or can pull it."""

"""Outages: faults of the platform, of a machine or of a store, and used-up quotas, for which no job is to blame. Pure.

A helper or a cluster names one of them as the reason why an attempt could not start. Such an attempt counts against no
budget of the job, and never makes it FAILED: the job is queued again and tried with a growing pause until the outage
ends. A new reason of this kind is one line here and one line of advice in ``weft explain``.
"""

from __future__ import annotations

from enum import StrEnum


class Outage(StrEnum):
    """The reason of an attempt that an outage ended. Users see it; a value never changes its meaning."""

    NO_SPACE = "NoSpace"
    """A disk of the machine or of a store is full."""
    INDEX_UNAVAILABLE = "PackageIndexUnavailable"
    """The package index did not answer, or answered with a server's error."""
    DATA_STORE_UNAVAILABLE = "DataStoreUnavailable"
    """A data store did not answer, or answered with a server's error."""
    OBJECT_STORE_UNAVAILABLE = "ObjectStoreUnavailable"
    """The folder of the object store is missing: it is not mounted."""
    SECRETS_UNAVAILABLE = "SecretsUnavailable"
    """The api, which alone can read tenants' secrets, or its store did not answer."""
    QUOTA_IN_USE = "QuotaInUse"
    """The quota of its tenant in the cluster is used up, and other jobs of the tenant hold hardware."""
    MACHINE_FAULT = "MachineFault"
    """The machine could not do what it normally can: an I/O error, no memory, no free descriptor."""


_REASONS = frozenset(Outage)


def is_outage(reason: str) -> bool:
    """Whether this reason of an attempt's end names an outage."""
    return reason in _REASONS

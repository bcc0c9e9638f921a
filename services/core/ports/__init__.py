"""Protocols of what the use cases need: stores, the cluster, hints, a clock. Adapters implement them.

Every adapter of a port passes the port's contract suite (tests/contract). Methods raise only errors of
``services.core.domain.errors``: Unavailable where the backing service does not answer, and those that their docstrings
name. A write that raised Unavailable may have happened. Times are Unix milliseconds unless a docstring says otherwise.
"""

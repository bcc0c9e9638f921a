"""A Kubernetes cluster on this machine for tests: a real control plane, real nodes, simulated nodes.

    with cluster(nodes=2) as running:
        running.kubectl("get", "nodes")

It runs in namespaces of its own (``machine``) and ends without a trace, also after a kill -9 of its owner. Its programs
are built from pinned modules (``modules``, ``programs``). docs/limits.md says what is not real about it.
"""

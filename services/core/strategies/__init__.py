"""Which distribution strategy renders which environment: one module for each ``distribution`` of the job spec.

The Guardian renders each learner's variables here, once, for every cluster. Everything is a pure function of the plan.
What only the cluster knows is a placeholder (``services.core.domain.plan.PartKind``), which its adapter fills.

To add a strategy, write a module with ``common`` and ``own`` (see ``services.core.strategies.registry.Strategy``) and
add its name to ``RUNNABLE_DISTRIBUTIONS`` in services/core/domain/spec.py.
"""

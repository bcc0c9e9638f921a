"""The services of Weft."""

import gc
import os

GC_THRESHOLDS = gc.get_threshold()
"""Python's own. A process that runs for long restores them after its start (core/runtime/garbage_collection.py)."""

# gRPC's core writes lines of its own form on stderr when all is well ("Got goaway"), amid our JSON. It decides whether
# to when it is imported, so it has to be told before. Set GRPC_VERBOSITY to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Imports make many objects and hardly any garbage: with Python's own thresholds, collections take a noticeable part of
# the processor time of a service's start.
gc.set_threshold(50_000, 20, 20)

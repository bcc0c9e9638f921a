"""The services of Weft."""

import gc
import os

GC_THRESHOLDS = gc.get_threshold()
"""Python's own. A process that runs for long restores them after its start (core/runtime/garbage_collection.py)."""

# gRPC's core reads these when it is imported, so they are set before.
# It writes lines of its own form on stderr when all is well ("Got goaway"), amid our JSON. Set GRPC_VERBOSITY to see
# them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# In a fork, its threads would go on beside the code that starts the program. This ended programs of another user, such
# as uv, by SIGSEGV before they had begun. No fork of ours calls gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Its event engine has four threads, which wake up about ten times after each message. Without it one thread serves all
# connections of a process: half as many wake-ups, and a quarter less processor time for each call.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# Imports make many objects and hardly any garbage: with Python's own thresholds, collections take a noticeable part of
# the processor time of a service's start.
gc.set_threshold(50_000, 20, 20)

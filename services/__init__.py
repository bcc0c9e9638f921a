"""The services of Weft."""

import gc
import os

# gRPC's core writes lines of its own form on stderr when all is well ("Got goaway"), amid our JSON. It decides whether
# to when it is imported, so it has to be told before. Set GRPC_VERBOSITY to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Imports make many objects and hardly any garbage. Python would look for it after every 700 new objects, which is a
# noticeable part of a service's start. A service that has started does so again (core/bootstrap/service.py).
gc.set_threshold(50_000, 20, 20)

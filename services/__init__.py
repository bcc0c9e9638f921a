"""The services of Weft."""

import os

# gRPC's core writes lines of its own form on stderr when all is well ("Got goaway"), amid our JSON. It decides whether
# to when it is imported, so it has to be told before. Set GRPC_VERBOSITY to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

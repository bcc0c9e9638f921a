"""The gRPC entry point: the same use cases as REST, on a port of its own."""

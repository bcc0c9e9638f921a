"""The gRPC door: the same actions as REST's, on a port of its own."""

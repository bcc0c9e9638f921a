"""gRPC between the services: one way to serve, one way to call, errors of the one table on both sides."""

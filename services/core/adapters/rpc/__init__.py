"""gRPC between the services: one server, one client, and WeftErrors on both sides."""

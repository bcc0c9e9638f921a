"""The gRPC services: intake for helpers, telemetry for the other services."""

"""The service's two gRPC faces: what helpers say (intake) and what the other services read (telemetry)."""

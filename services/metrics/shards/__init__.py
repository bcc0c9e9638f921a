"""Several metrics services, each with the jobs of its shard (docs/adr/0026-shards-of-the-metrics-service.md)."""

"""The Cluster adapter for Kubernetes: learners as pods (docs/adr/0019-learners-as-pods.md)."""

"""Volumes for tests: a folder of each node, as an operator makes one for a tenant."""

from __future__ import annotations

from typing import Any


def claimed(name: str, folder: str, namespace: str, *, mode: str = "ReadOnlyMany") -> list[dict[str, Any]]:
    """A volume of a folder of each node, and its claim in the tenant's namespace. ``mode``: its access mode."""
    fields = {"accessModes": [mode], "storageClassName": "", "volumeMode": "Filesystem"}
    size, metadata = {"storage": "1Gi"}, {"name": name}
    claim_ref = {"namespace": namespace, "name": name}
    volume = {**fields, "capacity": size, "hostPath": {"path": folder, "type": "Directory"}, "claimRef": claim_ref}
    claim = {**fields, "volumeName": name, "resources": {"requests": size}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
    ]

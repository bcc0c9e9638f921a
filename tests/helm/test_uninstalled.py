"""What `helm uninstall` leaves. The last file of the folder: its tests need the installation no more."""

from __future__ import annotations

from contextlib import suppress

from tests.helm.installation import RELEASE, Installation
from tests.waiting import eventually

_OF_THE_CLUSTER = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"


def test_uninstall_keeps_volumes_keys_and_learners_namespaces_and_nothing_else(installed: Installation) -> None:
    named = installed.kubectl("api-resources", "--namespaced", "--verbs=list,delete", "--output=name").split()
    kinds = ",".join(name for name in named if not name.startswith("events"))
    before = installed.made_secrets()
    installed.helm("uninstall", RELEASE, "--wait", "--timeout=5m")
    stores = ("etcd-0", "metrics-0", "metrics-1", "mongodb-0", "rabbitmq-0", "s3-0")
    kept = [f"PersistentVolumeClaim data-weft-{store}" for store in stores]
    kept += [f"Secret {name}" for name in before] + ["Pod weft-test-training"]
    with suppress(AssertionError):  # pods and their endpoints end a little later
        eventually(lambda: installed.objects(kinds) == sorted(kept))
    assert installed.objects(kinds) == sorted(kept)
    assert installed.objects(_OF_THE_CLUSTER) == []
    installed.kubectl("get", "namespace", "weft-tenant-default")

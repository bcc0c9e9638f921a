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
    kept = [f"PersistentVolumeClaim data-weft-{store}-0" for store in ("etcd", "metrics", "mongodb", "rabbitmq", "s3")]
    kept += [f"Secret {name}" for name in before] + ["Pod weft-test-training"]
    with suppress(AssertionError):  # pods and their endpoints end a little later
        eventually(lambda: installed.objects(kinds) == sorted(kept))
    assert installed.objects(kinds) == sorted(kept)
    assert installed.objects(_OF_THE_CLUSTER) == []
    installed.kubectl("get", "namespace", "weft-tenant-default")

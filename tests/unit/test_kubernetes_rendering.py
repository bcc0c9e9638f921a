"""What the Kubernetes adapter renders: properties of every object of every plan, without a cluster."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.adapters.kubernetes import (
    entry_scripts,
    manifests,
    names,
    objects,
    pod_rules,
    pods,
    reasons,
    tenants,
)
from services.core.adapters.kubernetes.observed import Context, is_gated, observe
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.pod_rules import is_allowed_image
from services.core.bootstrap import kubernetes
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, Input, Output
from services.core.domain.spec import RUNNABLE_DISTRIBUTIONS
from services.core.formats import stored_plan
from services.core.frameworks import find
from services.core.frameworks.images import LibraryImages
from services.core.runtime import pod_layout as layout
from services.core.runtime.kubernetes_settings import HELPER_SETTINGS, KubernetesSettings
from services.core.strategies.registry import with_variables
from services.helper.settings import HelperSettings, load_settings
from tests.documents import a_learner, a_plan

Document = Mapping[str, Any]
OPTIONS = KubernetesOptions(
    helper_image="registry.example/helper:1",
    learner_image="registry.example/learner:1",
    entry_script="#!/bin/sh\n",
    addresses={"metrics": "tls:10.0.0.1:7001"},
    authority="PEM",
    library_images=LibraryImages(named={"jax-0.10": "registry.example/jax:1"}),
    priority_classes={"high": "weft-high"},
    runtime_class="gvisor",
    scheduler="weft-pack",
    schedulers={"spread": "weft-spread"},
)
IN_KUEUE = replace(OPTIONS, gang=GangMethod.KUEUE, kueue_queue="training")
TENANTS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=63)
UID = "3f1c"


def plan(tenant: str = "acme", learners: int = 3, gpus: float = 1, **fields: Any) -> AttemptPlan:
    gang = tuple(
        a_learner(
            f"worker-{rank}",
            command="train $(HOME) $X",
            cpus=1.5,
            memory=2**30,
            gpus=gpus,
            node=f"node-{rank}",
            token=f"token-of-{rank}",
            gpu_type="a100",
            shm=2**28,
            env={"MINE": "$(WEFT_RANK) $$ ä"},
        )
        for rank in range(learners)
    )
    given_fields: dict[str, Any] = {"distribution": "torchrun", **fields}
    return with_variables(
        a_plan(
            *gang,
            job="j01m81m6wwmrnwpzxnhp31z",
            tenant=tenant,
            attempt=2,
            term=5,
            grace=30_000,
            store_timeout=60_000,
            **given_fields,
        )
    )


def all_documents(attempt: AttemptPlan, options: KubernetesOptions = OPTIONS) -> list[dict[str, Any]]:
    """The owner first."""
    rest = [*objects.owned(attempt, options, UID), objects.pod_group(attempt, options, UID)]
    learners = [pods.pod(attempt, learner, options, UID, gang=GangMethod.NATIVE) for learner in attempt.learners]
    return [objects.owner(attempt, options), *rest, *learners]


def texts(document: object) -> Iterator[str]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from (str(key), *texts(value))
    elif isinstance(document, list):
        for value in document:
            yield from texts(value)
    else:
        yield str(document)


@given(tenant=TENANTS, learners=st.integers(1, 4), distribution=st.sampled_from(sorted(RUNNABLE_DISTRIBUTIONS)))
def test_every_object_is_labelled_and_belongs_to_the_owner(tenant: str, learners: int, distribution: str) -> None:
    attempt = plan(tenant, learners, distribution=distribution)
    owner, *rest = all_documents(attempt)
    assert owner["kind"] == "ConfigMap"
    assert "ownerReferences" not in owner["metadata"]
    for document in (owner, *rest):
        labels, metadata = document["metadata"]["labels"], document["metadata"]
        assert labels.items() >= names.attempt_labels(attempt, "weft").items()
        assert (labels[names.JOB], labels[names.ATTEMPT], labels[names.MANAGED_BY]) == (attempt.job, "2", "weft")
        assert all(len(value) <= 63 for value in labels.values())
        assert metadata["namespace"] == names.namespace_of(tenant, "weft-")
        assert names.is_of_tenant(document, "weft-")
        assert metadata["name"].startswith(owner["metadata"]["name"])
    owners = [document["metadata"]["ownerReferences"] for document in rest]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": UID}
    assert owners == [[reference]] * len(rest)


def test_tokens_are_in_the_secret_only_and_a_pod_mounts_its_own() -> None:
    attempt = plan()
    for document in all_documents(attempt):
        encoded = [base64.b64encode(f"token-of-{rank}".encode()).decode() for rank in range(3)]
        everything = "\n".join(texts(document))
        assert "token-of" not in everything
        assert any(text in everything for text in encoded) == (document["kind"] == "Secret")
    for learner in attempt.learners:
        pod = pods.pod(attempt, learner, OPTIONS, UID, gang=GangMethod.GATES)
        (token,) = (volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume)
        assert token["items"] == [{"key": learner.name, "path": "token"}]
        mounted = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounted == {"control", "runs", "entry", "job", "tmp", "shm"}


def test_learner_has_one_folder_of_the_jobs_volume_and_its_helper_has_it_at_the_same_path_and_all_of_it() -> None:
    attempt = plan()
    spec = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)["spec"]
    (helper,), (learner,) = (
        [[mount for mount in container["volumeMounts"] if mount["name"] == "job"] for container in spec[kind]]
        for kind in ("initContainers", "containers")
    )
    folder = {"name": "job", "mountPath": "/weft/job", "subPath": "job"}
    assert learner == [folder]
    # The kubelet makes a container's folders before it starts it, and the helper's container before the learner's.
    assert helper == [folder, {"name": "job", "mountPath": "/weft/job-volume"}]


@pytest.mark.parametrize("gpus", [0, 2])
def test_every_pod_is_restricted_inert_and_guaranteed_its_resources(gpus: int) -> None:
    attempt = plan(gpus=gpus)
    pod = pods.pod(attempt, attempt.learners[1], OPTIONS, UID, gang=GangMethod.GATES)
    spec = pod["spec"]
    assert spec["schedulingGates"] == [{"name": "weft.dev/gang"}]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"], spec["restartPolicy"]) == (
        False,
        False,
        "Never",
    )
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] >= OPTIONS.uid_first
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert not {"privileged", "hostPort"} & {*texts(container)}
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"configMap", "secret", "emptyDir"}
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "1500m", "memory": str(2**30)} | ({"nvidia.com/gpu": "2"} if gpus else {})
    assert spec["terminationGracePeriodSeconds"] > 90


def test_devices_are_limits_of_the_learner_alone_and_its_pod_says_what_it_holds() -> None:
    options = replace(OPTIONS, devices=("rdma/hca",))
    attempt = plan()
    learner = replace(attempt.learners[0], devices={"rdma/hca": 2})
    pod = pods.pod(attempt, learner, options, UID, gang=GangMethod.GATES)
    pod_rules.check(pod, options)
    (helper,), (container,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == container["resources"]["requests"]["rdma/hca"] == "2"
    assert {*helper["resources"]["limits"]} == {"cpu", "memory"}
    observed = observe(pod, Context(now=1))
    assert (observed.devices, observed.gpus) == ((("rdma/hca", 2),), 1)
    with pytest.raises(InvalidRequest, match=r"gives no rdma/hca to learners; devices here: example.org/fpga"):
        pods.pod(attempt, learner, replace(OPTIONS, devices=("example.org/fpga",)), UID, gang=GangMethod.GATES)


def test_claim_for_results_is_mounted_by_the_helper_alone_and_read_only_where_it_is_an_input_too() -> None:
    attempt = plan(
        inputs=tuple(Input(mount=name, type="pvc", location=name) for name in ("both", "set")),
        output=Output(type="pvc", location="both", path="results"),
    )
    pod = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)
    pod_rules.check(pod, OPTIONS)
    claims = {
        entry["name"]: entry["persistentVolumeClaim"]
        for entry in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in entry
    }
    assert claims == {"results": {"claimName": "both"}, "data-1": {"claimName": "set", "readOnly": True}}
    (helper,), (learner,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    inputs = [
        {"name": "results", "mountPath": "/weft/volumes/both", "readOnly": True},
        {"name": "data-1", "mountPath": "/weft/volumes/set", "readOnly": True},
    ]
    assert [mount for mount in learner["volumeMounts"] if mount["name"] in claims] == inputs
    writable = {"name": "results", "mountPath": "/weft/results"}
    assert [mount for mount in helper["volumeMounts"] if mount["name"] in claims] == [*inputs, writable]
    assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    stored = stored_plan.read(json.loads(objects.owner(attempt, OPTIONS)["data"]["plan.json"]), "worker-0")
    assert stored.plan.output == attempt.output


def test_gpus_are_no_devices_of_the_operators_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KUBERNETES_DEVICES", '["rdma/hca"]')
    assert kubernetes._options(KubernetesSettings(), "h").devices == ("rdma/hca",)
    for wrong, why in (("nvidia.com/gpu", "counts the GPUs"), ("hca", "String should match"), ("r/a'b", "match")):
        monkeypatch.setenv("WEFT_KUBERNETES_DEVICES", json.dumps([wrong]))
        with pytest.raises(InvalidRequest, match=why):
            KubernetesSettings()


def test_helper_is_a_native_sidecar_and_the_learner_starts_with_the_entry_script() -> None:
    attempt = plan()
    pod = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)
    (helper,), (learner,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert (helper["name"], helper["restartPolicy"], helper["image"]) == ("helper", "Always", OPTIONS.helper_image)
    assert (learner["command"], learner["image"]) == (["/bin/sh", "/weft/entry/entry.sh"], OPTIONS.learner_image)
    read_only = {mount["mountPath"] for mount in learner["volumeMounts"] if mount.get("readOnly")}
    assert read_only == {layout.CONTROL, layout.ENTRY}


def test_learner_cannot_fill_the_nodes_disk_beside_its_volumes() -> None:
    attempt = plan()
    spec = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (learner,) = spec["containers"]
    places = {mount["mountPath"]: mount["name"] for mount in learner["volumeMounts"]}
    assert places["/tmp"] == places["/var/tmp"] == "tmp"


def test_kubelet_does_not_expand_what_the_user_has_written() -> None:
    attempt = plan()
    pod = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)
    variables = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert variables["MINE"] == "$$(WEFT_RANK) $$$$ ä"
    assert variables[layout.COMMAND_VARIABLE] == "train $$(HOME) $$X"


def test_file_of_a_learner_is_bounded_by_its_volumes_and_its_memory() -> None:
    """Also one on no volume: the file of the termination message, by which a learner could fill its node's disk."""
    attempt = plan()
    options = replace(OPTIONS, scratch=2**30)
    small, large = replace(attempt.learners[0], memory=2**28), replace(attempt.learners[0], memory=2**28, shm=2**33)
    bounds = [int(pods.environment(attempt, learner, options)["WEFT_POD_FILE_BYTES"]) for learner in (small, large)]
    assert bounds == [2**31, 2**34]


def test_learners_reach_each_other_by_stable_names_at_one_port() -> None:
    attempt = plan()
    environment = pods.environment(attempt, attempt.learners[2], OPTIONS)
    service = objects.service(attempt, OPTIONS)["metadata"]["name"]
    assert environment["MASTER_ADDR"] == f"worker-0.{service}"
    assert (environment["MASTER_PORT"], environment["RANK"]) == ("29500", "2")
    assert (environment["RESULT_DIR"], environment["JOB_STATE_DIR"]) == ("/weft/job/results", "/weft/job")
    pod = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("worker-0", service)
    assert len(service) <= 63


def test_owner_holds_the_plan_that_the_helper_reads() -> None:
    attempt = plan()
    files = objects.owner(attempt, OPTIONS)["data"]
    assert {*files} == {"plan.json", "addresses.json", "authority.pem"}
    stored = stored_plan.read(json.loads(files["plan.json"]), "worker-1")
    assert stored.learner == replace(attempt.learners[1], token="", node="")
    assert json.loads(files["addresses.json"]) == {"metrics": "tls:10.0.0.1:7001"}


def test_all_pods_of_a_tenant_mount_the_same_immutable_entry_script() -> None:
    script = entry_scripts.config_map("t", OPTIONS)
    for attempt in (plan(), replace(plan(), job="j01m81m6wwmrnwpzxnhp320", attempt=7)):
        pod = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)
        (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "entry")
        assert volume["configMap"]["name"] == script["metadata"]["name"]
        assert volume["configMap"]["items"] == [{"key": "entry.sh", "path": "entry.sh"}]
        assert pod["spec"]["containers"][0]["command"] == ["/bin/sh", "/weft/entry/entry.sh"]
    assert (script["data"], script["immutable"]) == ({"entry.sh": OPTIONS.entry_script}, True)
    assert names.is_of_tenant(script, "weft-")
    later = replace(OPTIONS, entry_script=OPTIONS.entry_script + "# of the next version")
    assert entry_scripts.name_of(later) != entry_scripts.name_of(OPTIONS)


def test_helpers_in_pods_have_the_operators_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_HTTP_ALLOW", "10.0.0.0/8,$(HOME)")
    monkeypatch.setenv("WEFT_KUBERNETES_HELPER_IMAGE", "h")
    monkeypatch.setenv("WEFT_METRICS_OPEN_JOBS", "5")
    options = kubernetes._options(KubernetesSettings(), "h")
    pod = pods.pod(plan(), plan().learners[0], options, UID, gang=GangMethod.GATES)
    (helper,) = pod["spec"]["initContainers"]
    variables = {entry["name"]: entry["value"] for entry in helper["env"]}
    assert variables["WEFT_HTTP_ALLOW"] == "10.0.0.0/8,$$(HOME)", "the kubelet does not expand it"
    assert "WEFT_METRICS_OPEN_JOBS" not in variables
    assert [name for name in HELPER_SETTINGS if load_settings({name: "7"}) == HelperSettings()] == []


def test_activation_applies_to_the_state_that_was_seen_only() -> None:
    attempt = plan()
    present = inert_pod()
    native = pods.activation(present, attempt.learners[0], OPTIONS, gang=GangMethod.NATIVE)
    state = {"uid": "u", "resourceVersion": "7", "managedFields": [{}]}
    assert native == {"metadata": state, "spec": {"schedulingGates": None}}
    gates = pods.activation(present, attempt.learners[0], OPTIONS, gang=GangMethod.GATES)
    (term,) = gates["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]
    assert term["matchExpressions"] == [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["a100"]}]


def test_native_gang_needs_all_learners_and_is_named_by_every_pod() -> None:
    attempt = plan(learners=4)
    group = objects.pod_group(attempt, OPTIONS, UID)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    pod = pods.pod(attempt, attempt.learners[3], OPTIONS, UID, gang=GangMethod.NATIVE)
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}


def inert_pod(*gates: str) -> dict[str, Any]:
    """As the API server returns it. ``gates``: those that a webhook has added."""
    scheduling = [{"name": name} for name in (layout.SCHEDULING_GATE, *gates)]
    return {"metadata": {"uid": "u", "resourceVersion": "7", "name": "x"}, "spec": {"schedulingGates": scheduling}}


def test_gang_for_kueue_is_a_group_of_plain_pods_in_the_operators_queue() -> None:
    """The form of https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods."""
    attempt = plan(learners=4)
    rendered = [pods.pod(attempt, learner, IN_KUEUE, UID, gang=GangMethod.KUEUE) for learner in attempt.learners]
    for pod in rendered:
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "weft-j01m81m6wwmrnwpzxnhp31z-2"
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "4"
        assert "schedulingGroup" not in pod["spec"]
        assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["spec"]["affinity"]["nodeAffinity"]
    plain = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)["metadata"]
    assert [name for name in (*plain["labels"], *plain["annotations"]) if "kueue" in name] == []


def test_activated_pod_waits_behind_the_gate_of_kueue_and_says_so() -> None:
    pod = inert_pod(names.KUEUE_SCHEDULING_GATE)
    assert is_gated(pod)
    lifted = pods.activation(pod, plan().learners[0], IN_KUEUE, gang=GangMethod.KUEUE)["spec"]
    assert lifted == {"schedulingGates": [{"name": names.KUEUE_SCHEDULING_GATE}]}
    waiting = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
    activated = {**pod, "spec": lifted, "status": waiting}
    assert not is_gated(activated)
    problem = reasons.not_started(activated)
    assert problem is not None
    assert (problem.reason, problem.text) == ("Unschedulable", "Kueue has not admitted the gang")


def test_admission_policies_permit_the_gate_and_finalizer_of_kueue_only_where_it_is_chosen() -> None:
    accounts = manifests.Accounts.of("weft", "weft")
    for options, permitted in ((OPTIONS, "false"), (IN_KUEUE, "true")):
        text = manifests.text(manifests.POLICIES, manifests.values(options, accounts))
        assert f'{permitted} && name == "kueue.x-k8s.io/managed"' in text
        assert f'{permitted} && name == "kueue.x-k8s.io/admission"' in text


def test_operators_choices_reach_every_pod() -> None:
    attempt = plan(priority="high", framework="jax-0.10.2")
    spec = pods.pod(attempt, attempt.learners[0], OPTIONS, UID, gang=GangMethod.GATES)["spec"]
    assert (spec["runtimeClassName"], spec["schedulerName"], spec["priorityClassName"]) == (
        "gvisor",
        "weft-pack",
        "weft-high",
    )
    assert spec["containers"][0]["image"] == "registry.example/jax:1"
    apart = plan(placement="spread")
    spread = pods.pod(apart, apart.learners[0], OPTIONS, UID, gang=GangMethod.NATIVE)["spec"]
    assert spread["schedulerName"] == "weft-spread"
    assert pods.image_of(plan(image="mine:2"), OPTIONS) == "mine:2"


def test_learners_images_are_pulled_with_the_operators_secrets() -> None:
    settings = KubernetesSettings(pull_secrets=("team-registry",))
    options = replace(OPTIONS, pull_secret='{"auths": {"r": {}}}', pull_secrets=settings.pull_secrets)
    attempt = plan()
    pod = pods.pod(attempt, attempt.learners[0], options, UID, gang=GangMethod.GATES)
    assert pod["spec"]["imagePullSecrets"] == [{"name": "weft-pull"}, {"name": "team-registry"}]
    pod_rules.check(pod, options)
    own = {entry["metadata"]["name"] for entry in tenants.contents("acme", options) if entry["kind"] == "Secret"}
    assert own == {"weft-pull"}  # the operator keeps the others
    unknown = replace(options, pull_secrets=())
    assert "spec.imagePullSecrets" in pod_rules.violations(pod, unknown)


def test_image_is_pulled_with_the_tenants_own_secret_beside_the_operators_and_no_pod_mounts_it() -> None:
    attempt = plan(image="mine:2", image_pull_secret="registry")
    name = "weft-j01m81m6wwmrnwpzxnhp31z-2-pull"
    for options, others in ((OPTIONS, []), (replace(OPTIONS, pull_secret="{}"), [{"name": "weft-pull"}])):
        pod = pods.pod(attempt, attempt.learners[0], options, UID, gang=GangMethod.GATES)
        assert pod["spec"]["imagePullSecrets"] == [{"name": name}, *others]
        assert name not in str(pod["spec"]["volumes"])
        assert pod["metadata"]["annotations"]["weft.dev/image-pull-secret"] == "registry"
        pod_rules.check(pod, options)
    secret = objects.pull_secret(attempt, OPTIONS, UID, '{"auths": {}}')
    assert (secret["metadata"]["name"], secret["type"]) == (name, "kubernetes.io/dockerconfigjson")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == UID
    assert base64.b64decode(secret["data"][".dockerconfigjson"]) == b'{"auths": {}}'
    assert objects.owner(attempt, OPTIONS)["metadata"]["annotations"]["weft.dev/image-pull-secret"] == "registry"


def test_name_that_no_secret_has_is_refused_in_the_settings() -> None:
    with pytest.raises(InvalidRequest, match="PULL_SECRETS"):
        KubernetesSettings(pull_secrets=("Team_Registry",))


def test_what_this_cluster_cannot_run_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="no image of tensorflow-2; name one with `image:`"):
        pods.image_of(plan(framework="tensorflow-2"), OPTIONS)
    shared = plan(gpus=0.5)
    with pytest.raises(InvalidRequest, match="whole GPUs only; write gpus: 1"):
        pods.pod(shared, shared.learners[0], OPTIONS, UID, gang=GangMethod.GATES)


def test_library_entry_runs_in_its_own_image_and_admission_policies_allow_it() -> None:
    options = replace(OPTIONS, library_images=LibraryImages(registry="registry.example/t"), images=("only.example/",))
    numpy = find("numpy")
    assert numpy is not None
    attempt = plan(framework=f"numpy-{numpy.version}")
    image = f"registry.example/t/weft/numpy:{numpy.version}-{numpy.lock_digest[7:15]}"
    assert (
        pods.pod(attempt, attempt.learners[0], options, UID, gang=GangMethod.GATES)["spec"]["containers"][0]["image"]
        == image
    )
    assert is_allowed_image(image, options)
    allowed = manifests.values(options, manifests.Accounts.of("weft", "weft", one_account=True))["images"]
    assert image.startswith(tuple(json.loads(allowed)))
    other = "registry.example/t/other:1"
    assert not is_allowed_image(other, options)
    assert not other.startswith(tuple(json.loads(allowed)))


def test_network_policy_closes_the_clouds_metadata_services() -> None:
    spec = objects.network_policy(plan(), OPTIONS)["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    blocks = [entry["ipBlock"] for entry in spec["egress"][-1]["to"]]
    assert {block["cidr"]: block["except"] for block in blocks} == {
        "0.0.0.0/0": ["169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32"],
        "::/0": ["fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128"],
    }
    (ingress,) = spec["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": names.gang_selector(plan())}}]


def test_operator_who_allows_no_network_leaves_learners_their_gang_and_dns_only() -> None:
    """An empty list opened all networks: an empty "to" of a NetworkPolicy matches every destination."""
    egress = objects.network_policy(plan(), replace(OPTIONS, egress=()))["spec"]["egress"]
    assert [entry["to"] for entry in egress] == [
        [{"podSelector": {"matchLabels": names.gang_selector(plan())}}],
        [{"namespaceSelector": {}}],
    ]


@pytest.mark.parametrize(
    ("network", "left_out"),
    [
        ("128.0.0.0/1", ["169.254.0.0/16", "168.63.129.16/32"]),
        ("168.0.0.0/6", ["169.254.0.0/16", "168.63.129.16/32"]),
        ("100.64.0.0/10", ["100.100.100.200/32"]),
        ("fd00::/8", ["fd00:ec2::254/128", "fd20:ce::254/128"]),
        ("10.0.0.0/8", None),
        ("169.254.20.10/32", None),  # the node's cache of names
        ("fe80::/10", None),
        ("no network", None),
    ],
)
def test_metadata_services_are_left_out_of_every_larger_network_of_the_operator(
    network: str, left_out: list[str] | None
) -> None:
    """Only "0.0.0.0/0" and "::/0" were without them."""
    policy = objects.network_policy(plan(), replace(OPTIONS, egress=(network,)))
    (block,) = policy["spec"]["egress"][-1]["to"]
    assert (block["ipBlock"]["cidr"], block["ipBlock"].get("except")) == (network, left_out)


@given(first=TENANTS, second=TENANTS)
def test_tenants_have_namespaces_of_their_own(first: str, second: str) -> None:
    spaces = [names.namespace_of(tenant, "weft-") for tenant in (first, second)]
    assert (spaces[0] == spaces[1]) == (first == second)
    assert all(len(space) <= 63 and space == space.lower() for space in spaces)


def test_name_that_looks_like_a_digest_does_not_take_another_tenants_namespace() -> None:
    encoded = names.namespace_of("Acme Inc", "weft-")
    assert encoded.startswith("weft-acme-inc-x")
    assert names.namespace_of(encoded.removeprefix("weft-"), "weft-") != encoded


def test_tenants_namespace_denies_traffic_and_gives_no_token() -> None:
    options = replace(OPTIONS, quota={"requests.nvidia.com/gpu": "8"})
    space = tenants.namespace("acme", options)
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    by_kind = {document["kind"]: document for document in tenants.contents("acme", options)}
    assert by_kind["ServiceAccount"]["automountServiceAccountToken"] is False
    assert by_kind["NetworkPolicy"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    hard = by_kind["ResourceQuota"]["spec"]["hard"]
    assert (hard["requests.nvidia.com/gpu"], hard["services.loadbalancers"]) == ("8", "0")
    assert "count/secrets" in hard


def test_pod_of_a_native_gang_prefers_the_node_that_the_dispatcher_chose() -> None:
    gang = plan()
    placed = replace(gang.learners[0], node="node-7", gpu_type="")
    affinity = pods.pod(gang, placed, OPTIONS, UID, gang=GangMethod.NATIVE)["spec"]["affinity"]["nodeAffinity"]
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchFields"][0]["values"] == ["node-7"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity

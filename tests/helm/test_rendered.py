"""What the chart renders: over many combinations of values, and wrong ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scripts.dist import chart
from scripts.images import version
from services.core.adapters.kubernetes.guardian_jobs import render
from services.core.bootstrap.kubernetes import manifests_text
from services.core.domain.service_access import CALLERS
from services.local.chart_hooks import REFUSED
from tests.helm.crds import definitions
from tests.helm.installation import CHART, RELEASE, Helm, HelmError, Installation
from tests.helm.rendering import MATRIX, PRODUCTION, Object, containers, document_of, guardian_template, pods, rendered
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.waiting import eventually

SERVICES = ("api", "lcm", "guardian", "metrics", "worker")


@pytest.fixture(scope="module")
def matrix(helm: Helm) -> dict[str, list[Object]]:
    return {name: rendered(helm, *options) for name, options in MATRIX.items()}


@pytest.fixture(scope="module")
def small(matrix: dict[str, list[Object]]) -> list[Object]:
    return matrix["small"]


@pytest.fixture(scope="module")
def production(matrix: dict[str, list[Object]]) -> list[Object]:
    return matrix["production"]


def test_helm_finds_no_fault_in_either_profile(helm: Helm) -> None:
    for options in ((), (f"--values={PRODUCTION}",)):
        assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", CHART, *options)


WRONG: dict[str, tuple[str, str]] = {
    "/fullnameOverride": ("fullnameOverride", "Upper_Case"),
    "/clusterDomain": ("clusterDomain", "-dot."),
    "/commonLabels/team": ("commonLabels.team", "{a}"),
    "/images/pullPolicy": ("images.pullPolicy", "Sometimes"),
    "/images/pullSecrets": ("images.pullSecrets", "mirror"),
    "/images/registry": ("images.registry", "https registry"),
    "/images/platform": ("images.platform", ""),
    "/images": ("images.redis", "redis:7"),
    "/logLevel": ("logLevel", "loud"),
    "/upgrades/checkJobs": ("upgrades.checkJobs", "often"),
    "/security/uid": ("security.uid", "0"),
    "/keys/adminKey/existingSecret": ("keys.adminKey.existingSecret", "Not A Name"),
    "/keys/renewal/schedule": ("keys.renewal.schedule", "weekly"),
    "/certManager/issuerRef/kind": ("certManager.issuerRef.kind", "Authority"),
    "/scheduling/lostNodeSeconds": ("scheduling.lostNodeSeconds", "-1"),
    "/api/replicas": ("api.replicas", "0"),
    "/api/scratch": ("api.scratch", "much"),
    "/api/service/type": ("api.service.type", "Public"),
    "/api/autoscaling/targetCPUUtilizationPercentage": ("api.autoscaling.targetCPUUtilizationPercentage", "500"),
    "/api/resources/limits/memory": ("api.resources.limits.memory", "1 GB"),
    "/api/podDisruptionBudget/maxUnavailable": ("api.podDisruptionBudget.maxUnavailable", "half"),
    "/lcm/replicas": ("lcm.replicas", "0"),
    "/guardian/launcher": ("guardian.launcher", "cron"),
    "/metrics/shards": ("metrics.shards", "100"),
    "/metrics/persistence/size": ("metrics.persistence.size", "20 gigabytes"),
    "/worker/env/WEFT_LOG_LEVEL": ("worker.env.WEFT_LOG_LEVEL", "{a}"),
    "/learners/gang": ("learners.gang", "volcano"),
    "/learners/namespacePrefix": ("learners.namespacePrefix", "no-dash-at-the-end"),
    "/learners/helper/cpus": ("learners.helper.cpus", "0.1 CPUs"),
    "/learners/helper/memory": ("learners.helper.memory", "1 apple"),
    "/learners/images/0": ("learners.images", "{a b}"),
    "/learners/pullSecret": ("learners.pullSecret", "My Registry"),
    "/learners/tenantPullSecrets": ("learners.tenantPullSecrets", "registry"),
    "/learners/devices/0": ("learners.devices", "{hca}"),
    "/learners/uids/first": ("learners.uids.first", "0"),
    "/learners/scratch": ("learners.scratch", "100 GB"),
    "/learners/egress/0": ("learners.egress", "{everything}"),
    "/learners/priorityClasses": ("learners.priorityClasses.highest", "a"),
    "/s3/bucket": ("s3.bucket", "UPPER"),
    "/s3/external/endpoint": ("s3.external.endpoint", "s3.example"),
    "/etcd/external/address": ("etcd.external.address", "https://etcd:2379"),
    "/tests/timeoutSeconds": ("tests.timeoutSeconds", "1"),
    "/monitoring/serviceMonitor/interval": ("monitoring.serviceMonitor.interval", "often"),
}
"""Path of a wrong value -> what sets it."""


def test_each_wrong_value_is_refused_with_its_path(helm: Helm) -> None:
    assert len(WRONG) >= 30
    with pytest.raises(HelmError) as refused:
        helm("template", RELEASE, CHART, *(f"--set={name}={value}" for name, value in WRONG.values()))
    paths = set(re.findall(r"^ *- at '(\S*)':", str(refused.value), re.MULTILINE))
    assert set(WRONG) <= paths


def test_every_value_has_a_type_and_a_description() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: object, of: Object, path: str) -> Iterator[str]:
        if not {"type", "description"} <= of.keys() and path:
            yield f"{path} has no type or no description"
        if isinstance(value, dict) and of.get("additionalProperties") is False:
            yield from (f"{path}/{name} is not in the schema" for name in value.keys() - of["properties"].keys())
            for name, part in of["properties"].items():
                yield from check(value.get(name), part, f"{path}/{name}")

    assert list(check(values, schema, "")) == []


def test_values_that_contradict_one_another_say_what_is_missing(helm: Helm) -> None:
    cases = {
        "--set=mongodb.enabled=false": "mongodb.external.existingSecret",
        "--set=rabbitmq.enabled=false": "rabbitmq.external.existingSecret",
        "--set=s3.enabled=false": "s3.existingSecret",
        "--set=etcd.enabled=false": "etcd.external.address",
        "--set=certManager.enabled=true": "certManager.issuerRef.name",
        "--set=ingress.enabled=true": "ingress.host",
        "--set=gateway.enabled=true,gateway.host=a.example": "gateway.parentRefs",
        "--set=api.autoscaling.enabled=true,api.autoscaling.maxReplicas=1": "api.autoscaling.minReplicas",
    }
    for option, name in cases.items():
        with pytest.raises(HelmError, match=re.escape(name)):
            helm("template", RELEASE, CHART, option)


def test_all_combinations_pass_pod_security_restricted(matrix: dict[str, list[Object]]) -> None:
    for combination, documents in matrix.items():
        for name, pod in pods(documents):
            assert pod["securityContext"]["runAsNonRoot"] is True, (combination, name)
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not any("hostPath" in volume for volume in pod["volumes"])
            for container in containers(pod):
                context = container["securityContext"]
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)


def test_only_pods_that_use_the_cluster_have_a_token_of_its_api(small: list[Object]) -> None:
    with_token = {name for name, pod in pods(small) if pod["automountServiceAccountToken"]}
    assert with_token == {"weft-lcm", "weft-guardian", "weft-keys"}


def test_rights_and_policies_are_those_of_weft_manifests_for_the_settings_of_the_lcm(
    matrix: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registries = tmp_path / "registries.json"
    registries.write_text('{"auths": {"registry.example": {}}}')
    for combination, documents in matrix.items():
        (lcm,) = (pod for name, pod in pods(documents) if name.endswith("-lcm"))
        with monkeypatch.context() as environment:
            for entry in lcm["containers"][0]["env"]:
                if entry["name"].startswith("WEFT_KUBERNETES_"):
                    value = entry["value"].replace("/etc/weft/keys/registries.json", str(registries))
                    environment.setenv(entry["name"], value)
            text = manifests_text(namespace="default", one_account=False, helper_image="none", registry=None)
        expected = [document for document in yaml.safe_load_all(text) if document]
        for document in expected:
            shown = document_of(documents, document["kind"], document["metadata"]["name"])
            labels = shown["metadata"].pop("labels") | document["metadata"].pop("labels")
            assert labels["app.kubernetes.io/part-of"] == "weft"
            assert shown == document, combination
        accounts = {entry["metadata"]["name"] for entry in expected if entry["kind"] == "ServiceAccount"}
        assert lcm["serviceAccountName"] in accounts
        assert {pod.get("serviceAccountName") for _, pod in pods(documents)} >= accounts


def test_a_setting_that_the_policies_need_too_is_set_by_its_value_only(helm: Helm) -> None:
    for service in ("lcm", "guardian"):
        for name in ("WEFT_KUBERNETES_SCRATCH", "WEFT_KUBERNETES_DEVICES", "WEFT_KUBERNETES_GUARDIAN_LAUNCHER"):
            with pytest.raises(HelmError, match=f"invalid propertyName '{name}'"):
                helm("template", RELEASE, CHART, f"--set={service}.env.{name}=job")


def test_guardians_in_jobs_have_the_pod_of_the_pool_and_nothing_of_the_pool_is_left(
    production: list[Object], matrix: dict[str, list[Object]]
) -> None:
    in_jobs = matrix["a Guardian for each job"]
    pool = document_of(production, "Deployment", "weft-guardian")["spec"]["template"]
    template = guardian_template(document_of(in_jobs, "ConfigMap", "training-guardian"))
    assert template is not None
    shown = yaml.safe_dump(template).replace("training-", "weft-").replace(": training", ": weft")
    assert shown == yaml.safe_dump(pool)
    of_guardian = {entry["kind"] for entry in in_jobs if entry["metadata"]["name"] == "training-guardian"}
    rights = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    assert of_guardian == {"ConfigMap", "NetworkPolicy", "PodMonitor"} | rights
    lcm = document_of(in_jobs, "Deployment", "training-lcm")["spec"]["template"]
    (container,) = lcm["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["WEFT_KUBERNETES_GUARDIAN_LAUNCHER"], env["WEFT_KUBERNETES_GUARDIAN_NAMESPACE"]) == ("job", "default")
    assert env["WEFT_KUBERNETES_GUARDIAN_TEMPLATE"] == "/etc/weft/guardian/pod.yaml"
    assert {"name": "guardian", "configMap": {"name": "training-guardian"}} in lcm["spec"]["volumes"]


def test_prometheus_and_the_alerts_see_guardians_in_jobs(matrix: dict[str, list[Object]]) -> None:
    documents = matrix["a Guardian for each job"]
    template = document_of(documents, "ConfigMap", "training-guardian")["data"]["pod.yaml"]
    job = render(yaml.safe_load(template), "j01m81m6wwmrnwpzxnhp31z", namespace="default", installation="training")
    pod = job["spec"]["template"]
    monitor = document_of(documents, "PodMonitor", "training-guardian")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    (label,) = endpoint["relabelings"]
    (rules,) = document_of(documents, "PrometheusRule", "training-alerts")["spec"]["groups"]
    selected = re.findall(r'service=~"([^"]+)"', " ".join(rule["expr"] for rule in rules["rules"]))
    assert label["targetLabel"] == "service"
    assert selected
    assert all(re.fullmatch(pattern, label["replacement"]) for pattern in selected)


def test_lcm_starts_again_when_the_pod_of_guardians_changes(helm: Helm) -> None:
    def digest(*options: str) -> str:
        documents = rendered(helm, "--set=guardian.launcher=job", *options)
        annotations = document_of(documents, "Deployment", "weft-lcm")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["weft.dev/guardian-template"])

    assert digest() == digest()
    assert digest() != digest("--set=guardian.resources.limits.memory=2Gi")


def test_lcm_may_make_jobs_with_the_secrets_of_the_guardian_only(matrix: dict[str, list[Object]]) -> None:
    in_jobs = matrix["a Guardian for each job"]
    policy = document_of(in_jobs, "ValidatingAdmissionPolicy", "training-guardian-jobs")["spec"]
    secrets = re.findall(r"source\.secret\.name in (\[.*?\])", json.dumps(policy).replace('\\"', '"'))
    assert [json.loads(names) for names in secrets] == [
        ["training-admin-key", "training-guardian", "training-tls-guardian", "weft-mongodb-uri"]
    ]


def test_all_images_come_from_the_one_registry_of_an_air_gapped_site(matrix: dict[str, list[Object]]) -> None:
    documents = matrix["air-gapped"]
    images = {container["image"] for _, pod in pods(documents) for container in containers(pod)}
    variables = document_of(documents, "Deployment", "weft-guardian")["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    images |= {entry["value"] for entry in variables if entry["name"].endswith("_IMAGE")}
    assert images == {
        f"mirror.example:5000/weft/{name}"
        for name in (
            "weft/platform:0.1.0",
            "weft/helper:0.1.0",
            "mongo:8.0",
            "coreos/etcd:v3.6.5",
            "rabbitmq:3.13",
            "versity/versitygw:v1.8.0",
        )
    }
    assert all(pod["imagePullSecrets"] == [{"name": "mirror"}] for _, pod in pods(documents))


def test_the_lcm_and_the_guardian_read_the_credentials_of_learners_registries(matrix: dict[str, list[Object]]) -> None:
    source = {"name": "registries", "items": [{"key": ".dockerconfigjson", "path": "registries.json"}]}
    readers = set()
    for name, pod in pods(matrix["everything named"]):
        keys = [volume["projected"]["sources"] for volume in pod.get("volumes", []) if volume["name"] == "keys"]
        if keys and {"secret": source} in keys[0]:
            env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
            assert env["WEFT_KUBERNETES_PULL_SECRET_FILE"] == "/etc/weft/keys/registries.json"
            assert json.loads(env["WEFT_KUBERNETES_PULL_SECRETS"]) == ["team-b", "team-a"]
            readers.add(name)
    assert readers == {"training-lcm", "training-guardian"}


def test_the_api_knows_the_images_of_the_framework_library_as_the_lcm_does(matrix: dict[str, list[Object]]) -> None:
    """It lists them, and refuses a framework without an image at the submit."""
    for combination, documents in matrix.items():
        images = {name.rpartition("-")[2]: image_settings(pod) for name, pod in pods(documents)}
        assert images["api"] == images["lcm"] == images["guardian"], combination
        assert images["api"]["WEFT_KUBERNETES_HELPER_IMAGE"]


def test_the_api_and_the_guardian_know_the_devices_that_the_policies_allow(matrix: dict[str, list[Object]]) -> None:
    for name, pod in pods(matrix["everything named"]):
        if name.rpartition("-")[2] in {"api", "lcm", "guardian"}:
            env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
            assert json.loads(env["WEFT_KUBERNETES_DEVICES"]) == ["rdma/hca", "example.org/fpga"], name


def image_settings(pod: Object) -> dict[str, str]:
    """Settings of a pod that name images of learners."""
    entries = [entry for container in pod["containers"] for entry in container.get("env") or ()]
    return {entry["name"]: entry["value"] for entry in entries if re.search(r"KUBERNETES_.*_IMAGES?$", entry["name"])}


def test_pods_of_hooks_and_of_the_test_have_the_priority_class_and_the_nodes_of_all_others(helm: Helm) -> None:
    options = ("scheduling.priorityClassName=high", "scheduling.nodeSelector.pool=weft", "keys.renewal.enabled=true")
    toleration = "scheduling.tolerations[0].key=weft,scheduling.tolerations[0].operator=Exists"
    documents = rendered(helm, *(f"--set={option}" for option in (*options, toleration)))
    placed = dict(pods(documents))
    assert {"weft-keys", "weft-keys-renewal", "weft-upgrade-check", "weft-test-training"} < placed.keys()
    for name, pod in placed.items():
        assert (pod["priorityClassName"], pod["nodeSelector"]) == ("high", {"pool": "weft"}), name
        assert {"key": "weft", "operator": "Exists"} in pod["tolerations"], name


def test_a_refusal_ends_the_jobs_of_hooks_at_once(helm: Helm) -> None:
    documents = rendered(helm, "--set=keys.renewal.enabled=true")
    jobs = [document["spec"] for document in documents if document["kind"] == "Job"]
    jobs += [document["spec"]["jobTemplate"]["spec"] for document in documents if document["kind"] == "CronJob"]
    assert len(jobs) == 3
    for job in jobs:
        (container,) = job["template"]["spec"]["containers"]
        (rule,) = job["podFailurePolicy"]["rules"]
        exits = {"containerName": container["name"], "operator": "In", "values": [REFUSED]}
        assert (rule["action"], rule["onExitCodes"]) == ("FailJob", exits)


def test_a_broken_pod_of_a_set_does_not_block_its_rollback(matrix: dict[str, list[Object]]) -> None:
    """In order, a set waits for a pod that never gets ready, also if its template is right again."""
    for combination, documents in matrix.items():
        sets = [entry["spec"] for entry in documents if entry["kind"] == "StatefulSet"]
        assert sets, combination
        assert {entry.get("podManagementPolicy") for entry in sets} == {"Parallel"}, combination


def test_the_version_to_come_reads_the_jobs_before_an_upgrade_and_a_rollback(
    helm: Helm, small: list[Object], production: list[Object]
) -> None:
    for documents, secret in ((small, "weft-mongodb"), (production, "weft-mongodb-uri")):
        check = document_of(documents, "Job", "weft-upgrade-check")
        assert check["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade,pre-rollback"
        pod = check["spec"]["template"]["spec"]
        (stores,) = (volume for volume in pod["volumes"] if volume["name"] == "stores")
        assert [source["secret"]["name"] for source in stores["projected"]["sources"]] == [secret]
    admitted = document_of(small, "NetworkPolicy", "weft-mongodb")["spec"]["ingress"][0]["from"]
    labels = document_of(small, "Job", "weft-upgrade-check")["spec"]["template"]["metadata"]["labels"]
    assert labels in [peer["podSelector"]["matchLabels"] for peer in admitted]
    without = rendered(helm, "--set=upgrades.checkJobs=false")
    assert "weft-upgrade-check" not in dict(pods(without))


def test_an_openshift_cluster_chooses_the_user(matrix: dict[str, list[Object]]) -> None:
    contexts = [pod["securityContext"] for _, pod in pods(matrix["OpenShift"])]
    assert not [context for context in contexts if {"runAsUser", "fsGroup", "runAsGroup"} & context.keys()]


def test_an_operators_secrets_are_used_and_not_made(matrix: dict[str, list[Object]]) -> None:
    documents = matrix["small with an operator's secrets"]
    (command,) = (pod["containers"][0]["command"] for name, pod in pods(documents) if name == "weft-keys")
    made = {argument.removeprefix("--write=") for argument in command if argument.startswith("--write=")}
    assert made == {*SERVICES, "prometheus", "etcd"}
    used = json.dumps([pod["volumes"] for _, pod in pods(documents)])
    for name in "amxyz":
        assert f'"name": "{name}"' in used


def test_a_service_mounts_the_passwords_of_the_stores_that_it_uses_only(small: list[Object]) -> None:
    mounted = {
        name.removeprefix("weft-"): {
            source["secret"]["name"]
            for volume in pod["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
        }
        for name, pod in pods(small)
    }
    expected = {
        "api": {"weft-mongodb", "weft-rabbitmq", "weft-s3"},
        "lcm": {"weft-mongodb", "weft-rabbitmq", "weft-s3"},
        "guardian": {"weft-mongodb"},
        "metrics": {"weft-mongodb", "weft-s3"},
        "worker": {"weft-rabbitmq"},
    }
    for service, stores in expected.items():
        assert mounted[service] == {f"weft-{service}", "weft-admin-key", *stores}
    assert not [name for name, secrets in mounted.items() if "weft-installation" in secrets]


def test_production_has_no_store_inside_and_three_replicas_that_are_spread(production: list[Object]) -> None:
    assert {entry["metadata"]["name"] for entry in production if entry["kind"] == "StatefulSet"} == {"weft-metrics"}
    scaled = {
        entry["metadata"]["name"]: entry["spec"] for entry in production if entry["kind"] == "HorizontalPodAutoscaler"
    }
    assert {name: spec["minReplicas"] for name, spec in scaled.items()} == {"weft-api": 3, "weft-guardian": 3}
    for name in scaled:  # the autoscaler's number would be overwritten by each upgrade
        assert "replicas" not in document_of(production, "Deployment", name)["spec"]
        pod = document_of(production, "Deployment", name)["spec"]["template"]["spec"]
        assert len(pod["topologySpreadConstraints"]) == 2
        assert "podAntiAffinity" in pod["affinity"]
    budgets = {entry["metadata"]["name"] for entry in production if entry["kind"] == "PodDisruptionBudget"}
    assert budgets == {"weft-api", "weft-lcm", "weft-guardian", "weft-worker"}
    assert document_of(production, "Deployment", "weft-lcm")["spec"]["replicas"] == 2


def test_every_selector_of_a_policy_a_budget_and_a_service_matches_a_pod(matrix: dict[str, list[Object]]) -> None:
    for combination, documents in matrix.items():
        workloads = [entry for entry in documents if entry["kind"] in {"Deployment", "StatefulSet"}]
        templates = [entry["spec"]["template"] for entry in workloads]
        templates += [template for entry in documents if (template := guardian_template(entry))]
        labels = [template["metadata"]["labels"] for template in templates]
        for entry in documents:
            spec = entry.get("spec") or {}
            selector = spec.get("podSelector") or (
                spec.get("selector") if entry["kind"] in {"Service", "PodDisruptionBudget"} else None
            )
            wanted = dict((selector or {}).get("matchLabels", selector) or {})
            wanted.pop("apps.kubernetes.io/pod-index", None)  # Kubernetes labels the pods of a StatefulSet itself
            assert any(wanted.items() <= pod_labels.items() for pod_labels in labels), (
                combination,
                entry["metadata"]["name"],
            )


def test_policies_let_each_service_call_what_the_table_of_calls_permits(small: list[Object]) -> None:
    for service in ("api", "lcm", "guardian", "metrics"):
        tables = [table for name, table in CALLERS[service].items() if name != "weft.v1.Operations"]
        callers = set().union(*tables) - {"node"}
        rules = document_of(small, "NetworkPolicy", f"weft-{service}")["spec"]["ingress"]
        admitted = {
            peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
            for rule in rules
            if {"port": 7000} in rule["ports"]
            for peer in rule["from"]
        }
        assert admitted == callers


def test_the_api_alone_mounts_the_master_key_also_an_operator_s(matrix: dict[str, list[Object]]) -> None:
    for combination, documents in matrix.items():
        mounting = {name for name, pod in pods(documents) if '"key": "master-key"' in json.dumps(pod.get("volumes"))}
        assert {name.rpartition("-")[2] for name in mounting} == {"api"}, combination


def test_browsers_may_sign_in_at_the_hosts_of_ingress_and_gateway(
    small: list[Object], production: list[Object], matrix: dict[str, list[Object]]
) -> None:
    def hosts(documents: list[Object]) -> str | None:
        (api,) = document_of(documents, "Deployment", "weft-api")["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry.get("value") for entry in api["env"]}.get("WEFT_DASHBOARD_HOSTS")

    assert hosts(small) is None
    ingress = document_of(production, "Ingress", "weft-api-rest")["spec"]["rules"][0]["host"]
    assert hosts(production) == ingress
    assert hosts(matrix["gateway and scheduler"]) == "weft.example"


def test_large_numbers_in_a_values_file_reach_services_digit_by_digit(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "learners: {uids: {first: 1000000}}\nguardian: {env: {WEFT_LARGE: 2199023255552, WEFT_HALF: 0.5}}\n"
    )
    deployment = document_of(rendered(helm, f"--values={values}"), "Deployment", "weft-guardian")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["WEFT_KUBERNETES_UID_FIRST"], env["WEFT_LARGE"], env["WEFT_HALF"]) == (
        "1000000",
        "2199023255552",
        "0.5",
    )


def test_a_fraction_may_be_set_on_the_command_line_of_helm_which_takes_it_for_text(helm: Helm) -> None:
    options = ("--set=learners.helper.cpus=0.1,tests.resources.cpus=0.5",)
    deployment = document_of(rendered(helm, *options), "Deployment", "weft-guardian")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["WEFT_KUBERNETES_HELPER_CPUS"] == "0.1"


def test_each_shard_of_the_metrics_service_has_a_number_and_an_address(matrix: dict[str, list[Object]]) -> None:
    documents = matrix["shards of metrics"]
    metrics = document_of(documents, "StatefulSet", "weft-metrics")["spec"]
    assert metrics["replicas"] == 5, "the former shards run until their jobs have moved"
    (container,) = metrics["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["WEFT_METRICS_SHARDS"], env["WEFT_METRICS_SHARDS_BEFORE"]) == ("3", "5")
    for shard in range(5):
        host = env["WEFT_METRICS_SHARD_ADDRESSES"].replace("{}", str(shard)).removeprefix("tls:")
        service = document_of(documents, "Service", host.partition(".")[0])["spec"]
        assert service["selector"]["apps.kubernetes.io/pod-index"] == str(shard)
        assert service["publishNotReadyAddresses"]
        assert [port["port"] for port in service["ports"]] == [int(host.rpartition(":")[2])]


def test_live_streams_pass_the_ingress_without_buffers_and_time_limits(
    production: list[Object], matrix: dict[str, list[Object]]
) -> None:
    annotations = document_of(production, "Ingress", "weft-api-rest")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "3600"
    (rule,) = document_of(matrix["gateway and scheduler"], "HTTPRoute", "weft-api-rest")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}


def test_the_metrics_of_alerts_and_dashboards_exist(production: list[Object]) -> None:
    rules = document_of(production, "PrometheusRule", "weft-alerts")["spec"]["groups"][0]["rules"]
    dashboard = document_of(production, "ConfigMap", "weft-grafana")["data"]["weft.json"]
    used = set(re.findall(r"\bweft_[a-z_]+", dashboard + json.dumps([rule["expr"] for rule in rules])))
    sources = "".join(path.read_text() for path in (CHART.parents[1] / "services").rglob("*.py"))
    known = set(re.findall(r'"(weft_[a-z_]+)"', sources))
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used} <= known
    assert len(used) > 8


def test_services_and_admission_policies_know_the_registry_of_the_framework_library(
    matrix: dict[str, list[Object]],
) -> None:
    named, default = matrix["everything named"], matrix["small"]
    for service in ("api", "lcm", "guardian"):
        (pod,) = [spec for name, spec in pods(named) if name == f"training-{service}"]
        variables = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        assert variables["WEFT_KUBERNETES_FRAMEWORK_REGISTRY"] == "library.example/team"
    assert '"library.example/team/weft/"' in json.dumps(named).replace('\\"', '"')
    assert "FRAMEWORK_REGISTRY" not in json.dumps(default)


def test_profiles_of_the_scheduler_pack_and_spread(matrix: dict[str, list[Object]]) -> None:
    text = document_of(matrix["gateway and scheduler"], "ConfigMap", "weft-scheduler")["data"]["scheduler.yaml"]
    strategies = {
        profile["schedulerName"]: profile["pluginConfig"][0]["args"]["scoringStrategy"]["type"]
        for profile in yaml.safe_load(text)["profiles"]
    }
    assert strategies == {"weft-pack": "MostAllocated", "weft-spread": "LeastAllocated"}
    environment = json.dumps(document_of(matrix["gateway and scheduler"], "Deployment", "weft-guardian"))
    assert '\\"pack\\":\\"weft-pack\\"' in environment


def test_the_api_server_accepts_every_combination_strictly(
    matrix: dict[str, list[Object]], new_cluster: Installation
) -> None:
    kubectl = new_cluster.cluster.kubectl
    for path in definitions():
        kubectl("apply", "--server-side", f"--filename={path}")
    kubectl("wait", "--for=condition=Established", "--timeout=120s", "customresourcedefinitions", "--all")
    listed = kubectl("get", "customresourcedefinitions", "--output=name").split()
    kinds = {name.partition("/")[2] for name in listed}
    # kubectl finds a kind once the API server lists it, which is a moment after it is established.
    eventually(lambda: kinds <= set(kubectl("api-resources", "--output=name").split()))
    # Pods of a class that does not exist are refused, and `helm test` has a pod.
    kubectl.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    )
    refused = {}
    for combination, documents in matrix.items():
        for namespace in {entry["metadata"].get("namespace", "default") for entry in documents}:
            inside = [
                _with_another_name(entry) if "namespace" not in entry["metadata"] else entry
                for entry in documents
                if entry["metadata"].get("namespace", "default") == namespace
            ]
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": inside})
            try:
                within = replace(kubectl, namespace=namespace)
                within("create", "--dry-run=server", "--validate=strict", "--filename=-", text=text)
            except KubectlError as error:
                refused[combination] = str(error)
    assert refused == {}


def _with_another_name(document: Object) -> Object:
    """An object of the whole cluster, of which a release may be installed."""
    return {**document, "metadata": {**document["metadata"], "name": f"dry-run-{document['metadata']['name']}"}}


def test_the_packed_chart_is_one_that_helm_installs_and_two_runs_give_the_same(helm: Helm, tmp_path: Path) -> None:
    first, second = (chart(_folder(tmp_path / name)) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", first)
    shown = yaml.safe_load(helm("show", "chart", first))
    assert (shown["version"], shown["appVersion"]) == (version(), version())
    assert helm("template", RELEASE, first) == helm("template", RELEASE, CHART)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path

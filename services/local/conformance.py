"""`weft conformance`: whether an installation of containers or pods keeps what Weft needs, and what to do if not.

It runs in a container of the lcm, whose stores, certificates and rights are those of the platform:

    kubectl --namespace weft-system exec deployment/weft-lcm --container lcm -- weft conformance
    docker compose exec lcm weft conformance

Each check gives pass, fail or not applicable. It trains small jobs, which it deletes, and changes nothing else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.gangs import gang_method
from services.core.adapters.kubernetes.manifests import Right, rights
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.places import NAMESPACES
from services.core.adapters.mongo.describing import replica_set, step_down
from services.core.bootstrap.wiring import check_broker, check_job_store, deliver_hint, object_store
from services.core.domain.errors import AdmissionDenied, WeftError
from services.core.runtime.kubernetes_settings import KubernetesSettings
from services.core.runtime.settings import Settings
from services.local import training_check
from weft import Client
from weft import WeftError as ClientError

PASS: Final = "pass"  # noqa: S105 - a verdict
FAIL: Final = "fail"
NOT_APPLICABLE: Final = "not applicable"
_APPLY: Final = "upgrade the release, or apply the output of `weft manifests`"
_OLDEST_KUBERNETES: Final = (1, 31)
_ENOUGH_MEMBERS: Final = 3
_SKEW_S: Final = 5.0
TOO_MUCH: Final = (
    Right("list", "", "secrets"),
    Right("create", "", "pods"),
    Right("create", "", "pods/exec"),
    Right("create", "rbac.authorization.k8s.io", "clusterroles"),
    Right("delete", "", "namespaces"),
    Right("delete", "", "nodes"),
)
"""What the lcm must not have, in no namespace."""


@dataclass(frozen=True, slots=True)
class Check:
    """``fix``: what to do; empty unless it failed."""

    check: str
    verdict: str
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The installation, as its lcm sees it."""

    settings: Settings
    url: str
    """Of the api."""
    key: str
    within_s: float
    """Time limit of each job."""
    cpus: float = 0.25
    memory: str = "64MiB"
    step_down: bool = False
    """Whether to try the fail-over: MongoDB's primary steps down."""


def examine(subject: Subject, *, skip: Sequence[str] = (), report: Callable[[str], None]) -> list[Check]:
    """Runs all checks but those of ``skip``, one after another. Raises WeftError for an unknown name."""
    if unknown := set(skip) - CHECKS.keys():
        raise WeftError(f"there is no check {', '.join(sorted(unknown))}; there are: {', '.join(CHECKS)}")
    checks: list[Check] = []
    with Client(subject.url, subject.key) as client:
        for name, run in CHECKS.items():
            if name in skip:
                checks.append(Check(name, NOT_APPLICABLE, "left out"))
                continue
            report(name)
            checks += _guarded(name, run, subject, client)
    return checks


def _guarded(name: str, run: Run, subject: Subject, client: Client) -> list[Check]:
    """The results of a check; a failure if it ends with an error."""
    try:
        return list(run(subject, client))
    except (WeftError, ClientError, OSError) as error:
        return [Check(name, FAIL, str(error), _ADVICE[name])]


def _versions(subject: Subject, client: Client) -> Iterator[Check]:
    own, api = version("weft-platform"), client.version()["version"]
    same = own == api
    yield Check(
        "versions",
        PASS if same else FAIL,
        f"lcm {own}, api {api}",
        "" if same else "wait for the end of the upgrade, or repeat it: all services have one version",
    )
    if subject.settings.cluster != "kubernetes":
        yield Check("kubernetes version", NOT_APPLICABLE, "learners are not pods")
        return
    answer = asyncio.run(_kubernetes(lambda api: api.get("/version")))
    number = tuple(int("".join(filter(str.isdigit, answer[part]))) for part in ("major", "minor"))
    fits = number >= _OLDEST_KUBERNETES
    yield Check(
        "kubernetes version",
        PASS if fits else FAIL,
        str(answer["gitVersion"]),
        "" if fits else "Weft needs Kubernetes 1.31 or later",
    )


def _job_store(subject: Subject, client: Client) -> Iterator[Check]:
    del client
    asyncio.run(check_job_store(subject.settings))
    if subject.settings.job_store == "sqlite":
        yield Check("job store", NOT_APPLICABLE, "files of one machine")
        return
    yield Check("job store", PASS, "one winner of each race, linearizable reads")
    yield _fail_over(subject)


def _fail_over(subject: Subject) -> Check:
    name, uri = "job store fail-over", subject.settings.job_store
    described = asyncio.run(replica_set(uri))
    count = len(described.members)
    if not described.name:
        return Check(
            name, NOT_APPLICABLE, f"{', '.join(described.members)} is no replica set: jobs wait while it restarts"
        )
    if count == 1:
        return Check(name, NOT_APPLICABLE, f"one member, {described.primary}: jobs wait while it restarts")
    detail = f"{', '.join(described.members)} of {described.name}, written with {{{described.write_concern}}}"
    if count < _ENOUGH_MEMBERS:
        return Check(name, FAIL, f"{detail}: no majority without one of them", "add members until there are three")
    if not subject.step_down:
        return Check(name, NOT_APPLICABLE, f"{detail}; --step-down tries it: jobs wait some seconds for a new primary")
    before, after, took_s = asyncio.run(step_down(uri))
    return Check(name, PASS, f"{detail}; {before} stepped down, {after} was written to after {took_s:.1f} s")


def _objects(subject: Subject, client: Client) -> Iterator[Check]:
    del client
    asyncio.run(object_store(subject.settings).ping())
    yield Check("object store", PASS, f"{subject.settings.object_store} answers with these credentials")


def _broker(subject: Subject, client: Client) -> Iterator[Check]:
    del client
    if subject.settings.hints == "drop" or subject.settings.broker_url == "filesystem://":
        yield Check("broker", NOT_APPLICABLE, "hints go without a broker")
        return
    name = check_broker(subject.settings)
    yield Check("broker", PASS, f"{name} delivered a hint in {deliver_hint(subject.settings) * 1000:.0f} ms")


def _rights(subject: Subject, client: Client) -> Iterator[Check]:
    del client
    if subject.settings.cluster != "kubernetes":
        yield Check("rights", NOT_APPLICABLE, "learners are not pods")
        return
    installation = KubernetesSettings().installation
    missing, excess = asyncio.run(_kubernetes(lambda api: _differences(api, installation)))
    if missing:
        yield Check("rights", FAIL, f"the lcm may not {', '.join(missing)}", _APPLY)
    elif excess:
        detail = f"the lcm may {', '.join(excess)}, which it never needs"
        yield Check("rights", FAIL, detail, "remove other bindings of its service account")
    else:
        yield Check("rights", PASS, "what `weft manifests` gives it, and not more of what was tried")


async def _differences(api: Api, installation: str) -> tuple[list[str], list[str]]:
    """What the lcm needs and has not, and what it has and must not have."""
    missing = [str(right) for right in rights("lcm", installation) if not await _may(api, right)]
    spaces, _ = await api.list(NAMESPACES, selector=names.ours(installation))
    for space in spaces[:1]:  # none before the first job
        missing += [
            f"{right} in {space['metadata']['name']}"
            for right in rights("collector", installation)
            if not await _may(api, right, space["metadata"]["name"])
        ]
    return missing, [str(right) for right in TOO_MUCH if await _may(api, right)]


async def _may(api: Api, right: Right, namespace: str = "") -> bool:
    """True if this service account has the right in the namespace; empty: in all of them."""
    resource, _, part = right.resource.partition("/")
    wanted = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": part,
        "name": right.name,
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"].get("allowed"))


def _policies(subject: Subject, client: Client) -> Iterator[Check]:
    """The lcm tries to make a namespace that is not of this installation; nothing is stored if it may."""
    del client
    if subject.settings.cluster != "kubernetes":
        yield Check("policies", NOT_APPLICABLE, "learners are not pods")
        return
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "conformance-of-weft"}}
    try:
        asyncio.run(_kubernetes(lambda api: api.try_create(NAMESPACES, space)))
    except AdmissionDenied:
        yield Check("policies", PASS, "the API server keeps the lcm to the namespaces of its tenants")
    else:
        yield Check("policies", FAIL, "the lcm may make namespaces that are not of this installation", _APPLY)


def _gang(subject: Subject, client: Client) -> Iterator[Check]:
    del client
    if subject.settings.cluster != "kubernetes":
        yield Check("gang", NOT_APPLICABLE, "learners are not pods")
        return
    chosen = KubernetesSettings().gang
    options = KubernetesOptions(
        helper_image="-",
        learner_image="-",
        entry_script="",
        addresses={},
        gang=None if chosen == "auto" else GangMethod(chosen),
    )
    method = asyncio.run(_kubernetes(lambda api: gang_method(api, options)))
    yield Check("gang", PASS, f"{method.value}: {_GANGS[method]}")


_GANGS: Final = {
    GangMethod.NATIVE: "the scheduler binds all pods of a job or none",
    GangMethod.GATES: "the lcm places all pods of a job, or none",
    GangMethod.KUEUE: "Kueue admits all pods of a job or none",
}


def _training(subject: Subject, client: Client) -> Iterator[Check]:
    summary = training_check.train(client, cpus=subject.cpus, memory=subject.memory, within_s=subject.within_s)
    yield Check("two learners", PASS, summary)


_PROBE: Final = """\
import json, socket, time
reached = []
for name, address in {targets}:
    try:
        if isinstance(address, str):
            socket.socket(socket.AF_UNIX).connect(address)
        else:
            socket.create_connection(address, 3).close()
        reached.append(name)
    except OSError:
        pass
print(json.dumps(dict(reached=reached, time=time.time())), flush=True)
"""


_NO_POLICIES: Final = "NetworkPolicies are not enforced: install a network plugin that does, e.g. Cilium or Calico"
_NO_ISOLATION: Final = (
    "learners are not kept apart from the platform; `weft status` says how, and `weft doctor` what to do"
)


def _walls(subject: Subject, client: Client) -> Iterator[Check]:
    """A learner tries to reach the stores, and says what time it has."""
    etcd = subject.settings.installation.address("etcd")
    address = etcd.host_port if etcd.socket is None else str(etcd.socket)
    targets = [("etcd", address), *_mongodb_hosts(subject.settings.job_store)]
    began = time.time()
    (line,) = _run(subject, client, f"python3 - <<'END'\n{_PROBE.format(targets=targets)}END")
    ended = time.time()
    answer = json.loads(line)
    if answer["reached"]:
        yield Check(
            "walls",
            FAIL,
            f"a learner reached {', '.join(answer['reached'])}",
            _NO_POLICIES if subject.settings.cluster == "kubernetes" else _NO_ISOLATION,
        )
    else:
        yield Check("walls", PASS, f"a learner reached none of {', '.join(name for name, _ in targets)}")
    skew = max(began - answer["time"], answer["time"] - ended, 0.0)
    yield Check(
        "clocks",
        PASS if skew < _SKEW_S else FAIL,
        f"the learner's clock is off by {skew:.0f} s or less",
        "" if skew < _SKEW_S else "run NTP on all nodes",
    )


def _mongodb_hosts(uri: str) -> list[tuple[str, tuple[str, int]]]:
    if not uri.startswith("mongodb://"):
        return []
    first = uri.removeprefix("mongodb://").rpartition("@")[2].partition("/")[0].partition(",")[0]
    host, _, port = first.partition(":")
    return [("mongodb", (host, int(port or 27_017)))]


def _gpus(subject: Subject, client: Client) -> Iterator[Check]:
    nodes = client.cluster(tenant="*")["nodes"]
    if not any(node["gpus"] for node in nodes):
        yield Check("gpu", NOT_APPLICABLE, "no node has GPUs")
        return
    (line,) = _run(subject, client, "ls /dev | grep -c '^nvidia[0-9]' || true", gpus=1)
    devices = int(line)
    yield Check(
        "gpu",
        PASS if devices else FAIL,
        f"a learner with one GPU sees {devices} devices",
        "" if devices else "install the device plugin and the container runtime of the GPUs' maker on the nodes",
    )


def _run(subject: Subject, client: Client, command: str, **resources: Any) -> list[str]:
    """Runs a job of one learner, and deletes it. Returns its lines. Raises WeftError if it does not complete."""
    wanted = {"cpus": subject.cpus, "memory": subject.memory, **resources}
    job = client.jobs.submit({"name": "conformance", "command": command, "resources": wanted})
    try:
        training_check.wait(job, subject.within_s)
        return [line.text for line in job.logs() if line.stream == "stdout"]
    finally:
        training_check.remove(job, subject.within_s)


async def _kubernetes(call: Callable[[Api], Any]) -> Any:
    """With the access of the settings."""
    settings = KubernetesSettings()
    api = Api(settings.kubeconfig, settings.context)
    try:
        return await call(api)
    finally:
        await api.close()


Run = Callable[[Subject, Client], Iterator[Check]]
CHECKS: Final[dict[str, Run]] = {
    "versions": _versions,
    "job store": _job_store,
    "object store": _objects,
    "broker": _broker,
    "rights": _rights,
    "policies": _policies,
    "gang": _gang,
    "two learners": _training,
    "walls": _walls,
    "gpu": _gpus,
}
_OF_JOB: Final = "docs/failures.md shows what the reasons of failures mean; the job is deleted"
_ADVICE: Final = {
    "versions": "see that api, and the API server of the cluster, answer",
    "job store": 'see docs/operator-guide.md, "Job store on MongoDB"',
    "object store": 'see docs/operator-guide.md, "Object stores"',
    "broker": 'see docs/operator-guide.md, "Brokers"',
    "rights": "see that the API server of the cluster answers, and that the pod has its token",
    "policies": "see that the API server of the cluster answers, and that the pod has its token",
    "gang": "see that the API server of the cluster answers",
    "two learners": _OF_JOB,
    "walls": _OF_JOB,
    "gpu": _OF_JOB,
}

"""Jobs whose learners are pods: the whole platform on this machine, real kubelets, the images of this tree."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, collection
from services.core.adapters.kubernetes.probe import probe
from services.core.runtime.pod_layout import HELPER_CONTAINER
from services.local.commands import PLATFORM
from tests.hostile.attack_code import IN_POD, attack_files
from tests.hostile.attacks.ground import BREACH, OVER
from tests.hostile.attacks.pods import BOMB, FORGED_CODE
from tests.promises import Promise
from tests.testbed.kubernetes.accounts import NAMESPACE as NAMESPACE_OF_ACCOUNTS
from tests.testbed.kubernetes.accounts import install
from tests.testbed.kubernetes.claims import claimed
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.control_plane import ADDRESS, PORT
from tests.testbed.kubernetes.doorway import doorway
from tests.testbed.kubernetes.fault_proxy import FaultProxy, fault_proxy
from tests.testbed.kubernetes.images import write_private_image
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.jobs_in_pods import (
    await_event,
    containers,
    end_command,
    files_with,
    helper_process,
    history,
    kill_and_await_gone,
    lines,
    pods,
    restarts,
    values_of,
)
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.platform_in_pods import COLLECTIONS, load_helper_image, objects_left, platform_in_pods
from tests.testbed.kubernetes.registries import empty_registry, private_registry
from tests.testbed.kubernetes.watcher import Watcher, watching
from tests.testbed.live_files import files_with as files_of_platform_with
from tests.testbed.platform import Platform
from tests.testbed.s3 import REGION, S3
from tests.waiting import HANG_S, eventually
from weft import Client, IllegalTransition, InvalidSpec, NotFound
from weft._job import Job

NAMESPACE: Final = "life-default"
SMALL: Final = {"cpus": 0.25, "memory": "64MiB"}
ADAPTER: Final = "example.org/adapter"
"""A device of the operator's list."""
Say = Callable[[str], None]
Untimed = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def helper_image(testbed_cluster: Cluster, announce: Say, untimed: Untimed) -> str:
    """The image of images/helper, on each node; learners run in it too."""
    with untimed():
        return load_helper_image(testbed_cluster, announce)


@pytest.fixture(scope="module")
def account(testbed_cluster: Cluster, helper_image: str) -> Path:
    """Kubeconfig of the one account of `weft manifests --one-account`: the platform has no other access."""
    scratch = 2**30
    options = replace(
        OPTIONS,
        helper_image=helper_image,
        scratch=scratch,
        installation="life",
        namespace_prefix="life-",
        devices=(ADAPTER,),
    )
    return install(testbed_cluster, options, one_account=True).lcm


@pytest.fixture(scope="module")
def api_faults(account: Path) -> Iterator[FaultProxy]:
    """Between the platform and the API server. Without faults until a test sets their share."""
    with fault_proxy(account, seed=17) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def witness(testbed_cluster: Cluster) -> Iterator[Watcher]:
    """Of all these tests. None of them lets two attempts of a job live at the same moment."""
    with watching(testbed_cluster.kubeconfig) as watcher:
        yield watcher
        assert watcher.overlaps == []


@pytest.fixture(scope="module")
def weft_up(
    testbed_cluster: Cluster,
    helper_image: str,
    api_faults: FaultProxy,
    witness: Watcher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Platform]:
    kubeconfig = api_faults.kubeconfig(tmp_path_factory.mktemp("api") / "kubeconfig")
    accounts = {f"WEFT_KUBERNETES_{name}_ACCOUNT": f"{NAMESPACE_OF_ACCOUNTS}/life-up" for name in ("LCM", "GUARDIAN")}
    others = {
        "WEFT_KUBERNETES_FRAMEWORK_IMAGES": json.dumps({"python-3.11": helper_image}),
        "WEFT_KUBERNETES_DEVICES": json.dumps([ADAPTER]),
        "WEFT_HTTP_ALLOW": ADDRESS,
    }
    with platform_in_pods(
        testbed_cluster, helper_image, name="life", kubeconfig=kubeconfig, settings={**accounts, **others}
    ) as running:
        yield running


def test_probe_pod_says_step_by_step_that_images_and_ways_are_there(weft_up: Platform) -> None:
    messages: list[str] = []
    with weft_up.environment():
        answer = PLATFORM.up(str(weft_up.home.root), report=messages.append)
    assert answer["probe"] == [{"name": name, "problem": "", "fix": ""} for name in ("image", "metrics")]
    assert f"checking the cluster with a pod in {NAMESPACE}" in messages
    assert any(line.startswith(("waiting for a node", "node-")) for line in messages)  # a busy kubelet hides others


@pytest.mark.parametrize(
    ("changed", "name", "problem", "fix"),
    [
        ({"helper_image": "127.0.0.1:9/weft/helper:1"}, "image", "127.0.0.1:9/weft/helper:1", "weft up --registry"),
        ({"addresses": {"metrics": f"tls:{ADDRESS}:9"}}, "metrics", "refused", "open the port in the firewall"),
        ({"addresses": {"metrics": "tls:no-such-host.invalid:9"}}, "metrics", "has no address", "weft up --advertise"),
    ],
    ids=["registry", "port", "host"],
)
async def test_probe_pod_names_what_keeps_jobs_from_running_and_what_to_do(
    testbed_cluster: Cluster, helper_image: str, changed: dict[str, Any], name: str, problem: str, fix: str
) -> None:
    options = replace(OPTIONS, installation="probe", namespace_prefix="probe-", lcm_account="", guardian_account="")
    options = replace(options, **{"helper_image": helper_image, "helper_cpus": 0.5, "helper_memory": 2**27, **changed})
    api = Api(testbed_cluster.kubeconfig)
    try:
        checks = await probe(api, options, tenant="t", urls=[], report=lambda _: None)
        (failed,) = (check for check in checks if not check.ok)
        assert (failed.name, problem in failed.problem, fix in failed.fix) == (name, True, True), failed
        selector = names.of_job(names.PROBE, options.installation)
        for kind in ("Pod", "ConfigMap", "Secret", "NetworkPolicy"):
            assert (await api.list(collection(kind, "probe-t"), selector=selector))[0] == []
    finally:
        await api.close()


@pytest.fixture
def client(weft_up: Platform, testbed_cluster: Cluster) -> Generator[Client]:
    """Afterwards nothing of any job is left in the cluster."""
    with Client(weft_up.url, weft_up.key) as made:
        yield made
        for job in made.jobs.list():
            if not job.at_rest:
                job.kill()
        eventually(lambda: objects_left(testbed_cluster) == [])


def spec(command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "pods", "command": command, "resources": SMALL, "grace": "5s", **fields}


def test_two_learners_train_on_two_nodes_and_logs_metrics_and_results_arrive(
    client: Client, testbed_cluster: Cluster, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import os, weft\n"
        "rank = os.environ['WEFT_RANK']\n"
        "for step in range(3):\n"
        "    weft.report(step=step, loss=1 / (step + 1))\n"
        "open(os.environ['RESULT_DIR'] + '/model', 'w').write(rank)\n"
        "print('trained by', rank, 'of', os.environ['WEFT_WORLD_SIZE'], flush=True)\n"
        "while not os.path.exists(os.environ['JOB_STATE_DIR'] + '/end'): __import__('time').sleep(0.1)\n"
    )
    resources = {**SMALL, "gpus": 3}  # of four on each node: one learner each
    job = client.jobs.submit(spec("python3 train.py", learners=2, resources=resources), code=code)
    eventually(lambda: lines(job) == ["trained by 0 of 2", "trained by 1 of 2"])
    running = pods(testbed_cluster, job)
    assert {pod["spec"]["nodeName"] for pod in running} == {"node-1", "node-2"}
    for pod in running:
        end_command(testbed_cluster, pod)
    assert job.wait(HANG_S).status == "COMPLETED", job.message
    assert [event.to for event in job.history()] == [
        "QUEUED",
        "PENDING",
        "DOWNLOADING",
        "PROCESSING",
        "STORING",
        "COMPLETED",
    ]
    job.download(tmp_path / "results")
    assert sorted(path.read_text() for path in (tmp_path / "results").rglob("model")) == ["0", "1"]
    points = [(point.step, point.value) for point in job.points() if point.name == "loss"]
    assert sorted(points) == sorted(2 * [(step, 1 / (step + 1)) for step in range(3)])


def test_data_of_a_claim_is_read_where_the_job_mounts_it_and_nothing_else_of_the_pod(
    client: Client, testbed_cluster: Cluster
) -> None:
    folder = testbed_cluster.folder / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "first").write_text("first file\n")
    (folder / "out").symlink_to("/weft/token")
    folder.chmod(0o755)
    claim = claimed("set", f"{FOLDER_INSIDE}/{folder.name}", NAMESPACE)
    replace(testbed_cluster.kubectl, namespace=NAMESPACE).create(*claim)
    data = {"data_stores": [{"id": "d", "type": "pvc", "claim": "set"}]}
    reads = spec("cat $DATA_DIR/d/first; echo x > $DATA_DIR/d/second || echo read-only", **data)
    job = client.jobs.submit({**reads, "inputs": [{"store": "d", "path": "train"}]})
    assert job.wait(HANG_S).status == "COMPLETED", job.message
    assert lines(job) == ["first file", "read-only"]
    escaping = client.jobs.submit({**reads, "inputs": [{"store": "d", "path": "out"}]}).wait(HANG_S)
    assert (escaping.status, escaping.reason) == ("FAILED", "DataStoreDenied")


def test_results_are_on_a_claim_after_the_end_of_the_job_and_downloads_say_where(
    client: Client, testbed_cluster: Cluster, tmp_path: Path
) -> None:
    folder = testbed_cluster.folder / "kept"
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "first").write_text("first file\n")
    folder.chmod(0o777)
    claim = claimed("kept", f"{FOLDER_INSIDE}/{folder.name}", NAMESPACE, mode="ReadWriteMany")
    replace(testbed_cluster.kubectl, namespace=NAMESPACE).create(*claim)
    fields = {"data_stores": [{"id": "d", "type": "pvc", "claim": "kept"}], "outputs": {"store": "d", "path": "out"}}
    command = "cat $DATA_DIR/d/first | tee $RESULT_DIR/model; echo x > $DATA_DIR/d/second || echo read-only"
    job = client.jobs.submit(spec(command, learners=2, inputs=[{"store": "d", "path": "set"}], **fields))
    assert job.wait(HANG_S).status == "COMPLETED", job.message
    assert lines(job) == ["first file", "first file", "read-only", "read-only"]
    attempt = folder / "out" / job.id / "attempts" / "1"
    assert {path.relative_to(attempt).as_posix(): path.read_text() for path in attempt.rglob("model")} == {
        "worker-0/model": "first file\n",
        "worker-1/model": "first file\n",
    }
    with pytest.raises(NotFound, match=f"results are on the claim kept in out/{job.id}/attempts"):
        job.download(tmp_path)
    folder.chmod(0o755)
    refused = client.jobs.submit(spec("echo ran", **{**fields, "outputs": {"store": "d", "path": "other"}}))
    assert (refused.wait(HANG_S).status, refused.reason) == ("FAILED", "DataStoreDenied")
    assert "learners here have the user id" in refused.message
    assert lines(refused) == []


def test_learner_has_a_device_that_the_next_job_waits_for(client: Client, testbed_cluster: Cluster) -> None:
    resources = {**SMALL, "devices": {ADAPTER: 1}}
    with ExitStack() as stack:
        stack.callback(testbed_cluster.set_devices, "node-2", ADAPTER, 0)
        testbed_cluster.set_devices("node-2", ADAPTER, 1)
        eventually(lambda: {ADAPTER: 1} in [node["devices"] for node in client.cluster().get("nodes", ())])
        first = client.jobs.submit(
            spec("echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done", resources=resources)
        )
        eventually(lambda: lines(first) == ["up"])
        (pod,) = pods(testbed_cluster, first)
        assert pod["spec"]["nodeName"] == "node-2"
        assert pod["spec"]["containers"][0]["resources"]["limits"][ADAPTER] == "1"
        second = client.jobs.submit(spec("echo ran", resources=resources))
        (waiting,) = eventually(lambda: [job for job in client.queue() if f"1 {ADAPTER} (0 free)" in job["message"]])
        assert (waiting["id"], waiting["pending_reason"]) == (second.id, "WaitingForCapacity"), waiting
        end_command(testbed_cluster, pod)
        assert first.wait(HANG_S).status == "COMPLETED", history(first)
        assert second.wait(HANG_S).status == "COMPLETED", history(second)
    with pytest.raises(InvalidSpec, match=f"gives learners no 'example.org/fpga'; there are: {ADAPTER}"):
        client.jobs.submit(spec("true", resources={**SMALL, "devices": {"example.org/fpga": 1}}))


def test_data_of_an_s3_store_is_read_with_a_secret_that_is_nowhere_in_the_cluster(
    client: Client, testbed_cluster: Cluster, s3: S3
) -> None:
    s3.bucket("pods")
    (s3.data / "pods" / "a.txt").write_text("from s3\n")
    secret = {"access_key": s3.credentials.access_key, "secret_key": s3.credentials.secret_key}
    client.secrets.set("photos", secret)
    client.secrets.set("changed", {**secret, "secret_key": "wrong-canary"})
    with doorway(testbed_cluster.control_plane_pid, s3.port) as host:
        place = {"url": "s3://pods", "endpoint": f"http://{host}:{s3.port}", "region": REGION}
        job, refused = (
            client.jobs.submit(
                spec(
                    "cat $DATA_DIR/d/a.txt; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done",
                    data_stores=[{"id": "d", "type": "s3", "secret": name, **place}],
                    inputs=[{"store": "d"}],
                )
            )
            for name in ("photos", "changed")
        )
        eventually(lambda: lines(job) == ["from s3"])
        assert refused.wait(HANG_S).reason == "SecretInvalid", history(refused)
    assert "weft secret set changed" in refused.message
    words = [*secret.values(), "wrong-canary", "X-Amz-Signature="]
    objects = [item for path in COLLECTIONS for item in testbed_cluster.objects(path)]
    contents = [base64.b64decode(value).decode(errors="replace") for item in objects for value in values_of(item)]
    assert not [word for word in words for content in (json.dumps(objects), *contents) if word in content]
    (pod,) = pods(testbed_cluster, job)
    for container in ("learner", HELPER_CONTAINER):
        assert "/a.txt" in files_with(["from s3"], testbed_cluster, pod, container)
        assert files_with(words, testbed_cluster, pod, container) == ""
    end_command(testbed_cluster, pod)
    assert job.wait(HANG_S).status == "COMPLETED", job.message


def test_halted_job_saves_its_checkpoint_and_resumes_from_it(client: Client) -> None:
    command = """
      n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0)
      trap 'echo $((n + 1)) > "$CHECKPOINT_DIR/n"; exit 143' TERM
      echo "from $n"
      [ "$n" = 0 ] || exit 0
      while :; do sleep 0.1; done
    """
    job = client.jobs.submit(spec(command, grace="60s"))  # it saves at once, but for a machine that stalls
    eventually(lambda: lines(job) == ["from 0"])
    assert job.halt().wait(HANG_S).status == "HALTED"
    assert job.resume().wait(HANG_S).status == "COMPLETED", job.message
    assert lines(job) == ["from 0", "from 1"]


STUBBORN: Final = "trap '' TERM INT; setsid sleep 600 & echo up; while :; do sleep 0.1; done"
"""Ends by SIGKILL only, and leaves a process behind that has left its session."""


def test_killed_job_is_gone_from_the_cluster(client: Client, testbed_cluster: Cluster, announce: Say) -> None:
    job = client.jobs.submit(spec(STUBBORN, learners=2))
    eventually(lambda: lines(job) == ["up", "up"])
    announce(f"killed -> no pod left: {kill_and_await_gone(testbed_cluster, job):.1f} s, by the control stream")


def test_killed_job_is_gone_from_the_cluster_although_its_helpers_do_not_reach_the_platform(
    client: Client, testbed_cluster: Cluster, announce: Say
) -> None:
    job = client.jobs.submit(spec(STUBBORN, learners=2))
    eventually(lambda: lines(job) == ["up", "up"])
    with testbed_cluster.closed_port(metrics_port(testbed_cluster, job)):
        took_s = kill_and_await_gone(testbed_cluster, job)
    announce(f"killed -> no pod left: {took_s:.1f} s, with the metrics service away")


def metrics_port(cluster: Cluster, job: Job) -> int:
    """At which the job's helpers reach the metrics service."""
    owner = json.loads(
        cluster.kubectl("--namespace", NAMESPACE, "get", "configmap", f"weft-{job.id}-1", "--output=json")
    )
    addresses: dict[str, str] = json.loads(owner["data"]["addresses.json"])
    return int(addresses["metrics"].rpartition(":")[2])


@pytest.mark.promise("R9")
def test_job_of_a_lost_node_goes_on_elsewhere(client: Client, testbed_cluster: Cluster, promise: Promise) -> None:
    job = client.jobs.submit(spec("echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done"))
    eventually(lambda: lines(job) == ["up"])
    (pod,) = pods(testbed_cluster, job)
    (node,) = (entry for entry in testbed_cluster.nodes if entry.name == pod["spec"]["nodeName"])
    node.machine.kill()
    try:
        lost = time.monotonic()
        eventually(lambda: node.name not in testbed_cluster.ready_nodes())
        known = time.monotonic()
        await_event(testbed_cluster, job, lambda event: event.attempt == 2)
        admitted_s = time.monotonic() - known
        eventually(lambda: lines(job) == ["up", "up"])
        promise.saw(
            f"a node is lost -> the cluster knows: {known - lost:.1f} s; -> attempt 2 is admitted: {admitted_s:.1f} s "
            f"later; -> its learner runs: {time.monotonic() - known:.1f} s later"
        )
        (again,) = pods(testbed_cluster, job)
        assert again["spec"]["nodeName"] != node.name
        end_command(testbed_cluster, again)
        assert job.wait(HANG_S).status == "COMPLETED", history(job)
    finally:
        testbed_cluster.restart_node(node)
    assert [event.reason for event in job.history() if event.to == "QUEUED"][1:] == ["NodeLost"], history(job)
    promise.kept(1, "jobs whose node is lost: another attempt, on another node")


def test_gang_of_which_one_learner_has_no_image_is_undone_whole_and_queued_again_and_runs_once_the_image_is_there(
    client: Client, testbed_cluster: Cluster, helper_image: str
) -> None:
    """Three learners fit on the node that has the image, one on the other."""
    has, lacks = testbed_cluster.nodes
    with ExitStack() as stack:
        for node, gpus in ((has, 3), (lacks, 1)):
            stack.callback(testbed_cluster.set_gpus, node.name, 4)
            testbed_cluster.set_gpus(node.name, gpus)
        image = f"{stack.enter_context(empty_registry(lacks.machine.pid))}/weft/partly:1"
        stack.callback(has.remove_image, image)
        has.name_image(helper_image, image)
        job = client.jobs.submit(
            spec("echo ran", learners=4, image=image, resources={**SMALL, "gpus": 1}, retries={"backoff": "1s"})
        )
        undone = await_event(testbed_cluster, job, lambda event: event.to == "QUEUED" and event.attempt > 0)
        assert undone.reason == "ImagePullFailed", history(job)
        assert image in undone.message, history(job)
        assert lines(job) == []
        eventually(
            lambda: [name for name in objects_left(testbed_cluster) if f"{job.id}-{undone.attempt}" in name] == []
        )
        stack.callback(lacks.remove_image, image)
        lacks.name_image(helper_image, image)
        assert job.wait(HANG_S).status == "COMPLETED", history(job)
        assert lines(job) == ["ran"] * 4


def test_image_of_a_private_registry_is_pulled_with_the_secret_of_the_tenant_as_it_is_at_each_attempt(
    client: Client, weft_up: Platform, testbed_cluster: Cluster, tmp_path: Path
) -> None:
    node, other = testbed_cluster.nodes
    right = {"username": "ada", "password": "canary-of-life"}
    with ExitStack() as stack:
        stack.callback(testbed_cluster.set_gpus, other.name, 4)
        testbed_cluster.set_gpus(other.name, 0)
        registry = stack.enter_context(private_registry(node.machine.pid, write_private_image(tmp_path), **right))
        fields = {"image": f"{registry}/train:1", "image_pull_secret": "registry", "resources": {**SMALL, "gpus": 1}}
        wanted = spec("echo ran", retries={"backoff": "1s"}, **fields)
        with pytest.raises(InvalidSpec, match="has no secret 'registry'; set it: `weft secret set registry"):
            client.jobs.submit(wanted)
        client.secrets.set("registry", {**right, "password": "canary-that-is-wrong"})
        stack.callback(client.secrets.delete, "registry")
        job = client.jobs.submit(wanted)
        undone = await_event(testbed_cluster, job, lambda event: event.to == "QUEUED" and event.attempt > 0)
        client.secrets.set("registry", right)
        names_it = "the secret 'registry' of image_pull_secret" in undone.message
        assert (undone.reason, names_it) == ("ImagePullFailed", True), history(job)
        assert (job.wait(HANG_S).status, lines(job)) == ("COMPLETED", ["ran"]), history(job)
        assert files_of_platform_with(weft_up.home.root, [b"canary-"]) == []  # logs, stores, etcd
        eventually(lambda: [name for name in objects_left(testbed_cluster) if job.id in name] == [])


def test_exit_code_of_a_learner_in_a_pod_is_the_reason_of_the_failure(client: Client) -> None:
    job = client.jobs.submit(spec("exit 7")).wait(HANG_S)
    assert (job.status, job.reason) == ("FAILED", "ExitCode")
    assert "code 7" in job.message


def test_framework_runs_in_its_image_and_a_job_that_has_none_is_refused_at_the_submit(
    client: Client, testbed_cluster: Cluster, helper_image: str, tmp_path: Path
) -> None:
    listed = {entry["name"]: entry["image"] for entry in client.frameworks()}
    assert (listed["python"], listed["jax"]) == (helper_image, "")
    command = (
        "python3 -c 'import sys; print(sys.version_info[:2])'; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done"
    )
    job = client.jobs.submit(spec(command, framework="python:3.11"))
    eventually(lambda: lines(job) == ["(3, 11)"])
    (pod,) = pods(testbed_cluster, job)
    assert [container["image"] for container in pod["spec"]["containers"]] == [helper_image]
    end_command(testbed_cluster, pod)
    assert job.wait(HANG_S).status == "COMPLETED", job.message

    with pytest.raises(InvalidSpec, match=r"no image of jax 0\.10") as refused:
        client.jobs.submit(spec("true", framework="jax"))
    assert [error.pointer for error in refused.value.errors] == ["/framework"]
    (tmp_path / "requirements.txt").write_text("numpy\n")
    with pytest.raises(InvalidSpec, match=r"requirements\.txt is not installed on this cluster") as refused:
        client.jobs.submit(spec("true"), code=tmp_path)
    assert [error.pointer for error in refused.value.errors] == ["/code"]


def test_results_are_complete_although_the_helper_is_killed_at_any_of_its_steps(
    client: Client, testbed_cluster: Cluster, tmp_path: Path
) -> None:
    """One job for each step: before the command may start, while it runs, while the helper stores."""
    command = """
      for n in $(seq $FILES); do head -c 200000 /dev/urandom > $RESULT_DIR/$n; done
      echo made
      until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done
      echo ended
    """
    files = {"fetches": 3, "watches": 3, "stores": 150}
    jobs = {step: client.jobs.submit(spec(command, env={"FILES": str(count)})) for step, count in files.items()}
    helper_process(testbed_cluster, jobs["fetches"]).kill()
    for job in jobs.values():
        eventually(lambda job=job: lines(job) == ["made"])  # type: ignore[misc]
    helpers = {step: helper_process(testbed_cluster, job) for step, job in jobs.items()}
    helpers["watches"].kill()
    for step in ("fetches", "watches"):
        eventually(lambda job=jobs[step]: restarts(testbed_cluster, job) >= 1)  # type: ignore[misc]
    for job in jobs.values():
        end_command(testbed_cluster, *pods(testbed_cluster, job))
    # Storing takes seconds. On a machine that stalls, it may be over before it is seen: then the rest must hold, too.
    eventually(lambda: jobs["stores"].refresh().status in {"STORING", "COMPLETED"})
    helpers["stores"].kill()
    for step, job in jobs.items():
        assert job.wait(HANG_S).status == "COMPLETED", (step, history(job))
        assert job.attempt == 1, (step, history(job))
        assert lines(job) == ["ended", "made"], step
        job.download(tmp_path / step)
        sizes = [path.stat().st_size for path in (tmp_path / step).rglob("worker-0/*")]
        assert sizes == [200_000] * files[step], step


SHARES: Final = (0.1, 0.2, 0.3) if os.environ.get("WEFT_PROMISE") else (0.3,)
"""Of the API server's requests, which fail."""


@pytest.mark.promise("R5")
@pytest.mark.parametrize("share", SHARES)
def test_jobs_of_two_learners_end_right_while_the_api_server_fails_a_share_of_its_requests(
    client: Client, api_faults: FaultProxy, witness: Watcher, promise: Promise, share: float
) -> None:
    before, requests, count = api_faults.injected.copy(), api_faults.requests, promise.n(short=4, long=100)
    lives = [
        (("echo trained", "COMPLETED", ""), ("echo trained; exit 7", "FAILED", "ExitCode"))[number % 2]
        for number in range(count)
    ]
    api_faults.share = share
    try:
        jobs = [client.jobs.submit(spec(command, learners=2)) for command, _, _ in lives]
        ends = [(job.wait(HANG_S * count).status, job.reason) for job in jobs]
    finally:
        api_faults.share = 0.0
    assert ends == [(status, reason) for _, status, reason in lives], [job.message for job in jobs]
    for job in jobs:
        assert lines(job) == ["trained", "trained"], history(job)
    injected = api_faults.injected - before
    promise.kept(count, f"jobs of two learners whose API server fails {share:.0%} of its requests")
    kinds = ", ".join(f"{kind}: {number}" for kind, number in injected.most_common())
    promise.saw(f"{injected.total()} faults in {api_faults.requests - requests} requests: {kinds}")
    took_s = witness.wait_clean(30)
    promise.saw(f"nothing left behind after {took_s:.1f} s")
    assert len(injected) > 3


def test_hostile_learner_in_a_pod_reaches_nothing_of_the_platform_the_node_or_another_tenant(
    client: Client, weft_up: Platform, testbed_cluster: Cluster, tmp_path: Path
) -> None:
    """Some of `make hostile ON=pod`, all in one job."""
    guard = client.jobs.submit(spec("echo up; exec sleep 100000"))
    eventually(lambda: lines(guard) == ["up"])
    # A line may arrive before the cluster knows that its container was started.
    (pod,) = before = eventually(lambda: [pod for pod in pods(testbed_cluster, guard) if all(containers(pod))])
    known = {
        "key": weft_up.key,
        "api_servers": [f"{ADDRESS}:{PORT}"],
        "kubelets": kubelets(testbed_cluster),
        "victim": {"namespace": NAMESPACE, "pod": pod["metadata"]["name"]},
    }
    attacks = (
        "control_volume_is_written",
        "files_of_the_helper_are_read",
        "api_server_is_used",
        "kubelets_are_used",
        "container_is_filled",
        "fork_bomb_goes_off",
    )
    command = "; ".join(f"{IN_POD} pods {attack}" for attack in attacks)
    # With so little memory that the bomb's processes do not fit, the kernel needs minutes to end them.
    job = client.jobs.submit(
        spec(command, resources={"cpus": 0.25, "memory": "1GiB"}), code=attack_code(tmp_path, known)
    )
    # The bomb, which is the last, would stay, unless it reaches the bound of its memory before.
    eventually(lambda: BOMB in lines(job))
    with suppress(IllegalTransition):
        job.kill()
    assert job.wait(HANG_S).status == "KILLED" or job.reason == "OOMKilled", history(job)
    output = lines(job)
    assert [line for line in output if line.startswith(BREACH)] == []
    assert output.count(OVER) >= len(attacks) - 1, output
    reached = {f"API server {ADDRESS}:{PORT}", *(f"kubelet {server}" for server in kubelets(testbed_cluster))}
    assert {line for line in output if line.startswith("refused by")} == {f"refused by {server}" for server in reached}
    eventually(lambda: not pods(testbed_cluster, job))
    after = [(pod["metadata"]["uid"], containers(pod)) for pod in pods(testbed_cluster, guard)]
    assert after == [(pod["metadata"]["uid"], containers(pod)) for pod in before]
    assert guard.refresh().status == "PROCESSING"


def test_exit_that_a_learner_forges_is_not_its_exit(client: Client, tmp_path: Path) -> None:
    """Neither a success, nor a stop by somebody else, which would cost no retry."""
    forgeries = ("exit_record_is_forged", "termination_message_is_forged", "records_of_the_end_are_forged_for_ever")
    code = attack_code(tmp_path, {})
    jobs = [client.jobs.submit(spec(f"{IN_POD} pods {forgery}"), code=code) for forgery in forgeries]
    for job in jobs:
        job.wait(HANG_S)
        assert (job.status, job.reason, job.attempt) == ("FAILED", "ExitCode", 1), history(job)
        assert f"code {FORGED_CODE}" in job.message


def kubelets(cluster: Cluster) -> list[str]:
    return [f"{node.address}:10250" for node in cluster.nodes]


def attack_code(folder: Path, known: dict[str, Any]) -> Path:
    """A folder with the code of attacks. ``known``: what the attacker knows."""
    code = folder / "code"
    for name, content in attack_files(known).items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(content)
    return code

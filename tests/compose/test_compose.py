"""docker-compose.yml, used as docs/operator-guide.md says: from nothing, through kills, and down and up again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compose.stack import ROOT, SERVICES, STORES, Stack
from tests.testbed.kubernetes import traces
from tests.waiting import eventually
from weft import Client
from weft._job import Job

SMALL = {"cpus": 0.5, "memory": "64MiB"}
UP = "echo up; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done"
"""A learner that runs until it is halted or killed."""


def _weft(stack: Stack, folder: Path, *arguments: str, text: str = "") -> str:
    """Runs the command line with a profile of its own, as on a user's machine."""
    done = subprocess.run(
        [Path(sys.executable).with_name("weft"), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "*"},
        cwd=folder,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr, stack.compose("ps", "--all"))
    return done.stdout


def _submit(client: Client, command: str, **fields: object) -> Job:
    return client.jobs.submit({"name": "compose", "command": command, "resources": SMALL, **fields})


def _healthy(stack: Stack, service: str) -> bool:
    state = stack.container(service)["State"]
    return bool(state["Status"] == "running" and state["Health"]["Status"] == "healthy")


def _kill(stack: Stack, service: str) -> None:
    """Returns when the engine has started the container again."""
    killed = stack.kill(service)
    eventually(lambda: stack.container(service)["State"]["Pid"] not in {0, killed})


def test_up_from_nothing_then_login_and_train_with_two_learners(installed: Stack, tmp_path: Path) -> None:
    _weft(installed, tmp_path, "login", installed.url, "--key-stdin", text=installed.admin_key)
    followed = _weft(
        installed,
        tmp_path,
        "train",
        str(ROOT / "examples" / "hello"),
        "--set",
        "learners=2",
        "--follow",
        "--name",
        "two",
    )
    assert "COMPLETED" in followed
    with installed.client() as client:
        (job,) = client.jobs.list(name="two")
        assert sorted(line.rank for line in job.logs() if line.text.startswith("Hello from learner")) == [0, 1]
        job.download(tmp_path / "results")
    assert {path.read_text() for path in (tmp_path / "results").rglob("hello.txt")} == {"Hello, Weft\n"}


_PROBE = """
import os, socket, ssl
for name, address, port in {stores}:
    try:
        socket.create_connection((address, port), 3)
        print("reached", name)
    except OSError:
        print("away", name)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for name in ("api", "lcm", "guardian", "metrics"):
    try:
        with context.wrap_socket(socket.create_connection((name, 7000), 3)) as channel:
            channel.settimeout(3)
            channel.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
            print("served" if channel.recv(1) else "refused", name)
    except OSError:
        print("refused", name)
print("uid", os.getuid(), "secrets", os.path.exists("/var/lib/weft/secrets"))
"""


def test_a_learner_is_in_a_sandbox_and_reaches_no_store_and_no_service_without_a_certificate(installed: Stack) -> None:
    ports = {"mongodb": 27017, "etcd": 2379, "rabbitmq": 5672}
    stores = [
        (name, installed.container(name)["NetworkSettings"]["Networks"]["weft_inside"]["IPAddress"], port)
        for name, port in ports.items()
    ]
    with installed.client() as client:
        job = _submit(client, f"python3 - <<'END'\n{_PROBE.format(stores=stores)}\nEND")
        assert job.wait(300).status == "COMPLETED", job.message
        lines = _lines(job)
    away = [f"away {name}" for name in ports]
    assert lines[:7] == [*away, *(f"refused {service}" for service in ("api", "lcm", "guardian", "metrics"))]
    assert lines[7].startswith("uid 7")  # the first of the users of jobs is 70,000
    assert lines[7].endswith("secrets False")


def test_services_run_without_root_and_without_secrets_in_their_environment(installed: Stack) -> None:
    secrets = [installed.admin_key, *_secret_values(installed)]
    for service in (*SERVICES, *STORES):
        container = installed.container(service)
        assert (container["Config"]["User"] == "0:0") == (service == "node")
        environment = " ".join([*container["Config"]["Env"], *(container["Config"]["Cmd"] or ())])
        assert not [value for value in secrets if value in environment]


def _secret_values(stack: Stack) -> list[str]:
    text = stack.compose("exec", "-T", "api", "cat", "/var/lib/weft/settings.env", "/var/lib/weft/s3-credentials")
    return [text.partition("weft:")[2].partition("@")[0], text.partition("aws_secret_access_key=")[2].strip()]


def test_data_of_an_s3_store_is_read_with_a_secret_that_the_node_does_not_have(installed: Stack) -> None:
    make = "mkdir -p /data/objects/photos && echo from s3 > /data/objects/photos/a.txt"
    installed.compose("exec", "-T", "s3", "sh", "-c", make)
    text = installed.compose("exec", "-T", "api", "cat", "/var/lib/weft/s3-credentials")
    secret = {key: re.search(rf"^aws_{name}=(.*)$", text, re.MULTILINE)[1] for key, name in _OF_CREDENTIALS.items()}  # type: ignore[index]
    store = {"id": "d", "type": "s3", "url": "s3://photos", "endpoint": "http://s3:7070", "secret": "photos"}
    with installed.client() as client:
        client.secrets.set("photos", secret)
        job = _submit(client, "cat $DATA_DIR/d/a.txt; env", data_stores=[store], inputs=[{"store": "d"}])
        assert job.wait(300).status == "COMPLETED", job.message
        lines = _lines(job)
    assert lines[0] == "from s3"
    words = [*secret.values(), "X-Amz-Signature="]
    assert not [line for line in lines if any(word in line for word in words)]
    search = "grep -rlsF -D skip -f - /var/lib/weft /proc/[0-9]*/environ || true"
    assert installed.compose("exec", "-T", "node", "sh", "-c", search, stdin="\n".join(words).encode()) == ""
    # The key that opens the tenant's secret is the api's alone.
    with_key = [
        service
        for service in SERVICES
        if "there" in installed.compose("exec", "-T", service, "sh", "-c", f"test ! -e {_MASTER_KEY} || echo there")
    ]
    assert with_key == ["api"]


_OF_CREDENTIALS = {"access_key": "access_key_id", "secret_key": "secret_access_key"}
_MASTER_KEY = "/var/lib/weft/secrets/master-key"


def test_each_killed_container_comes_back_and_no_job_is_lost(installed: Stack) -> None:
    with installed.client() as client:
        steady = _submit(client, UP, learners=2)
        eventually(lambda: _lines(steady) == ["up", "up"])
        for service in (*STORES, "api", "lcm", "guardian", "metrics", "worker"):
            _kill(installed, service)
        eventually(lambda: all(_healthy(installed, service) for service in (*STORES, *SERVICES)))
        # None of them ended a learner, and the platform works.
        assert (steady.refresh().status, steady.attempt) == ("PROCESSING", 1)
        quick = _submit(client, "echo done", learners=2)
        assert quick.wait(300).status == "COMPLETED", quick.message
        assert _lines(quick) == ["done", "done"]
        # The learners live in the node agent's container: another attempt, which uses no retry.
        installed.kill("node")
        eventually(lambda: steady.refresh().attempt == 2 and _lines(steady) == ["up"] * 4)
        steady.kill()
        assert steady.wait(300).status == "KILLED"


def _lines(job: Job) -> list[str]:
    return [line.text for line in job.logs()]


def test_down_and_up_again_loses_nothing(installed: Stack, tmp_path: Path) -> None:
    with installed.client() as client:
        ended = _submit(client, 'echo kept; echo kept > "$RESULT_DIR/file"')
        assert ended.wait(300).status == "COMPLETED"
        running = _submit(client, UP)
        eventually(lambda: _lines(running) == ["up"])
        key = installed.admin_key
    installed.compose("down")
    installed.up()
    assert installed.admin_key == key
    with installed.client() as client:
        again = client.jobs.get(ended.id)
        assert (again.status, _lines(again)) == ("COMPLETED", ["kept"])
        again.download(tmp_path)
        assert [path.read_text() for path in tmp_path.rglob("file")] == ["kept\n"]
        # It continues in another attempt, as after a loss of power.
        unfinished = client.jobs.get(running.id)
        eventually(lambda: unfinished.refresh().attempt == 2 and _lines(unfinished) == ["up"] * 2)
        unfinished.kill()
        assert unfinished.wait(300).status == "KILLED"


def test_a_backup_restores_jobs_and_keys_on_an_empty_installation(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir(mode=0o700)
    os.chown(tmp_path / "backups", 10_001, 10_001)
    variables = {"WEFT_BACKUPS": str(tmp_path / "backups")}
    with installed.client() as client:
        job = _submit(client, 'echo saved; echo saved > "$RESULT_DIR/file"')
        assert job.wait(300).status == "COMPLETED"
        key = installed.admin_key
    installed.compose("run", "--rm", "-T", "tools", "weft", "backup", "/backups/weft.backup", variables=variables)
    installed.remove()
    installed.compose("up", "--wait", "mongodb-users", "etcd", "s3")
    installed.compose("run", "--rm", "-T", "tools", "weft", "restore", "/backups/weft.backup", variables=variables)
    installed.up()
    assert installed.admin_key != key
    with Client(installed.url, key) as client:  # every key of the old installation works
        restored = client.jobs.get(job.id)
        assert (restored.status, _lines(restored)) == ("COMPLETED", ["saved"])
        restored.download(tmp_path / "results")
    assert [path.read_text() for path in (tmp_path / "results").rglob("file")] == ["saved\n"]


def test_the_api_serves_the_dashboard(installed: Stack) -> None:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(installed.url, timeout=60) as answer:
        page = answer.read().decode()
    assert "<title>Weft" in page
    assert re.search(r'src="[^"]*assets/[^"]+\.js"', page)


_QUERY = """
import http.client, ssl, sys, urllib.parse
context = ssl.create_default_context(cafile="/var/lib/weft/tls/authority.pem")
context.load_cert_chain("/var/lib/weft/tls/certificate.pem", "/var/lib/weft/tls/key.pem")
connection = http.client.HTTPSConnection("prometheus", 9090, context=context, timeout=10)
try:
    connection.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[1]}))
    print(connection.getresponse().read().decode())
except OSError:
    print("{}")
"""
"""Of the api's container, with its certificate."""
_READ_PROMETHEUS = """
import socket, ssl
def served(channel):
    with channel:
        channel.sendall(b"GET /api/v1/query?query=up HTTP/1.0\\r\\n\\r\\n")
        return b"200 OK" in channel.recv(4096)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for name, wrap in (("plain", lambda channel: channel), ("tls", context.wrap_socket)):
    try:
        print(name, "served" if served(wrap(socket.create_connection(("prometheus", 9090), 10))) else "refused")
    except ssl.SSLError:
        print(name, "refused")
"""


def _query(stack: Stack, expression: str) -> dict[str, float]:
    """Instance -> value, as Prometheus answers; empty before it does."""
    answer = json.loads(stack.compose("exec", "-T", "api", "python", "-c", _QUERY, expression))
    results = answer.get("data", {}).get("result", ())
    return {result["metric"].get("instance", ""): float(result["value"][1]) for result in results}


def test_prometheus_reads_every_service_and_answers_no_learner(installed: Stack) -> None:
    installed.compose("--profile=monitoring", "up", "--wait", "prometheus")
    everything = {f"{service}:7001": 1.0 for service in SERVICES}
    eventually(lambda: _query(installed, 'up{job="weft"}') == everything)
    eventually(lambda: set(_query(installed, "weft_lcm_jobs_holding")) == {"lcm:7001"})
    with installed.client() as client:
        job = _submit(client, f"python3 - <<'END'\n{_READ_PROMETHEUS}\nEND")
        assert job.wait(300).status == "COMPLETED", job.message
        assert _lines(job) == ["plain refused", "tls refused"]


def test_the_image_can_start_every_adapter(installed: Stack) -> None:
    imports = (
        "import importlib, pkgutil, services\n"
        "for module in pkgutil.walk_packages(services.__path__, 'services.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)"
    )
    installed.compose("exec", "-T", "api", "python", "-c", imports)


def test_the_image_names_its_revision_and_has_no_compiler_and_no_pip(installed: Stack) -> None:
    image: dict[str, Any] = installed.container("api")["Config"]
    labels = image["Labels"]
    assert len(labels["org.opencontainers.image.revision"].removesuffix("-changed")) == 40
    tools = installed.compose(
        "exec",
        "-T",
        "api",
        "sh",
        "-c",
        "command -v pip pip3 gcc cc make; python -c 'import importlib.util as u; print(u.find_spec(\"pip\"))'",
    )
    assert tools == "None\n"


def test_the_engine_leaves_the_network_of_this_machine_alone(
    installed: Stack, machine_before: Mapping[str, object]
) -> None:
    eventually(lambda: _healthy(installed, "api"))  # a probe of a busy machine may be late
    assert traces.host() == machine_before

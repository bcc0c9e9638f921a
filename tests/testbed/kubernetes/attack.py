"""What a learner in a pod tries against its own control volume, its node and the cluster. Standard library only.

The file is the code of a hostile job and runs in the learner's container. Each line that begins with ``BREACH`` is
something that the attacker could do and should not.
"""

from __future__ import annotations

import http.client
import os
import resource
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

CONTROL = Path("/weft/control")
HELPERS = ("/weft/plan", "/weft/token", "/weft/private", "/var/run/secrets/kubernetes.io")
API_SERVERS = (("10.99.0.1", 6443), ("10.96.0.1", 443), ("kubernetes.default.svc.cluster.local", 443))
SECRETS = ("/api/v1/secrets", "/api/v1/namespaces", "/api/v1/nodes", "/apis/scheduling.k8s.io/v1alpha2/podgroups")
KUBELETS = ("/pods", "/runningpods/", "/configz", "/metrics", "/logs/", "/run/kube-system/x/y", "/exec/a/b/c")
CLOSED = (
    ("10.99.0.1", 2379), ("10.99.0.1", 10257), ("10.99.0.1", 10259), ("10.99.0.11", 10255), ("10.99.0.12", 10255),
    ("10.99.0.11", 10248), ("10.99.0.11", 10249),
)  # fmt: skip
"""etcd, the controller manager, the scheduler, and what kubelet and kube-proxy serve without credentials."""
_FORKS = 400
_CONNECT_S = 3.0


def main() -> None:
    write_control()
    read_of_the_helper()
    use_the_api_server()
    use_the_kubelets()
    connect_to_closed_ports()
    raise_rights()
    fork_without_end()
    say("ATTACK OVER")


def write_control() -> None:
    """Writes into the volume by which the helper speaks to the entry process."""
    for name in ("stored", "stop.json", "go", "prepared.json", "forged"):
        with suppress(OSError):
            (CONTROL / name).write_text("forged-by-a-learner")
            breach(f"wrote {name} into the control volume")
    for options in ("remount,rw", "remount,bind,rw"):
        if subprocess.run(["mount", "-o", options, str(CONTROL)], capture_output=True, check=False).returncode == 0:
            breach(f"mount -o {options} of the control volume")


def read_of_the_helper() -> None:
    """Reads what only the helper may have: plan, token, private files, a service account's token."""
    for folder in HELPERS:
        with suppress(OSError):
            breach(f"{folder} has {sorted(map(str, Path(folder).iterdir()))}")


def use_the_api_server() -> None:
    """Reads objects without credentials."""
    for host, port in API_SERVERS:
        for path in SECRETS:
            judge(f"API server {host}", path, requested(host, port, path))


def use_the_kubelets() -> None:
    """Reads from and executes in other pods by the kubelets' own ports."""
    for host in ("10.99.0.11", "10.99.0.12"):
        for path in KUBELETS:
            judge(f"kubelet {host}", path, requested(host, 10250, path))


def connect_to_closed_ports() -> None:
    """Connects to servers that check no credentials."""
    for host, port in CLOSED:
        with suppress(OSError), socket.create_connection((host, port), timeout=_CONNECT_S):
            breach(f"{host}:{port} accepts connections")


def raise_rights() -> None:
    """Becomes root, mounts, and makes a device."""
    with suppress(OSError):
        os.setuid(0)
        breach("became root")
    with suppress(OSError):
        os.mknod("/tmp/disk", 0o60666, os.makedev(8, 0))
        breach("made a device")
    with suppress(OSError):
        os.chroot("/")
        breach("changed its root")


def fork_without_end() -> None:
    """Forks children that fork and stay. Bounded by itself, as the machine is that of the tests."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for _ in range(_FORKS):
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            os.setsid()
            with suppress(OSError):
                os.execvp("sleep", ["sleep", "600"])  # noqa: S606
            os._exit(1)


def judge(server: str, path: str, status: int) -> None:
    """Reports an answer that is no refusal. A refusal shows that the server was reached at all."""
    if status in {401, 403}:
        say(f"refused by {server}")
    elif status:
        breach(f"{server} answers {path} with {status}")


def requested(host: str, port: int, path: str) -> int:
    """Returns the status of a request without credentials; 0 if there is no answer."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        connection = http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=context)
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


def breach(text: str) -> None:
    say(f"BREACH {text}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

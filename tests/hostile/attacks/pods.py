"""Attacks that only a learner in a pod can try: on its control volume, its node, the cluster, the record of its end."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tests.hostile.attacks.ground import FORGED, breach, detached, folder, intel, must_fail, say, tried

CONTROL: Final = Path("/weft/control")
_RUN: Final = Path("/weft/runs/1")
_MESSAGE: Final = Path("/dev/termination-log")
_HELPERS: Final = ("/weft/plan", "/weft/token", "/weft/private", "/var/run/secrets/kubernetes.io")
_OBJECTS: Final = (
    "/api/v1/secrets",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/apis/scheduling.k8s.io/v1alpha2/podgroups",
)
_SUCCESS: Final = {"schema": 1, "time": 1, "code": 0, "signal": 0, "stop_cause": "halt", "lost": True, "run": 1}
"""A record of an end that is a success, a stop by somebody else, and the loss of the node at once."""
FORGED_CODE: Final = 7
"""The real exit code of the learners that forge another one."""
_DEPTH: Final = 10
BOMB: Final = "the fork bomb goes off"
_STAY_S: Final = 60.0
_DELAY_S: Final = 10.0
_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 30.0
"""Of a server that has to refuse a request, on a busy machine."""
_MIB: Final = 2**20
LEARNERS_PATH: Final = "/by-the-learner"
"""Of requests to the metadata service: whatever asks for another path is not the learner's code."""


def control_volume_is_written() -> None:
    """Writes into the volume by which its helper speaks to the entry process, and mounts it anew."""
    for name in ("stored", "stop.json", "go", "prepared.json", "sdk/weft/__init__.py", "hostile"):
        with suppress(OSError):
            (CONTROL / name).write_text(FORGED)
            breach(f"wrote {name} into the control volume")
        with suppress(OSError):
            (CONTROL / name).unlink()
            breach(f"removed {name} from the control volume")
    for options in ("remount,rw", "remount,bind,rw"):
        if subprocess.run(["mount", "-o", options, str(CONTROL)], capture_output=True, check=False).returncode == 0:
            breach(f"mount -o {options} of the control volume")


def files_of_the_helper_are_read() -> None:
    """Reads what only its helper may have: the plan, the token, the spool, a service account's token."""
    for place in _HELPERS:
        with suppress(OSError):
            breach(f"{place} has {sorted(os.listdir(place))}")


def image_puts_links_where_its_helper_fetches() -> None:
    """Runs in an image whose sh, before the gang starts, puts links to the control volume in the places of folders in
    which its helper fetches."""
    place = folder("JOB_STATE_DIR")
    if not (place / "began-in-time").exists():
        breach("the image's sh has begun after its helper had fetched: the attack is wrong")
    say(f"names in its folder: {sorted(os.listdir(place))}")
    for name in sorted(os.listdir(place)):
        if name.startswith("taken-"):
            breach(f"its helper has made {name.partition('-')[2]} within its reach")
    for name in ("model-code", "data", "checkpoints"):
        if (CONTROL / name).exists():
            breach(f"its helper has written {name} into the control volume")


def api_server_is_used() -> None:
    """Reads objects from the API server, creates and removes pods, with forged credentials and without."""
    known = intel()
    victims = f"/api/v1/namespaces/{known['victim']['namespace']}"
    requests = [("GET", path) for path in (*_OBJECTS, f"{victims}/secrets", f"{victims}/pods")]
    requests += [("POST", f"{victims}/pods"), ("DELETE", f"{victims}/pods/{known['victim']['pod']}")]
    for server in known["api_servers"]:
        headers: tuple[dict[str, str], ...] = (
            {},
            {"Authorization": f"Bearer {known['key']}"},
            {"X-Remote-User": "admin"},
        )
        _judge_all(f"API server {server}", server, requests, headers)


def kubelets_are_used() -> None:
    """Reads pods, settings and logs from every kubelet, and executes a command in the victim's pod."""
    known = intel()
    pod = f"{known['victim']['namespace']}/{known['victim']['pod']}/learner"
    pages = ("/pods", "/runningpods/", "/configz", "/metrics", "/logs/", "/stats/summary")
    requests = [("GET", path) for path in pages]
    requests += [
        ("POST", f"/run/{pod}?cmd=id"),
        ("POST", f"/exec/{pod}?command=id&output=1"),
        ("GET", f"/containerLogs/{pod}"),
    ]
    for server in known["kubelets"]:
        _judge_all(f"kubelet {server}", server, requests, ({},))


def machines_are_scanned() -> None:
    """Connects to every port of the control plane and of the nodes, and lists what answers beside what has to."""
    for host, expected in intel()["machines"].items():
        answering = [port for port in range(1, 65_536) if _answers(host, port)]
        say(f"ports of {host} that answer: {answering}")
        for port in sorted({*answering} - {*expected}):
            breach(f"port {port} of {host} answers a learner")
        if not answering:
            breach(f"nothing of {host} answers: the attack is wrong")


def metadata_service_is_read() -> None:
    """Asks the address of clouds' metadata services for the credentials of the node."""
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(intel()["metadata"], timeout=_CONNECT_S)
        connection.request("GET", LEARNERS_PATH, headers={"Metadata-Flavor": "Google"})
        say(f"the metadata service answers with {connection.getresponse().status}")


def exit_record_is_forged() -> None:
    """Writes the entry process's record of a success, and fails."""
    tried("the record", lambda: (_RUN / "exit.json").write_text(json.dumps(_SUCCESS)))
    os._exit(FORGED_CODE)


def termination_message_is_forged() -> None:
    """Writes the record of a success into the container's termination message, and fails."""
    tried("the message", lambda: _MESSAGE.write_text(json.dumps(_SUCCESS)))
    os._exit(FORGED_CODE)


def records_of_the_end_are_forged_for_ever() -> None:
    """Removes the records, and leaves a daemon that writes the termination message without end; then it fails."""

    def write() -> None:
        deadline = time.monotonic() + _STAY_S
        while time.monotonic() < deadline:
            for place in (_MESSAGE, _RUN / "exit.json", _RUN / "exit.reserved"):
                with suppress(OSError):
                    place.write_text(json.dumps(_SUCCESS))

    for place in (_RUN / "exit.json", _RUN / "exit.reserved", _MESSAGE):
        tried(f"removing {place}", place.unlink)
    detached(write)
    os._exit(FORGED_CODE)


def programs_of_the_entry_are_replaced() -> None:
    """Replaces the programs of the entry process by its own, which forge records and wait; then it fails."""
    place = Path(os.environ["PATH"].partition(":")[0])
    place.mkdir(parents=True, exist_ok=True)
    forge = f"printf '%s' '{json.dumps(_SUCCESS)}' > "
    for name, text in {
        "mv": f"{forge} {_RUN}/exit.json; {forge} {_MESSAGE}; exit 0",
        "rm": "exit 0",
        "date": "echo 99999999999999999999",
        "sleep": f"{forge} {_RUN}/exit.json; {forge} {_MESSAGE}; exec /bin/sleep {_DELAY_S}",
        "tail": "cat /dev/zero",
        "wc": f"exec /bin/sleep {_DELAY_S}",
    }.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    os._exit(FORGED_CODE)


def start_is_forged() -> None:
    """Removes the record of its start and its output, and puts folders and links in their places."""
    for name in ("start.json", "stdout", "stderr", "usage.json", "stopped"):
        tried(f"removing {name}", (_RUN / name).unlink)
    tried("a folder", (_RUN / "start.json").mkdir)
    tried("a link", lambda: (_RUN / "stdout").symlink_to("/weft/token/token"))
    tried("a link", lambda: (_RUN / "stderr").symlink_to("/weft/plan/plan.json"))
    tried("a mark of a stop", lambda: (_RUN / "stopped").write_text("0 kill"))


def volume_is_filled() -> None:
    """Writes more into its own volume than the volume's bound, and stays."""
    with suppress(OSError), (folder("HOME") / "fill").open("wb") as file:
        for _ in range(700):
            file.write(bytes(_MIB))
    say("filled")
    time.sleep(600)


def container_is_filled() -> None:
    """Writes wherever the root of its container lets it: that is the node's disk, and no volume with a bound."""
    root = os.stat("/").st_dev
    for place, _, _ in os.walk("/"):
        with suppress(OSError):
            if os.stat(place).st_dev != root:
                continue
            path = Path(place) / "hostile"
            path.write_bytes(bytes(_MIB))
            breach(f"wrote {path} beside its volumes")
            path.unlink()


def files_of_the_node_are_filled() -> None:
    """Makes each file of the node that its container has, e.g. the termination message, a tebibyte long."""
    mounted = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    files = [place for place in mounted if not place.is_relative_to("/proc") and place.is_file()]
    if _MESSAGE not in files:
        breach(f"the termination message is none of {files}: the attack is wrong")
    for place in files:
        must_fail(f"a tebibyte in {place}", partial(os.truncate, place, 2**40))
        tried(f"nothing in {place}", partial(os.truncate, place, 0))
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if bound != resource.RLIM_INFINITY:
        must_fail("a higher bound", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 * bound, 2 * bound)))


def fork_bomb_goes_off() -> None:
    """Forks a thousand processes, each of which forks two more in a session of its own, and stays."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    say(BOMB)
    for _ in range(_DEPTH):
        with suppress(OSError):
            if os.fork() == 0:
                os.setsid()
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            os.execv("/bin/sleep", ["sleep", str(_STAY_S)])
        os._exit(1)


def _judge_all(name: str, server: str, requests: list[tuple[str, str]], headers: tuple[dict[str, str], ...]) -> None:
    """Reports each answer that is no refusal. A refusal shows that the server was reached at all."""
    for given in headers:
        for method, path in requests:
            status = _requested(server, method, path, given)
            if status in {401, 403}:
                say(f"refused by {name}")
            elif status:
                breach(f"{name} answers {path} with {status}")
            else:
                say(f"no answer of {name}")
                return


def _answers(host: str, port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(_CONNECT_S)
        return connection.connect_ex((host, port)) == 0


def _requested(server: str, method: str, path: str, headers: dict[str, str]) -> int:
    """Returns the status of a request; 0 if there is no answer."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        connection = http.client.HTTPSConnection(server, timeout=_ANSWER_S, context=context)
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0

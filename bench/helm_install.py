"""Measures the chart on the test bed: install to the first trained job, cold starts of services, a roll under load.

    python -m bench.helm_install [--kills 5] [--quick]

Two nodes on this machine (as root), whose images are there already; the small profile with the test bed's stores. The
install ends when all pods are ready, and the first job when `helm test` has its curves and results. A cold start is the
time from the deletion of a service's pod, without grace, until its successor is ready: probes come every few seconds.
The roll under load goes to the next version and back, while a client in a pod submits, lists, reads and follows.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from tests.helm.client import client
from tests.helm.installation import RELEASE, Helm, Installation, helm_program, import_images, make_volumes
from tests.helm.versions import import_versions, values
from tests.testbed.kubernetes import programs
from tests.testbed.kubernetes.cluster import cluster

_SERVICES = ("api", "lcm", "guardian", "metrics", "worker")
_WITHIN_S = 600.0
_TWO = "--set=api.replicas=2,lcm.replicas=2,guardian.replicas=2,worker.replicas=2"


def _say(what: str) -> None:
    sys.stderr.write(f"helm_install: {what}\n")


def _roll(installed: Installation) -> list[Row]:
    """All services with two replicas, to the next version and back."""
    installed.upgrade(_TWO)
    times: list[float] = []
    with client(installed) as end_client:
        for version in ((values("next"),), ()):
            began = time.monotonic()
            installed.upgrade(_TWO, *version)
            times.append(time.monotonic() - began)
        observed = end_client()
    failed = len(observed["errors"]) + len(observed["not completed"])
    return [
        Row("roll under load: helm upgrade", times, "s"),
        Row(f"roll under load: errors seen by a client, of {observed['requests']} requests", [failed], "", "0"),
    ]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="of each service (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one of each")
    args = parser.parse_args()
    helm = helm_program(_say)
    programs.build(_say, simulated=False)
    with ending_cleanly(), cluster(nodes=2, say=_say) as machines:
        import_images(machines, _say)
        make_volumes(machines)
        installed = Installation(machines, Helm(helm, machines.kubeconfig))
        began = time.monotonic()
        installed.install()
        ready = time.monotonic()
        installed.helm("test", RELEASE, "--timeout=10m")
        trained = time.monotonic()
        rows = [
            Row("helm install: all pods ready", [ready - began], "s"),
            Row("helm test: two learners trained", [trained - ready], "s"),
            Row("install to first job trained", [trained - began], "s"),
        ]
        for service in _SERVICES:
            times: list[float] = []
            for _ in range(1 if args.quick else args.kills):
                killed = time.monotonic()
                installed.kill_pod(service, _WITHIN_S)
                times.append(time.monotonic() - killed)
            rows.append(Row(f"{service}: pod deleted, successor ready", times, "s"))
        import_versions(machines, ("next",), _say)
        rows += _roll(installed)
    show("helm_install: the chart on two nodes of this machine", rows)


if __name__ == "__main__":
    main()

"""make cluster-up, cluster-down and cluster-status."""

from __future__ import annotations

import argparse
import sys
import time

from tests.testbed.kubernetes.cluster import MOST_NODES, Cluster, say_to_stderr, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.kubernetes", description=__doc__)
    parser.add_argument("--name", default="default", help="of the cluster; several may run side by side")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster that stays")
    up.add_argument("--nodes", type=int, default=1, choices=range(MOST_NODES + 1), help="real nodes (default 1)")
    up.add_argument("--simulated", type=int, default=0, metavar="N", help="simulated nodes, by kwok")
    up.add_argument("--gpus", type=int, default=4, metavar="N", help="fake GPUs on each node (default 4)")
    up.add_argument("--owner", type=int, metavar="PID", help="a later run ends it if this process has ended")
    commands.add_parser("down", help="end it without a trace")
    commands.add_parser("status", help="what runs of it")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.name)
    try:
        if arguments.command == "up":
            _up(cluster, arguments)
            return 0
        if arguments.command == "down":
            _down(cluster)
            return 0
        return _status(cluster)
    except KeyboardInterrupt:
        say_to_stderr("interrupted; nothing is left of it")
        return 130
    except (RuntimeError, TimeoutError) as error:
        say_to_stderr(str(error))
        return 1


def _up(cluster: Cluster, arguments: argparse.Namespace) -> None:
    sweep()
    began = time.monotonic()
    cluster.up(
        nodes=arguments.nodes,
        simulated_nodes=arguments.simulated,
        gpus=arguments.gpus,
        keep=True,
        owner=arguments.owner,
    )
    say_to_stderr(f"up after {time.monotonic() - began:.0f} s; `make cluster-down` ends it")
    _print_use(cluster)


def _down(cluster: Cluster) -> None:
    say_to_stderr("ended" if cluster.down() else "there is none")
    sweep()


def _status(cluster: Cluster) -> int:
    """Returns 1 if a part of it has ended, 3 if there is none."""
    if not cluster.settings:
        say_to_stderr("there is none; `make cluster-up` starts it")
        return 3
    ended = 0
    for machine in cluster.machines:
        sys.stdout.write(f"{machine.name}: {'up' if machine.alive else 'DOWN'}\n")
        for server, process in machine.servers().items():
            ended += not process.alive
            state = f"pid {process.pid}" if process.alive else "ENDED"
            sys.stdout.write(f"  {server:<24} {state:<12} {machine.log(server)}\n")
    if cluster.up_now:
        sys.stdout.write(cluster.kubectl("get", "nodes", "--output=wide"))
        _print_use(cluster)
    return 1 if ended or not cluster.up_now else 0


def _print_use(cluster: Cluster) -> None:
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig} PATH=$PATH:{cluster.folder / 'bin'}\n")


if __name__ == "__main__":
    sys.exit(main())

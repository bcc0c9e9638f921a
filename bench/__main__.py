"""``python -m bench [NAME ...]``: the benchmarks one after the other, each in a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHMARKS = {
    "cli": "duration of command line calls",
    "start_latency": "submit -> the learner's process runs, by stages",
    "submit": "durable submissions per second, and their latency at 50 a second",
    "release": "the process ends -> its hardware is free, and the next job runs",
    "status_latency": "a job's status changes -> its follower has read the change",
    "metrics_stream": "a learner reports a point -> the follower of its job has it",
    "footprint": "memory and processor time of a waiting job, and of a running one",
    "metrics_ingest": "lines and points stored per second; delay until a follower has them",
    "transport": "calls between two services over sockets and mutual TLS, beside plain TCP",
    "tokens": "what the tokens of services cost per call",
    "takeover": "a part of the platform is killed -> it works again",
    "scale_history": "a million ended jobs beside a thousand: idle time, list, show, submit",
    "k8s_create": "100 jobs x 4 -> their pods exist, beside plain pods and Kubernetes Jobs (as root)",
    "k8s_gang": "400 gangs x 8 -> all bound on 500 simulated nodes, beside the same (as root)",
    "k8s_load": "a job among 700 against one among 70, as in FfDL's heavy load, on simulated nodes (as root)",
    "k8s_storm": "2,000 jobs submitted within 10 s, on simulated nodes (as root)",
    "helm_install": "the chart: install to first job trained, cold starts in pods, a roll under load (as root)",
    "dashboard": "the dashboard in Chromium: first row of many jobs, a long curve, many open pages",
    "checkpoints": "what storing checkpoints in the background costs a training",
    "steady_overhead": "what the platform's processes cost a training while it runs",
    "overhead": "a training run on the platform against the same bare processes",
}


def main() -> int:
    """Returns 1 if a benchmark failed."""
    listed = "\n".join(f"  {name:<16}{what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Runs benchmarks; all of them if none is named.\n\n{listed}",
        epilog="`python -m bench.NAME --help` describes the measurement and its options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run")
    parser.add_argument("--quick", action="store_true", help="short runs: about two minutes for all")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    failed: list[str] = []
    for name in args.names or BENCHMARKS:
        options = ["--quick"] if args.quick else []
        print(f"\n== python -m bench.{name} {' '.join(options)}".rstrip(), flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nbench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

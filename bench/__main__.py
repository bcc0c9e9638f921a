"""``python -m bench [NAME ...]``: the benchmarks one after the other, each in a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHMARKS = {
    "cli": "how long a person waits for the command line",
    "start_latency": "submit -> the learner's process runs, and where the time goes",
    "submit": "durable submissions per second, and how long one takes at 50 a second",
    "release": "the process ends -> its hardware is free, and the next job runs",
    "status_latency": "a job's status changes -> who follows it has read so",
    "metrics_stream": "a learner reports a point -> who follows the job has it",
    "footprint": "memory and processor time of a job that waits, and of one that runs",
    "metrics_ingest": "lines and points taken in per second; how soon a follower sees them",
    "takeover": "a part of the platform is killed -> it works again",
    "overhead": "a training run on the platform against the same bare processes",
}


def main() -> int:
    """1 if any of them failed."""
    listed = "\n".join(f"  {name:<16}{what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Runs benchmarks; all of them if none is named.\n\n{listed}",
        epilog="`python -m bench.NAME --help` says what exactly is measured, and what can be chosen.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones")
    parser.add_argument("--quick", action="store_true", help="a minute or two for all: shows that they work")
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

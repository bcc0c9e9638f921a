"""Uses the platform until the file /tmp/end is there: runs in a pod, beside an upgrade. Prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from weft import Client, Job, WeftError

END = Path("/tmp/end")
KEY = Path("/etc/weft/keys/admin-key")
RESOURCES = {"cpus": 0.02, "memory": "32MiB"}
_PAUSE_S = 0.2
_READS = 25
"""Between two submits."""
_WITHIN_S = 600.0
_COUNT = "n=0; while true; do n=$((n + 1)); echo $n; sleep 1; done"


class Follower(threading.Thread):
    """Follows the log of a job that counts, in one call of the SDK."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self.numbers: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        try:
            for line in self._job.logs(follow=True):
                if line.stream == "stdout":
                    self.numbers.append(int(line.text))
        except (WeftError, OSError) as error:
            self.errors.append(f"follow: {error!r}")


def use(client: Client, followed: Job) -> dict[str, Any]:
    """Reads often, lists, and submits small jobs. At the end it waits until all of them are at rest."""
    errors: list[str] = []
    requests, jobs = 0, []
    while not END.exists():
        try:
            if requests % _READS == 0:
                jobs.append(client.jobs.submit({"name": "short", "command": "echo done", "resources": RESOURCES}))
            elif requests % _READS == 1:
                listed = {job.id for job in client.jobs.list()}
                if missing := {followed.id, *(job.id for job in jobs)} - listed:
                    errors.append(f"not listed: {sorted(missing)}")
            else:
                jobs[-1].refresh()
        except (WeftError, OSError) as error:
            errors.append(repr(error))
        requests += 1
        time.sleep(_PAUSE_S)
    ended = {job.id: job.wait(_WITHIN_S).status for job in jobs}
    not_completed = {job.id: [str(event) for event in job.history()] for job in jobs if ended[job.id] != "COMPLETED"}
    return {"requests": requests, "errors": errors, "jobs": len(jobs), "not completed": not_completed}


def main(url: str) -> None:
    with Client(url, KEY.read_text().strip()) as client:
        followed = client.jobs.submit({"name": "followed", "command": _COUNT, "resources": RESOURCES})
        follower = Follower(followed)
        follower.start()
        observed = use(client, followed)
        followed.kill()
        follower.join(_WITHIN_S)
    observed["errors"] += follower.errors
    count = len(follower.numbers)
    if not count or follower.numbers != list(range(1, count + 1)):
        observed["errors"].append(f"followed: {count} lines, with gaps or twice: {follower.numbers[-5:]}")
    sys.stdout.write(json.dumps({**observed, "followed": count}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""Uses the platform until the file /tmp/end is there: runs in a pod, beside an upgrade. Prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from weft import Client, WeftError

END = Path("/tmp/end")
KEY = Path("/etc/weft/keys/admin-key")
_PAUSE_S = 0.2
_READS = 25
"""Between two submits."""
_WITHIN_S = 600.0


def main(url: str) -> None:
    """Reads often, and submits small jobs. At the end it waits until all of them are at rest."""
    errors: list[str] = []
    requests, jobs = 0, []
    with Client(url, KEY.read_text().strip()) as client:
        while not END.exists():
            try:
                if requests % _READS == 0:
                    spec = {"name": "short", "command": "echo done", "resources": {"cpus": 0.02, "memory": "32MiB"}}
                    jobs.append(client.jobs.submit(spec))
                else:
                    jobs[-1].refresh()
            except (WeftError, OSError) as error:
                errors.append(repr(error))
            requests += 1
            time.sleep(_PAUSE_S)
        ended = {job.id: job.wait(_WITHIN_S).status for job in jobs}
        not_completed = {
            job.id: [str(event) for event in job.history()] for job in jobs if ended[job.id] != "COMPLETED"
        }
    observed = {"requests": requests, "errors": errors, "jobs": len(jobs), "not completed": not_completed}
    sys.stdout.write(json.dumps(observed) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

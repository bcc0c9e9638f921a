"""Jobs that train until a test ends them, with a line and a point each second: what they lost shows in these."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.helm.installation import Installation
from tests.testbed.kubernetes.kubectl import Object
from tests.waiting import eventually
from weft import Client, Job, WeftError

LONG_S: Final = 600.0
"""For what restarts in pods: probes, images and Java, on a machine that has other work."""
_TENANT: Final = "weft-tenant-default"
_COMMAND: Final = """\
n=0
until [ -e /tmp/end ]; do
    n=$((n + 1))
    echo tick $n
    point='"step":'$n',"values":{"ticks":'$n'},"context":{}'
    echo '{"time_ms":'$(date +%s)'000,'"$point}" >> "$JOB_STATE_DIR/metrics.jsonl"
    sleep 1
done
echo over
"""
_NAME: Final = "ticks"


class Ticking:
    """Running jobs."""

    def __init__(self, installed: Installation, count: int, *, learners: int = 1) -> None:
        """Returns when all of them train. ``learners``: of each job."""
        self._installed, self._learners_each = installed, learners
        resources = {"cpus": 0.02, "memory": "32MiB"}
        spec = {"name": _NAME, "command": _COMMAND, "learners": learners, "resources": resources}
        with installed.api() as client:
            self.ids = [client.jobs.submit(spec).id for _ in range(count)]
            self._wait(client, "PROCESSING")
        self._pods = self._learners()

    def end(self) -> None:
        """Lets them complete. Asserts that no learner was touched, and that no line or point is lost or doubled."""
        learners = self._learners()
        assert learners.keys() == self._pods.keys(), "a learner was replaced"
        for pod in learners.values():
            name = pod["metadata"]["name"]
            self._kubectl("exec", name, "--container=learner", "--", "touch", "/tmp/end")
        with self._installed.api() as client:
            self._wait(client, "COMPLETED", "FAILED", "KILLED", "HALTED")
            jobs = [client.jobs.get(job_id) for job_id in self.ids]
            assert {(job.status, job.attempt) for job in jobs} == {("COMPLETED", 1)}, histories(jobs)
            for job in jobs:
                texts: dict[int, list[str]] = defaultdict(list)
                for line in job.logs():
                    if line.stream == "stdout":
                        texts[line.rank].append(line.text)
                points: dict[int, list[tuple[int | None, float]]] = defaultdict(list)
                for point in job.points(name="ticks"):
                    points[point.rank].append((point.step, point.value))
                assert len(texts) == self._learners_each, job.id
                for rank, lines in texts.items():
                    assert lines == [*(f"tick {number}" for number in range(1, len(lines))), "over"], job.id
                    assert points[rank] == [(number, number) for number in range(1, len(lines))], job.id

    def _wait(self, client: Client, *statuses: str) -> None:
        """Until every job has one of these. The api may be away meanwhile."""

        def reached() -> bool:
            with suppress(WeftError, OSError):
                return {client.jobs.get(job_id).status for job_id in self.ids} <= set(statuses)
            return False

        try:
            eventually(reached, LONG_S)
        except AssertionError as error:
            raise AssertionError(histories([client.jobs.get(job_id) for job_id in self.ids])) from error

    def _learners(self) -> dict[str, Object]:
        """By uid."""
        listed = json.loads(self._kubectl("get", "pods", "--selector=weft.dev/job", "--output=json"))["items"]
        return {pod["metadata"]["uid"]: pod for pod in listed if pod["metadata"]["labels"]["weft.dev/job"] in self.ids}

    def _kubectl(self, *arguments: str) -> str:
        return self._installed.kubectl(f"--namespace={_TENANT}", *arguments)


def histories(jobs: Sequence[Job]) -> str:
    """What happened to the jobs, for the message of a failure."""
    return "\n".join(f"{job.id} {job.status}: {[str(event) for event in job.history()]}" for job in jobs)

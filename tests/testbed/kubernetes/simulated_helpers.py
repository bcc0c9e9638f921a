"""The helpers of pods on simulated nodes: one process that plays all of them, with the metrics service's real protocol.

    python -m tests.testbed.kubernetes.simulated_helpers KUBECONFIG INSTALLATION

A simulated node runs no container, so nothing would report for its pods. This process watches them; each that runs
gets the client, the reporter and the spool of a real helper, with its own token from the cluster. Its learner is a
timer: the command ``sleep SECONDS`` takes as long as it says and then ends with code 0. Stops end it. Nothing is
fetched, and neither lines nor files are stored. The probe pod of `weft up` is answered, too. Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.places import PODS
from services.core.adapters.kubernetes.reflector import Reflector
from services.core.domain.errors import NotFound, WeftError
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.formats import stored_plan
from services.core.runtime.address import TlsAuthority
from services.core.runtime.learner_folder import StopMark
from services.core.runtime.pod_layout import ADDRESSES_FILE, AUTHORITY_FILE, HELPER_CONTAINER, PLAN_FILE
from services.core.runtime.retry import Backoff
from services.helper.metrics_client import UNKNOWN, IntakeClient
from services.helper.reporter import Reporter, now_ms
from services.helper.spool import Spool
from services.helper.wakeup import Wakeup

_FOREVER_S: Final = 1e6
_PROBED: Final = json.dumps({"checks": [["metrics", ""]]})
"""The report of a probe pod's helper that has reached the metrics service."""


class SimulatedHelpers:
    def __init__(self, api: Api, installation: str, folder: Path) -> None:
        """``folder``: for the helpers' files."""
        self._api, self._folder = api, folder
        query = {"labelSelector": f"{names.ours(installation)},{names.JOB}"}
        self._pods = Reflector(api, PODS, query=query, on_change=self._changed, on_list=self._listed)
        self._helpers: dict[str, asyncio.Task[None]] = {}
        """By the pod's uid."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._pods.run()
        finally:
            for task in self._helpers.values():
                task.cancel()
            await asyncio.gather(*self._helpers.values(), return_exceptions=True)

    def _listed(self) -> None:
        present = {pod["metadata"]["uid"] for pod in self._pods.objects.values()}
        for uid in self._helpers.keys() - present:
            self._helpers[uid].cancel()
        for pod in self._pods.objects.values():
            self._begin(pod)

    def _changed(self, pod: Document) -> None:
        metadata = pod["metadata"]
        if (metadata["namespace"], metadata["name"]) in self._pods.objects:
            self._begin(pod)
        elif (task := self._helpers.get(metadata["uid"])) is not None:
            task.cancel()

    def _begin(self, pod: Document) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._helpers and pod.get("status", {}).get("phase") == "Running":
            answer = self._answer_probe if names.label(pod, names.JOB) == names.PROBE else self._help
            self._helpers[uid] = asyncio.create_task(answer(pod))
            self._helpers[uid].add_done_callback(lambda _: self._helpers.pop(uid, None))

    async def _answer_probe(self, pod: Document) -> None:
        end = {"exitCode": 0, "message": _PROBED}
        statuses = [
            {**entry, "state": {"terminated": end}} if entry["name"] == HELPER_CONTAINER else entry
            for entry in pod["status"]["initContainerStatuses"]
        ]
        path = collection("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        await self._api.patch(f"{path}/status", {"status": {"initContainerStatuses": statuses}})
        await asyncio.Event().wait()  # until the pod is removed

    async def _help(self, pod: Document) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._live(pod)
            except NotFound:
                return  # the attempt has been removed
            except WeftError:
                await backoff.wait()
            else:
                await asyncio.Event().wait()

    async def _live(self, pod: Document) -> None:
        """Returns once the end of the learner is reported."""
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        owner = names.attempt_name(names.label(pod, names.JOB), names.attempt_of(pod))
        files = (await self._api.get(collection("ConfigMap", space, owner)))["data"]
        tokens = (await self._api.get(collection("Secret", space, owner)))["data"]
        learner = stored_plan.read(json.loads(files[PLAN_FILE]), names.label(pod, names.LEARNER)).learner
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (folder / ADDRESSES_FILE).write_text(files[ADDRESSES_FILE])
        (folder / AUTHORITY_FILE).write_text(files.get(AUTHORITY_FILE, ""))
        tls = TlsAuthority(folder / AUTHORITY_FILE) if AUTHORITY_FILE in files else None
        intake = IntakeClient(folder / ADDRESSES_FILE, base64.b64decode(tokens[learner.name]).decode(), tls)
        first = LearnerStatus(
            name=learner.name,
            role=learner.role,
            rank=learner.rank,
            attempt=names.attempt_of(pod),
            run=names.run_of(pod),
            seq=0,
            phase=Phase.WAITING,
        )
        reporter = Reporter(intake, Spool(folder / "spool"), first, lambda: UNKNOWN)
        learning = asyncio.create_task(_learn(float(learner.command.removeprefix("sleep ")), reporter))
        tasks = (learning, asyncio.create_task(reporter.run()), asyncio.create_task(_follow_control(intake, reporter)))
        try:
            await learning
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await intake.close()


async def _learn(seconds: float, reporter: Reporter) -> None:
    """The phases of a learner that fetches and stores nothing, and runs for so long."""
    woken, stops = Wakeup(), list[StopMark]()

    def stop(mark: StopMark) -> None:
        stops.append(mark)
        woken.set()
        reporter.go.set()

    reporter.on_stop = stop
    reporter.enter(Phase.WAITING)
    reporter.enter(Phase.READY)
    await reporter.go.wait(_FOREVER_S)
    if not stops:
        reporter.enter(Phase.PROCESSING)
        await woken.wait(seconds)
    if stops:
        end = Exit(time=now_ms(), signal=signal.SIGTERM, stop_cause=stops[0].cause)
    else:
        end = Exit(time=now_ms(), code=0)
    reporter.enter(Phase.STORING, exit=end)
    reporter.enter(Phase.STORED)
    while not await reporter.wait_acknowledged(_FOREVER_S):
        pass


async def _follow_control(intake: IntakeClient, reporter: Reporter) -> None:
    backoff = Backoff()
    while True:
        with suppress(WeftError):
            async for desired in intake.control():
                backoff.reset()
                reporter.take_desired(desired)
        await backoff.wait()


async def _main(kubeconfig: Path, installation: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    api = Api(kubeconfig)
    with tempfile.TemporaryDirectory(prefix="weft-test-helpers-") as folder:
        running = asyncio.create_task(SimulatedHelpers(api, installation, Path(folder)).run())
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, waiting):
            task.cancel()
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        await api.close()
        for result in results:
            if isinstance(result, Exception):
                raise result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("installation")
    args = parser.parse_args()
    asyncio.run(_main(args.kubeconfig, args.installation))

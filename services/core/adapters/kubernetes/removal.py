"""Stops learners and removes attempts.

The stop mark is durable in the cluster before anything ends: an annotation of the owner, and of each pod that has not
started. Then the stop is written to the status store, from which the metrics service gives it to the helpers. A pod
whose command still runs ``_ENFORCE_S`` seconds after the grace is deleted, which is the same stop by another way. The
owner says so before: with the pod its kubelet's record goes, and a learner that is gone without a reason is lost.

A teardown removes pods first and the owner last, because the network policy is needed as long as pods run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from services.core.adapters.kubernetes import names, nodes, pods
from services.core.adapters.kubernetes.api import METADATA_LIST, WHOLE_LIST, Api, Document, collection, gather
from services.core.adapters.kubernetes.fences import Fences
from services.core.adapters.kubernetes.observed import StopMark, container_state, has_begun, is_gated, removals
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.adapters.kubernetes.places import NODES, Places
from services.core.domain.codec import dump
from services.core.domain.errors import NotFound, StaleRevision, Unavailable, WeftError
from services.core.domain.status_keys import stop_key
from services.core.ports.status_store import StatusStore
from services.core.runtime.pod_layout import LEARNER_CONTAINER
from services.core.runtime.retry import Backoff

_ENFORCE_S: Final = 5.0
_TRIES: Final = 10
_GRACE_S: Final = 1
"""Of pods that have nothing to store any more, or for which nobody waits."""
_REMOVE_S: Final = 120.0
_FINALIZER_S: Final = 5.0
_LOST_AFTER_S: Final = 3.0
"""A teardown that waits for pods for so long looks whether their nodes are lost."""
_LEFT: Final = ("Secret", "NetworkPolicy", "Service", "PodGroup")
log = structlog.get_logger()


class Removal:
    def __init__(
        self,
        api: Api,
        options: KubernetesOptions,
        status: StatusStore,
        *,
        fences: Fences,
        places: Places,
        now_ms: Callable[[], int],
    ) -> None:
        self._api, self._options, self._fences, self._places = api, options, fences, places
        self._status, self._now_ms = status, now_ms
        self._enforcing: dict[str, asyncio.Task[None]] = {}
        """By job: waits until its pods should have ended."""

    async def stop(self, job: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        await self._fences.supersede(job, attempt, term)  # first: a late call of an earlier term may come meanwhile
        namespace = await self._places.find(job)
        if namespace is None:
            return
        wanted = StopMark(attempt=attempt, generation=generation, cause=cause, grace_ms=grace_ms, time=self._now_ms())
        try:
            mark = await self._mark_owner(namespace, job, wanted)
        except Unavailable:
            if not await self._places.is_ending(namespace):
                raise
            # The cluster ends all pods in it, and nothing can be created there.
            await self._status.put(stop_key(job), json.dumps({**dump(wanted), "schema": 1}))
            return
        present = [pod for pod in await self._pods(namespace, job) if names.attempt_of(pod) == attempt]
        not_begun = [pod for pod in present if not has_begun(pod)]
        await self._record_removal(namespace, job, attempt, not_begun)
        await gather([self._mark_pod(pod, mark) for pod in not_begun])
        self._enforce_later(namespace, job, mark)
        await self._status.put(stop_key(job), json.dumps({**dump(mark), "schema": 1}))

    async def teardown(self, job: str, *, attempt: int, term: int) -> None:
        await self._fences.seal(job, attempt, term)  # first: as above
        namespace = await self._places.find(job)
        if namespace is None:
            return
        self._cancel_enforcing(job)
        owners = [owner for owner in await self._places.owners(namespace, job) if names.attempt_of(owner) <= attempt]
        attempts = {names.attempt_of(owner) for owner in owners}
        with_credentials = [owner for owner in owners if names.annotation(owner, names.PULLED_WITH)]
        attempts |= await self._remove_pods(namespace, job, attempt)
        await gather(
            [
                self._api.delete(collection(kind, namespace, names.attempt_name(job, number)))
                for number in attempts
                for kind in _LEFT
            ]
            + [
                self._api.delete(collection("Secret", namespace, names.pull_secret(owner["metadata"]["name"])))
                for owner in with_credentials
            ]
        )
        await gather(
            [
                self._await_gone(collection("PodGroup", namespace, names.attempt_name(job, number)))
                for number in attempts
            ]
        )
        for number in attempts:
            await self._api.delete(collection("ConfigMap", namespace, names.attempt_name(job, number)))
        self._places.forget(job)

    async def close(self) -> None:
        tasks = list(self._enforcing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _await_gone(self, path: str) -> None:
        """Waits a little for an object with a finalizer. It holds no hardware, so one that stays delays nobody."""
        backoff = Backoff(first_s=0.05, most_s=1)
        deadline = asyncio.get_running_loop().time() + _FINALIZER_S
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self._api.get(path)
            except NotFound:
                return
            await backoff.wait()
        log.warning("object.not_removed_yet", path=path)

    async def _mark_owner(self, namespace: str, job: str, wanted: StopMark) -> StopMark:
        """Returns the mark that counts: this one, or an earlier stronger one."""
        path = collection("ConfigMap", namespace, names.attempt_name(job, wanted.attempt))
        for _ in range(_TRIES):
            try:
                owner = await self._api.get(path)
                earlier = StopMark.of(owner)
                if earlier is not None and not wanted.overrides(earlier):
                    return earlier
                await self._api.patch(path, pods.annotated(owner, **{names.STOP: json.dumps(dump(wanted))}))
            except NotFound:
                return wanted
            except StaleRevision:
                continue
            return wanted
        raise Unavailable(f"the owner object of job {job} keeps changing; try again")

    async def _record_removal(self, namespace: str, job: str, attempt: int, present: Sequence[Document]) -> None:
        """Writes into the owner that a stop may delete these pods, before it does."""
        if not present:
            return
        path = collection("ConfigMap", namespace, names.attempt_name(job, attempt))
        now = self._now_ms()
        for _ in range(_TRIES):
            try:
                owner = await self._api.get(path)
                earlier = removals(owner)
                recorded = {names.label(pod, names.LEARNER): now for pod in present} | earlier
                if recorded != earlier:
                    await self._api.patch(path, pods.annotated(owner, **{names.REMOVED: json.dumps(recorded)}))
            except NotFound:
                return
            except StaleRevision:
                continue
            return
        raise Unavailable(f"the owner object of job {job} keeps changing; try again")

    async def _mark_pod(self, pod: Document, mark: StopMark) -> None:
        """Marks a pod that has not started, so that it is never activated, and removes it if it was activated.

        Never one that has begun meanwhile: its learner gets the stop from its helper, with its whole grace and the
        time to store what it has.
        """
        path = collection("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        for _ in range(_TRIES):
            try:
                if mark.overrides(StopMark.of(pod)):
                    pod = await self._api.patch(path, pods.annotated(pod, **{names.STOP: json.dumps(dump(mark))}))
                if not is_gated(pod):
                    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
                    await self._api.delete(path, grace_s=_GRACE_S, uid=uid, version=version)
            except NotFound:
                return
            except StaleRevision:
                try:
                    pod = await self._api.get(path)
                except NotFound:
                    return
                if has_begun(pod):
                    return  # its helper gets the stop
                continue
            return
        raise Unavailable(f"the pod {pod['metadata']['name']} keeps changing; try again")

    # --- a helper that does not obey ------------------------------------------------

    def _enforce_later(self, namespace: str, job: str, mark: StopMark) -> None:
        self._cancel_enforcing(job)
        self._enforcing[job] = asyncio.create_task(self._enforce(namespace, job, mark))

    def _cancel_enforcing(self, job: str) -> None:
        task = self._enforcing.pop(job, None)
        if task is not None:
            task.cancel()

    async def _enforce(self, namespace: str, job: str, mark: StopMark) -> None:
        """Deletes the pods whose command still runs after the grace."""
        backoff = Backoff(first_s=1, most_s=10)
        left_ms = mark.time + mark.grace_ms - self._now_ms()  # the mark may be of a Guardian whose clock is ahead
        await asyncio.sleep(min(max(0, left_ms), mark.grace_ms) / 1000 + _ENFORCE_S)
        while True:
            try:
                present = [pod for pod in await self._pods(namespace, job) if names.attempt_of(pod) == mark.attempt]
                running = [pod for pod in present if _may_run(pod)]
                await self._record_removal(namespace, job, mark.attempt, running)
                for pod in running:
                    log.warning("learner.stop_enforced", job=job, pod=pod["metadata"]["name"], cause=mark.cause)
                    await self._api.delete(
                        collection("Pod", namespace, pod["metadata"]["name"]),
                        grace_s=_GRACE_S if mark.cause == "kill" else None,
                        uid=pod["metadata"]["uid"],
                    )
            except WeftError as error:
                log.warning("learner.stop_not_enforced", job=job, why=str(error))
                await backoff.wait()
                continue
            self._enforcing.pop(job, None)
            return

    # --- removing -------------------------------------------------------------------

    async def _remove_pods(self, namespace: str, job: str, attempt: int) -> set[int]:
        """Deletes the pods of this attempt and earlier ones. Returns their attempts when all are gone."""
        attempts: set[int] = set()
        backoff = Backoff(first_s=0.05, most_s=1)
        started = asyncio.get_running_loop().time()
        deleted: dict[str, int] = {}
        while True:
            waited_s = asyncio.get_running_loop().time() - started
            looks_at_nodes = waited_s > _LOST_AFTER_S
            listed = await self._pods(namespace, job, accept=WHOLE_LIST if looks_at_nodes else METADATA_LIST)
            present = [pod for pod in listed if names.attempt_of(pod) <= attempt]
            attempts |= {names.attempt_of(pod) for pod in present}
            if not present:
                return attempts
            if waited_s > _REMOVE_S:
                left = ", ".join(sorted(pod["metadata"]["name"] for pod in present)[:3])
                raise Unavailable(f"pods do not end: {left}; see `kubectl describe pod` in {namespace}")
            lost = await self._lost_nodes(present) if looks_at_nodes else frozenset()
            await gather([self._delete_pod(pod, deleted, lost) for pod in present])
            await backoff.wait()

    async def _delete_pod(self, pod: Document, deleted: dict[str, int], lost: Iterable[str]) -> None:
        """Deletes a pod once; again at once, without its kubelet, if its node is lost."""
        uid, node = pod["metadata"]["uid"], str((pod.get("spec") or {}).get("nodeName", ""))
        grace_s = 0 if node in lost else _GRACE_S
        if deleted.get(uid, _GRACE_S + 1) <= grace_s:
            return
        path = collection("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        await self._api.delete(path, grace_s=grace_s, uid=uid)
        deleted[uid] = grace_s

    async def _lost_nodes(self, present: Sequence[Document]) -> frozenset[str]:
        used = {str(pod["spec"]["nodeName"]) for pod in present if pod["spec"].get("nodeName")}
        return await lost_nodes(self._api, used)

    async def _pods(self, namespace: str, job: str, *, accept: str = WHOLE_LIST) -> list[Document]:
        selector = names.of_job(job, self._options.installation)
        return (await self._api.list(collection("Pod", namespace), selector=selector, accept=accept))[0]


async def lost_nodes(api: Api, used: Iterable[str]) -> frozenset[str]:
    """Those of these nodes that the cluster does not reach, or does not have any more."""

    async def is_lost(name: str) -> bool:
        try:
            return nodes.is_lost(await api.get(f"{NODES}/{name}"))
        except NotFound:
            return True

    ordered = sorted(used)
    states = await gather([is_lost(name) for name in ordered])
    return frozenset(name for name, lost in zip(ordered, states, strict=True) if lost)


def _may_run(pod: Document) -> bool:
    """True if its learner's command may still run: the container has not ended."""
    return container_state(pod, LEARNER_CONTAINER, "terminated") is None and not is_gated(pod)

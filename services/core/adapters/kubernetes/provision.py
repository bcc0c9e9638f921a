"""The steps that provision an attempt. Each may be repeated; what an earlier call has made is found by its name.

Before each effect the step records its term in the fence and checks the term that the owner object and the pods carry.
Whatever another Guardian changes in between makes the step's own patches fail, because they carry the resource version.
A status update by the cluster has the same effect; the step is then repeated from its checks.

A process that has created the owner, and then the pods, does not read them again before it activates them: what it may
change of them is decided by their resource versions. Each read costs the API server as much as a creation.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from services.core.adapters.kubernetes import names, objects, pod_rules, pods
from services.core.adapters.kubernetes.api import Api, Document, collection, gather, path_of
from services.core.adapters.kubernetes.entry_scripts import EntryScripts
from services.core.adapters.kubernetes.fences import Fences
from services.core.adapters.kubernetes.observed import StopMark, is_gated, later_runs
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.places import needing_namespace
from services.core.adapters.kubernetes.slots import starting
from services.core.domain.errors import (
    Duplicate,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    ResourceExhausted,
    SecretsUnavailable,
    StaleFence,
    StaleRevision,
    Unavailable,
)
from services.core.domain.plan import SCHEMA, AttemptPlan
from services.core.ports.pull_credentials import PullCredentials

STEPS: Final = ("reserve", "learners", "activate")
_TRIES: Final = 10
_AHEAD: Final = 400
"""So many pods of later starts are created before those of a start are activated. So a quota or an admission rule
refuses what it refuses within seconds, also where many jobs start together. More would leave the scheduler idle. After
a take-over an activation does not wait.
"""
_EARLIER_GRACE_S: Final = 1
"""Of a pod whose learner is started again: what it had to store is stored."""


@dataclass(frozen=True, slots=True)
class _Created:
    """What this process has created of an attempt, as the API server has answered."""

    pair: tuple[int, int]
    """The attempt and the Guardian's term."""
    owner: Document
    pods: Mapping[str, Document] = field(default_factory=dict)
    """By learner; empty before they are all created."""
    turn: int = 0
    """The start's place among those of this process: the number of its last pod."""


class Provision:
    def __init__(
        self,
        api: Api,
        options: KubernetesOptions,
        fences: Fences,
        gang: Callable[[], Awaitable[GangMethod]],
        credentials: PullCredentials | None,
    ) -> None:
        """``gang``: how this cluster places gangs. ``credentials``: None in a service that provisions nothing."""
        self._api, self._options, self._fences, self._gang = api, options, fences, gang
        self._credentials = credentials
        self._entry_scripts = EntryScripts(api, options)
        self._created: dict[str, _Created] = {}
        """By job, from one step to the next."""
        self._pods_of_starts = 0

    def forget(self, job: str) -> None:
        """The attempt is stopped or removed."""
        self._created.pop(job, None)

    async def do(self, step: str, plan: AttemptPlan) -> None:
        steps = {"reserve": self._reserve, "learners": self._create_pods, "activate": self._activate}
        if step not in steps:
            raise InvalidRequest(f"there is no step {step!r}; there are: {', '.join(STEPS)}")
        if plan.schema > SCHEMA:
            raise Unavailable(f"the plan has schema {plan.schema}, and this service reads {SCHEMA}: finish the upgrade")
        created = self._created.pop(names.checked(plan.job), None)  # after a failure the objects are read
        if created is not None and created.pair != (plan.attempt, plan.term):
            created = None
        if created is None:
            self._pods_of_starts += len(plan.learners)
        turn = created.turn if created is not None else self._pods_of_starts
        with starting(turn + _AHEAD if created is not None and step == "activate" else turn):
            for _ in range(_TRIES):
                await self._fences.admit(plan.job, plan.attempt, plan.term)
                try:
                    created = await steps[step](plan, created)
                except StaleRevision:
                    created = None
                    continue  # mostly the scheduler or a kubelet, which write the status of the same pods: look again
                if created is not None:
                    self._created[plan.job] = replace(created, turn=turn)
                return
        raise Unavailable(f"the objects of attempt {plan.attempt} of {plan.job} keep changing; try again")

    async def _reserve(self, plan: AttemptPlan, _: _Created | None) -> _Created | None:
        """The owner. Raises before the first effect if the pods cannot be rendered."""
        gang = await self._gang()
        for learner in plan.learners:
            pod_rules.check(pods.pod(plan, learner, self._options, "", gang=gang), self._options)
        await self._entry_scripts.ensure(plan.tenant)
        owner, is_new = await self._claim_owner(plan)
        uid = owner["metadata"]["uid"]
        if plan.image_pull_secret:
            await self._create_pull_secret(plan, uid)
        return _Created((plan.attempt, plan.term), owner) if is_new else None

    async def _create_pull_secret(self, plan: AttemptPlan, owner_uid: str) -> None:
        """The credentials are read once for an attempt: a change of the tenant's secret counts for the next one.

        So a Guardian that repeats the step needs neither the api nor the tenant's secret.
        """
        namespace = names.namespace_of(plan.tenant, self._options.namespace_prefix)
        name = names.pull_secret(names.attempt_name(plan.job, plan.attempt))
        try:
            present = await self._api.get(collection("Secret", namespace, name))
        except NotFound:
            if self._credentials is None:
                raise SecretsUnavailable("this service cannot get the credentials of images") from None
            config = await self._credentials.docker_config(plan.job, attempt=plan.attempt, term=plan.term)
            await self._create(objects.pull_secret(plan, self._options, owner_uid, config))
        else:
            _check_owner(present, [owner_uid])

    async def _create_pods(self, plan: AttemptPlan, created: _Created | None) -> _Created | None:
        """Inert pods of all learners. None of an attempt that was stopped before.

        A learner in a later run than its pod gets a new pod of the same name, once the old one is gone: then its
        kubelet has ended all its containers. The owner says which runs may have been created before they are, so none
        is created twice.
        """
        if created is not None:
            return replace(created, pods=await self._create_first_pods(plan, created.owner))
        owner = await self._owner(plan)
        if StopMark.of(owner) is not None:
            return None
        gang = await self._gang()
        uid = owner["metadata"]["uid"]
        present = await self._pods(plan)
        await self._remove_earlier_runs(plan, present)
        await gather([self._raise_term(pod, plan) for pod in present.values()])
        missing = [learner for learner in plan.learners if learner.name not in present]
        if missing:  # the attempt may be older than this process, and its script another one
            await self._entry_scripts.ensure(plan.tenant, anew=True)
        if missing and names.annotation(owner, names.ACTIVATED):
            # The others were there, and may have run: the Guardian sees that they are gone.
            recorded = later_runs(owner)
            missing = [learner for learner in missing if learner.run > recorded.get(learner.name, 1)]
            if missing:
                runs = recorded | {learner.name: learner.run for learner in missing}
                change = {names.RUNS: json.dumps(runs), names.TERM: str(plan.term)}
                await self._api.patch(path_of(owner), pods.annotated(owner, **change))
        await gather([self._create(pods.pod(plan, learner, self._options, uid, gang=gang)) for learner in missing])
        return None

    async def _create_first_pods(self, plan: AttemptPlan, owner: Document) -> Mapping[str, Document]:
        """The pods of an owner that has none of another process, by learner. StaleRevision: some were there."""
        gang, uid = await self._gang(), owner["metadata"]["uid"]
        documents = [pods.pod(plan, learner, self._options, uid, gang=gang) for learner in plan.learners]
        answers = await gather([self._create(document) for document in documents])
        if None in answers:
            raise StaleRevision(f"pods of attempt {plan.attempt} of {plan.job} were there before")
        return {learner.name: answer for learner, answer in zip(plan.learners, answers, strict=True)}

    async def _remove_earlier_runs(self, plan: AttemptPlan, present: Mapping[str, Document]) -> None:
        """Deletes pods of lower runs than the plan's. Unavailable while one is there, e.g. on a node that is lost."""
        runs = {learner.name: learner.run for learner in plan.learners}
        earlier = {name: pod for name, pod in present.items() if names.run_of(pod) < runs.get(name, 1)}
        await gather(
            [
                self._api.delete(path_of(pod), grace_s=_EARLIER_GRACE_S, uid=pod["metadata"]["uid"])
                for pod in earlier.values()
                if not pod["metadata"].get("deletionTimestamp")
            ]
        )
        if earlier:
            raise Unavailable(f"the pods of the earlier runs of {', '.join(sorted(earlier)[:5])} are being removed")

    async def _activate(self, plan: AttemptPlan, created: _Created | None) -> None:
        """Creates what running learners need and lifts the gates of all pods. A pod that was stopped keeps its gate.

        Tokens, network policy and names come this late because no learner runs before: an incomplete gang costs its
        pods only, and where many gangs start, all their pods exist sooner. The native gang object comes last. With it
        there, the scheduler tries the whole gang again for each pod whose gate is lifted, fails until the last one, and
        writes a condition and an event of each pod each time.
        """
        owner = created.owner if created is not None else await self._owner(plan)
        if StopMark.of(owner) is not None:
            return
        gang = await self._gang()
        present = created.pods if created is not None else await self._pods(plan)
        gone = [learner.name for learner in plan.learners if learner.name not in present]
        activated = names.annotation(owner, names.ACTIVATED)
        if gone and not activated:
            raise ResourceExhausted(f"the pods of {', '.join(gone[:5])} vanished before all of the gang were there")
        gated = {name: pod for name, pod in present.items() if is_gated(pod) and StopMark.of(pod) is None}
        first: list[Awaitable[object]] = []
        if not activated:
            first.append(self._api.patch(path_of(owner), pods.annotated(owner, **{names.ACTIVATED: "true"})))
        owned = objects.owned(plan, self._options, owner["metadata"]["uid"])
        await gather(first + [self._create(document) for document in owned])
        await gather(
            [
                self._api.patch(
                    path_of(gated[learner.name]),
                    pods.activation(gated[learner.name], learner, self._options, gang=gang),
                )
                for learner in plan.learners
                if learner.name in gated
            ]
        )
        if gang is GangMethod.NATIVE:
            await self._create(objects.pod_group(plan, self._options, owner["metadata"]["uid"]))
            await self._owner(plan)  # a late call: the attempt was removed meanwhile, and the cluster removes this too

    async def _claim_owner(self, plan: AttemptPlan) -> tuple[Document, bool]:
        """Creates the owner (True), or takes it over from an earlier term. Raises StaleFence if a later one has it."""
        document = objects.owner(plan, self._options)
        for _ in range(_TRIES):
            with suppress(Duplicate), needing_namespace():
                return await self._post(document), True
            try:
                return await self._raise_term(await self._owner(plan), plan), False
            except (StaleRevision, InvalidRequest):
                continue  # it was changed or removed meanwhile
        raise Unavailable("the attempt's owner object keeps changing; try again")

    async def _owner(self, plan: AttemptPlan) -> Document:
        """Raises InvalidRequest without one, StaleFence if a later term has it, Unavailable while it is removed."""
        namespace = names.namespace_of(plan.tenant, self._options.namespace_prefix)
        name = names.attempt_name(plan.job, plan.attempt)
        try:
            owner = await self._api.get(collection("ConfigMap", namespace, name))
        except NotFound:
            raise InvalidRequest(f"attempt {plan.attempt} of {plan.job} has not been reserved") from None
        _check_ours(owner, plan, self._options)
        if names.term_of(owner) > plan.term:
            raise StaleFence(f"attempt {plan.attempt} has a Guardian of term {names.term_of(owner)}")
        return {**owner, "kind": "ConfigMap"}

    async def _raise_term(self, present: Document, plan: AttemptPlan) -> Document:
        """Writes the term to an object that has a lower one. Raises StaleFence if it has a higher one."""
        if names.term_of(present) > plan.term:
            raise StaleFence(f"{present['metadata']['name']} has a Guardian of term {names.term_of(present)}")
        if names.term_of(present) == plan.term:
            return present
        change = pods.annotated(present, **{names.TERM: str(plan.term)})
        return {**await self._api.patch(path_of(present), change), "kind": present["kind"]}

    async def _pods(self, plan: AttemptPlan) -> Mapping[str, Document]:
        """The attempt's pods by the name of their learner. A quorum read."""
        namespace = names.namespace_of(plan.tenant, self._options.namespace_prefix)
        selector = names.of_job(plan.job, self._options.installation)
        items, _ = await self._api.list(collection("Pod", namespace), selector=selector)
        return {
            names.label(item, names.LEARNER): {**item, "kind": "Pod"}
            for item in items
            if names.attempt_of(item) == plan.attempt
        }

    async def _create(self, document: Document) -> Document | None:
        """Creates the object and returns it. None: one of its name is there, and belongs to the same owner."""
        try:
            return await self._post(document)
        except Duplicate:
            try:
                present = await self._api.get(path_of(document))
            except NotFound:
                raise Unavailable(f"{document['metadata']['name']} is being removed") from None
            _check_owner(present, _owner_uids(document))
            return None

    async def _post(self, document: Document) -> Document:
        """Creates the object and returns it. Raises Duplicate if one of its name is there, also where a quota is full.

        The API server checks the quota before it looks for the name.
        """
        try:
            answer = await self._api.create(path_of(document, of_collection=True), document)
        except QuotaExceeded as refused:
            try:
                await self._api.get(path_of(document))
            except NotFound:
                raise refused from None
            raise Duplicate(f"{document['metadata']['name']} is there") from refused
        return {**answer, "kind": document["kind"]}


def _check_ours(present: Document, plan: AttemptPlan, options: KubernetesOptions) -> None:
    expected = names.attempt_labels(plan, options.installation)
    name = present["metadata"]["name"]
    if any(names.label(present, label) != value for label, value in expected.items()):
        raise ResourceExhausted(f"the ConfigMap {name} is not of this installation; remove it")
    if present["metadata"].get("deletionTimestamp"):
        raise Unavailable(f"{name} is being removed")


def _check_owner(present: Document, owner_uids: Sequence[str]) -> None:
    """Raises Unavailable for what is left of an earlier owner of the same name."""
    if _owner_uids(present) != owner_uids or present["metadata"].get("deletionTimestamp"):
        raise Unavailable(f"{present['metadata']['name']} of an earlier owner is being removed")


def _owner_uids(document: Document) -> Sequence[str]:
    return [reference["uid"] for reference in document["metadata"].get("ownerReferences") or ()]

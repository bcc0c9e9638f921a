"""Submitting a job: a spec, with or without code, becomes one durable document, once per idempotency key.

The order makes it safe: the job of the idempotency key is looked up, the spec is checked, the code is checked, the code
is stored, the document is inserted; only then the request is answered and the dispatcher gets a hint. A repeated
request is answered from the first look-up: it is not checked again, since limits, secrets and space may have changed
meanwhile. A crash before the insert leaves code that no job names; the next submit of the same code uses it. A crash
after the insert leaves a job that the dispatcher finds by itself. Of concurrent submissions under one key the store's
unique index accepts one. Code is claimed before it is stored, so that its removal
(``services.core.use_cases.code_removal``) does not take it away before the job is inserted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from services.api.access import Principal
from services.api.idempotency import request_digest
from services.api.instrumentation import Instrumentation
from services.api.platform import Fit, Platform
from services.api.uploads import REQUIREMENTS, Code, Upload
from services.core import frameworks
from services.core.domain.errors import (
    Duplicate,
    FieldError,
    IdempotencyMismatch,
    Internal,
    InvalidRequest,
    InvalidSpec,
    Unavailable,
)
from services.core.domain.ids import RANDOM_BITS, make_id
from services.core.domain.job import Job, new_job
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec, dump_spec, nearest, parse_spec
from services.core.domain.unsupported import unsupported
from services.core.formats.spec_text import parse_spec_text
from services.core.frameworks import Framework
from services.core.frameworks.images import LibraryImages
from services.core.ports.clock import Clock
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobStore
from services.core.ports.object_store import ObjectStore
from services.core.ports.record_store import RecordStore
from services.core.use_cases import code_removal
from services.core.use_cases.code_removal import code_key

_LONG_SPEC: Final = 4096
"""Bytes from which on a spec is read in a thread."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class RoleNeeds:
    count: int
    size: Size
    """Of each learner."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submit would do."""

    spec: JobSpec
    roles: Mapping[str, RoleNeeds]
    framework: Framework | None
    fit: Fit
    code_digest: str
    code_stored: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    job: Job
    replayed: bool
    warnings: tuple[str, ...]


def read_spec(text: bytes, kind: Literal["json", "yaml"], cluster: str = "local") -> JobSpec:
    """The spec in normal form, for this kind of cluster.

    Raises InvalidSpec with every error that can be found, and their places.
    """
    spec = parse_spec(parse_spec_text(text, kind=kind))
    errors = (*unsupported(spec, cluster), *_unknown_framework(spec))
    if errors:
        raise InvalidSpec.of(errors)
    return spec


def check_gang(spec: JobSpec, *, max_learners: int, max_bytes: int) -> None:
    """Raises InvalidSpec for a gang that has more learners, or larger ones, than this platform takes."""
    variables = sum(len(name) + len(value) for name, value in spec.env.items())
    size = sum(role.count * (len(role.command or spec.command) + variables) for role in spec.roles.values())
    if spec.learners > max_learners:
        why = f"this platform takes jobs of at most {max_learners} learners (WEFT_MAX_LEARNERS)"
    elif size > max_bytes:
        why = (
            f"the commands and variables of its {spec.learners} learners have {size} bytes together, and this platform "
            f"takes {max_bytes} (WEFT_MAX_GANG_BYTES); put long ones into the code"
        )
    else:
        return
    raise InvalidSpec.of([FieldError("/roles", why)])


def check_image(spec: JobSpec, images: LibraryImages | None) -> None:
    """Raises InvalidSpec for a framework that learners in pods have no image of.

    ``images``: None: learners are no pods, or it is unknown which images there are.
    """
    entry = framework_of(spec)
    if images is None or entry is None or images.of(entry):
        return
    present = ", ".join(f"{known.name} {known.version}" for known in frameworks.library() if images.of(known))
    why = f"this cluster has no image of {entry.name} {entry.version}"
    hint = f"{f'it has: {present}; ' if present else ''}name one with `image:`, or tell the operator to add it"
    raise InvalidSpec.of([FieldError("/framework", why, hint)])


def check_devices(spec: JobSpec, devices: Sequence[str] | None) -> None:
    """Raises InvalidSpec for devices that the operator does not let learners have.

    ``devices``: those that they may have; None: learners are no pods, or it is unknown.
    """
    if devices is None:
        return
    hint = f"there are: {', '.join(sorted(devices))}" if devices else "there are none: leave it out"
    given = {"/resources/devices": spec.resources.devices}
    given |= {f"/roles/{name}/devices": role.devices or {} for name, role in spec.roles.items()}
    errors = tuple(
        FieldError(f"{pointer}/{name.replace('/', '~1')}", f"this cluster gives learners no '{name}'", hint)
        for pointer, names in given.items()
        for name in sorted({*names} - {*devices})
    )
    if errors:
        raise InvalidSpec.of(errors)


def check_code(code: Code, cluster: str) -> None:
    """Raises InvalidSpec for code that learners on this kind of cluster cannot run."""
    if cluster != "kubernetes" or not code.has_requirements:
        return
    why = f"its {REQUIREMENTS} is not installed on this cluster"
    hint = "name an image that has the packages with `image:`, and leave the file out (.weftignore)"
    raise InvalidSpec.of([FieldError("/code", why, hint)])


async def read_spec_in_thread(text: bytes, kind: Literal["json", "yaml"], cluster: str) -> JobSpec:
    """As ``read_spec``; a long spec takes tens of milliseconds and is read in a thread."""
    if len(text) < _LONG_SPEC:
        return read_spec(text, kind, cluster)
    return await asyncio.to_thread(read_spec, text, kind, cluster)


def framework_of(spec: JobSpec) -> Framework | None:
    """The library's entry that the spec names; None if it names none or an unknown one."""
    return frameworks.find(spec.framework.name, spec.framework.version) if spec.framework is not None else None


def _unknown_framework(spec: JobSpec) -> tuple[FieldError, ...]:
    wanted = spec.framework
    if wanted is None or framework_of(spec) is not None:
        return ()
    if frameworks.find(wanted.name) is None:
        message = f"there is no framework '{wanted.name}'"
        return (FieldError("/framework", message, nearest(wanted.name.lower(), frameworks.names())),)
    versions = sorted(
        entry.version for entry in frameworks.library() if wanted.name.lower() in (entry.name, *entry.aliases)
    )
    message = f"there is no version '{wanted.version}' of {wanted.name}"
    return (FieldError("/framework/version", message, f"there are: {', '.join(versions)}"),)


class Submissions:
    def __init__(
        self,
        *,
        store: JobStore,
        records: RecordStore,
        objects: ObjectStore,
        hints: Hints,
        clock: Clock,
        platform: Platform,
        instrumentation: Instrumentation,
    ) -> None:
        self._store = store
        self._records = records
        self._objects = objects
        self._hints = hints
        self._clock = clock
        self._platform = platform
        self._instrumentation = instrumentation

    async def plan(self, tenant: str, spec: JobSpec, code_digest: str) -> Plan:
        """What a submit would do; changes nothing. ``code_digest`` is empty without code."""
        stored = bool(code_digest) and await self.is_code_stored(tenant, code_digest)
        fit = await self._platform.fit(spec)
        roles = {name: RoleNeeds(role.count, spec.role_resources(name)) for name, role in spec.roles.items()}
        return Plan(spec, roles, framework_of(spec), fit, code_digest, stored, await self._warnings(fit))

    async def is_code_stored(self, tenant: str, code_digest: str) -> bool:
        """Whether the tenant has uploaded this code; it may be removed at any time unless it is claimed."""
        return await self._objects.head(code_key(tenant, code_digest)) is not None

    async def check_code_is_stored(self, tenant: str, code_digest: str) -> None:
        """Raises InvalidRequest if the tenant has not uploaded this code."""
        await self._claim_code(tenant, code_digest)
        if not await self.is_code_stored(tenant, code_digest):
            message = "no code of this digest was uploaded; send the code itself"
            raise InvalidRequest.of([FieldError("/code_digest", message)])

    async def keep_code(self, upload: Upload, tenant: str, code_digest: str) -> bool:
        """Stores the code; it is durable when this returns, and is not removed while the job is inserted.

        Returns False if it was stored before.
        """
        written = False
        for _ in range(_TRIES):
            began_s = self._clock.boottime()
            await self._claim_code(tenant, code_digest)
            written = await upload.store(self._objects, code_key(tenant, code_digest)) or written
            if self._clock.boottime() - began_s < code_removal.CLAIM_S / 2:
                return written
            # A slow upload used up its claim. The next turn finds the code stored, or stores it again.
        raise Unavailable("the object store is too slow to keep the code; send it again", retry_after_s=5)

    async def _claim_code(self, tenant: str, code_digest: str) -> None:
        """Keeps the code from being removed. Raises Unavailable while it is being removed."""
        await code_removal.claim(self._records, tenant, code_digest, now=self._clock.now_ms())

    async def replay(
        self, principal: Principal, tenant: str, spec: JobSpec, *, code_digest: str, key: str | None
    ) -> Submitted | None:
        """The job that this request made before, under the same key; None: there is none. Changes nothing.

        Raises IdempotencyMismatch if the key was used with another request.
        """
        if key is None:
            return None
        job = await self._existing(_idem(principal, tenant, key), _digest(dump_spec(spec), code_digest))
        return await self._submitted(job, spec, replayed=True) if job is not None else None

    async def submit(
        self, principal: Principal, tenant: str, spec: JobSpec, *, code_digest: str, key: str | None, trace: str
    ) -> Submitted:
        """Makes the job; it is durable when this returns. The code must be stored before.

        ``replayed``: the same request under the same key made the job. Of requests at the same time ``replay`` finds no
        job. Raises IdempotencyMismatch if the key was used with another request; InvalidSpec if the spec names code and
        there is none.
        """
        if spec.code is not None and not code_digest:
            message = "the spec names code, but none was sent with it"
            raise InvalidSpec.of([FieldError("/code", message, "send it, or leave `code` out")])
        stored_spec = dump_spec(spec)
        idem_digest = _digest(stored_spec, code_digest)
        job, replayed = await self._insert(
            principal, tenant, spec=stored_spec, code=code_digest, key=key, digest=idem_digest, trace=trace
        )
        if not replayed:
            await self._hints.send("submitted", job.id)
            self._instrumentation.count_accepted(spec)
        return await self._submitted(job, spec, replayed=replayed)

    async def _submitted(self, job: Job, spec: JobSpec, *, replayed: bool) -> Submitted:
        return Submitted(job, replayed, await self._warnings(await self._platform.recent_fit(spec)))

    async def _warnings(self, fit: Fit) -> tuple[str, ...]:
        return tuple(filter(None, (fit.message if fit.verdict == "never" else "", await self._platform.unenforced())))

    async def _insert(
        self,
        principal: Principal,
        tenant: str,
        *,
        spec: Mapping[str, Any],
        code: str,
        key: str | None,
        digest: str,
        trace: str,
    ) -> tuple[Job, bool]:
        """The new job, or the one that exists under the key; and whether it existed."""
        for _ in range(_TRIES):
            now = self._clock.now_ms()
            job_id = make_id("j", now_ms=now, random_bits=self._clock.random_bits(RANDOM_BITS))
            idem = _idem(principal, tenant, key) if key is not None else job_id
            job = new_job(
                job_id=job_id,
                tenant=tenant,
                user=principal.user,
                spec=spec,
                code_digest=code,
                idem=idem,
                idem_digest=digest,
                trace=trace,
                now=now,
            )
            try:
                return await self._store.insert(job), False
            except Duplicate:
                existing = await self._existing(idem, digest)
            if existing is None:
                continue  # the id was taken
            return existing, True
        raise Internal("no free job id was found")

    async def _existing(self, idem: str, digest: str) -> Job | None:
        """The job that this request made before; None: there is none. Raises IdempotencyMismatch."""
        existing = await self._store.by_idem(idem)
        if existing is not None and existing.idem_digest != digest:
            raise IdempotencyMismatch("this Idempotency-Key was used before, with another spec or other code")
        return existing


def _idem(principal: Principal, tenant: str, key: str) -> str:
    """The key as the job's document holds it. Two users may use the same key."""
    return f"{tenant}/{principal.user}/{key}"


def _digest(stored_spec: Mapping[str, Any], code_digest: str) -> str:
    """Equal for two equal submissions."""
    return request_digest({"spec": stored_spec, "code": code_digest})

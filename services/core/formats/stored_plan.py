"""``plan.json``: the plan of an attempt as a learner's pod reads it (docs/adr/0019-learners-as-pods.md).

It has a template for each role instead of a copy for each learner, so it stays below ``MAX_BYTES`` whatever the gang's
size. It contains no token: a pod mounts the token of its own learner as a file. It names no node and no run, which are
each pod's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, NamedTuple

from services.core.domain.codec import dump, load
from services.core.domain.errors import InvalidRequest
from services.core.domain.learner import learner_name
from services.core.domain.plan import AttemptPlan, LearnerPlan, Part, PartKind

SCHEMA: Final = 1
MAX_BYTES: Final = 256 * 1024
"""Of the document. A ConfigMap holds 1 MiB; the adapter adds other files to it."""
_RANK: Final = "rank"
"""A part of a template: the decimal text of the learner's rank plus ``offset``."""
_INDEX: Final = "index"
"""The same with the learner's number within its role."""
_OWN: Final = ("name", "role", "rank", "token", "node", "env", "variables", "run")
"""Fields of a learner that are not in its role's ``learner``."""


class StoredPlan(NamedTuple):
    """What one learner reads of the plan."""

    plan: AttemptPlan
    """``learners`` has this learner only. Its token and node are empty."""
    gang: tuple[str, ...]
    """Names of all learners of the attempt, by rank."""

    @property
    def learner(self) -> LearnerPlan:
        return self.plan.learners[0]


def write(plan: AttemptPlan) -> str:
    """Returns the document as JSON text of at most ``MAX_BYTES`` bytes, without tokens.

    Raises InvalidRequest for a plan that is larger, and for one whose learners differ in a way that no template of
    their role describes.
    """
    learners = sorted(plan.learners, key=lambda learner: learner.rank)
    env = dict(learners[0].env)
    document = {
        "schema": SCHEMA,
        "plan": dump(replace(plan, learners=())),
        "env": env,
        "roles": [_template(role, list(group), env) for role, group in groupby(learners, lambda entry: entry.role)],
    }
    text = json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"the job's commands and variables take {size} bytes, and a pod's plan has at most {MAX_BYTES}; move them"
            " into files of the code"
        )
    return text


def read(document: Mapping[str, Any], name: str) -> StoredPlan:
    """Returns the part of the plan that the learner ``name`` needs.

    Raises ValueError, TypeError or KeyError for a document that is damaged or of a newer schema, or without this
    learner.
    """
    if document["schema"] > SCHEMA:
        raise ValueError(f"the plan has schema {document['schema']}, and this version reads {SCHEMA}")
    roles = document["roles"]
    places = [(role, index) for role in roles for index in range(int(role["count"]))]
    gang = tuple(learner_name(role["role"], index) for role, index in places)
    if name not in gang:
        raise ValueError(f"the plan has no learner {name}")
    rank = gang.index(name)
    role, index = places[rank]
    learner = _expand(role, name=name, rank=rank, index=index, env=document["env"])
    return StoredPlan(replace(load(AttemptPlan, {**document["plan"], "learners": []}), learners=(learner,)), gang)


def _template(role: str, learners: Sequence[LearnerPlan], env: Mapping[str, str]) -> dict[str, Any]:
    """The document of a role, from which each of its learners follows."""
    first = learners[0]
    template: dict[str, Any] = {
        "role": role,
        "count": len(learners),
        "learner": {name: value for name, value in dump(first).items() if name not in _OWN},
        "variables": {name: _value_template(name, learners) for name in first.variables},
    }
    if dict(first.env) != dict(env):
        template["env"] = dict(first.env)
    shared = _shared(first)
    for index, learner in enumerate(learners):
        expected = (learner_name(role, index), first.rank + index, shared)
        if (learner.name, learner.rank, _shared(learner)) != expected:
            raise InvalidRequest(f"{learner.name} differs from the other learners of its role in more than its rank")
    return template


def _shared(learner: LearnerPlan) -> LearnerPlan:
    """The part that is the same for all learners of a role."""
    return replace(learner, name="", rank=0, token="", node="", run=1, variables=dict.fromkeys(learner.variables, ()))


def _value_template(name: str, learners: Sequence[LearnerPlan]) -> list[dict[str, Any]]:
    """The parts of one variable; a text that differs from learner to learner follows from its rank or its index."""
    values = [learner.variables.get(name, ()) for learner in learners]
    if len({len(parts) for parts in values}) != 1:
        raise InvalidRequest(f"the variable {name} differs between the learners of a role")
    return [_part_template(name, parts, learners) for parts in zip(*values, strict=True)]


def _part_template(name: str, parts: Sequence[Part], learners: Sequence[LearnerPlan]) -> dict[str, Any]:
    if all(part == parts[0] for part in parts):
        return dict(dump(parts[0]))
    numbers: dict[str, Callable[[int], int]] = {_RANK: lambda index: learners[index].rank, _INDEX: lambda index: index}
    for kind, number in numbers.items():
        offset = _offset(parts, number)
        if offset is not None:
            return {"kind": kind, "offset": offset}
    raise InvalidRequest(f"the variable {name} differs between the learners of a role in more than a number")


def _offset(parts: Sequence[Part], number: Callable[[int], int]) -> int | None:
    """The offset by which every part is the text of its learner's number; None if there is none."""
    try:
        offset = int(parts[0].value) - number(0)
    except ValueError:
        return None
    follows = all(part == Part(PartKind.TEXT, str(number(index) + offset)) for index, part in enumerate(parts))
    return offset if follows else None


def _expand(role: Mapping[str, Any], *, name: str, rank: int, index: int, env: Mapping[str, str]) -> LearnerPlan:
    """The learner of this rank, by its role's template, without token and node."""
    numbers = {_RANK: rank, _INDEX: index}
    variables = {
        variable: [
            {"kind": PartKind.TEXT.value, "value": str(numbers[part["kind"]] + int(part["offset"]))}
            if part["kind"] in numbers
            else part
            for part in parts
        ]
        for variable, parts in role["variables"].items()
    }
    own = {"name": name, "role": role["role"], "rank": rank, "token": "", "node": "", "variables": variables}
    return load(LearnerPlan, {**role["learner"], **own, "env": role.get("env", env)})

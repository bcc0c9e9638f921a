"""Groups of jobs: `weft train --array lr=0.1,0.01 --repeat 3` makes them, and commands take them with --group or -l.

A group is a tag, ``group=NAME``, that all of its jobs have. Nothing else ties them together.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from weft._cli.call import Call
from weft._cli.completion import GROUP_TAG, complete_group, complete_jobs, complete_tag

F = TypeVar("F", bound=Callable[..., Any])
MOST: Final = 1_000
"""Most jobs of a group."""
SEED: Final = "SEED"
"""The variable that tells repetitions apart: 0, 1, 2, ..."""
_NAME_MOST: Final = 48
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def many_jobs(command: F) -> F:
    """Several jobs: by id or name, --group, or -l TAG."""
    argument = click.argument("jobs", nargs=-1, metavar="[JOB...]", shell_complete=complete_jobs)
    group = click.option(
        "--group", metavar="NAME", shell_complete=complete_group, help="All jobs of this group (`weft train --array`)."
    )
    tag = click.option("--tag", "-l", metavar="TAG", shell_complete=complete_tag, help="All jobs with this tag.")
    return argument(group(tag(command)))


def tag_of(group: str) -> str:
    """The tag of a group."""
    return f"{GROUP_TAG}{group}"


def named_jobs(call: Call, jobs: Sequence[str], group: str | None, tag: str | None) -> tuple[str, ...]:
    """The jobs that a command line names, oldest first for --group and -l. NotFound where no job has the tag."""
    from weft._errors import NotFound

    tagged: list[str] = []
    for wanted in filter(None, (tag_of(group) if group else "", tag or "")):
        ids = [job.id for job in call.client.jobs.list(tag=wanted)]
        if not ids:
            raise NotFound(f"no job has the tag '{wanted}'; `weft list -o wide` shows the jobs")
        tagged += reversed(ids)
    if not jobs and not tagged:
        raise click.UsageError("name jobs, or give --group NAME or -l TAG")
    return (*jobs, *(id_ for id_ in dict.fromkeys(tagged) if id_ not in jobs))


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of a group before they are submitted."""

    name: str
    specs: Sequence[dict[str, Any]]
    """The spec of each job: every combination of the values, in order; repetitions are next to each other."""
    settings: Sequence[str]
    """For people: what tells each job apart, e.g. ``lr=0.1 SEED=2``."""


def make_group(document: Mapping[str, Any], key: str, *, arrays: Sequence[str], repeat: int, name: str | None) -> Group:
    """The jobs that a spec makes with ``--array`` and ``--repeat``.

    ``arrays``: ``NAME=VALUE,VALUE``. A NAME without a dot is an environment variable, another one a field of the spec.
    ``key``: the idempotency key, of which the name of a group follows that is given none.
    """
    from weft._spec_file import set_field

    name = name or _made_name(document, key)
    axes = [_axis(text) for text in arrays]
    axes += [(SEED, [str(seed) for seed in range(repeat)])] if repeat > 1 else []
    job_name = str(document.get("name") or "job")
    specs: list[dict[str, Any]] = []
    settings: list[str] = []
    for values in itertools.product(*(values for _, values in axes)):
        spec = copy.deepcopy(dict(document))
        for (axis, _), value in zip(axes, values, strict=True):
            if "." in axis:
                set_field(spec, f"{axis}={value}")
            else:
                spec["env"] = {**(spec.get("env") or {}), axis: value}
        spec["tags"] = [*(spec.get("tags") or ()), tag_of(name)]
        spec["name"] = f"{job_name[:_NAME_MOST]}-{len(specs) + 1}"
        specs.append(spec)
        settings.append(" ".join(f"{axis}={value}" for (axis, _), value in zip(axes, values, strict=True)))
        if len(specs) > MOST:
            raise click.UsageError(f"a group has at most {MOST} jobs")
    return Group(name, specs, settings)


def _made_name(document: Mapping[str, Any], key: str) -> str:
    """The name of a group that has none: that of the job, and a part that follows from the idempotency key."""
    import hashlib

    return f"{str(document.get('name') or 'job')[:_NAME_MOST]}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not values or not ("." in name or _VARIABLE.fullmatch(name)):
        raise click.UsageError(f"--array {text}: write it as NAME=VALUE,VALUE, e.g. --array lr=0.1,0.01")
    return name, [value.strip() for value in values.split(",")]

"""What the shell completes: jobs, groups, tags, statuses, secrets, profiles, metric names, fields of the spec.

Completion never fails and never waits: without an answer there is nothing to complete. Imports click alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from weft._client import Client
    from weft._errors import WeftError

T = TypeVar("T")
STATUSES: Final = (
    "QUEUED",
    "PENDING",
    "DOWNLOADING",
    "PROCESSING",
    "STORING",
    "HALTING",
    "HALTED",
    "COMPLETED",
    "FAILED",
    "KILLED",
)
GROUP_TAG: Final = "group="
"""A group is the tag that begins so."""
_NEWEST: Final = 100
"""Jobs that are offered."""


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """@last, the names of the newest jobs, and their ids once the beginning of one is typed."""
    answer = _answer(ctx, lambda client: client.jobs.list(limit=_NEWEST))
    if answer is None:
        return []
    jobs = [(job.id, job.name, job.status) for job in answer]
    having = Counter(name for _, name, _ in jobs)
    offered = {name: status if having[name] == 1 else f"{having[name]} jobs" for _, name, status in jobs}
    items = [CompletionItem("@last", help="the job that you submitted last")]
    items += [CompletionItem(name, help=text) for name, text in offered.items()]
    items += [CompletionItem(id_, help=f"{name} {status}") for id_, name, status in jobs]
    # People know names. Where several jobs have one, the command lists their ids.
    ids = {id_ for id_, _, _ in jobs}
    return [item for item in items if item.value.startswith(incomplete) and (incomplete or item.value not in ids)]


def complete_tag(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tags of the newest jobs."""
    return _starting([(tag, "") for tag in _newest_tags(ctx)], incomplete)


def complete_group(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Groups of the newest jobs."""
    groups = [tag.removeprefix(GROUP_TAG) for tag in _newest_tags(ctx) if tag.startswith(GROUP_TAG)]
    return _starting([(group, "") for group in groups], incomplete)


def _newest_tags(ctx: click.Context) -> list[str]:
    jobs = _answer(ctx, lambda client: client.jobs.list(limit=_NEWEST)) or []
    return list(dict.fromkeys(tag for job in jobs for tag in job.document.get("tags") or ()))


def complete_secrets(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tenant's secrets."""
    secrets = _answer(ctx, lambda client: client.secrets.list(tenant=ctx.params.get("tenant"))) or []
    return _starting([(secret["name"], ", ".join(secret["keys"])) for secret in secrets], incomplete)


def complete_status(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting([(status, "") for status in STATUSES], incomplete.upper())


def complete_profile(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from weft._errors import WeftError
    from weft._profile import read_config

    try:
        profiles = read_config().profiles
    except (WeftError, OSError):
        return []
    return _starting([(name, profile.url) for name, profile in profiles.items()], incomplete)


def complete_metric(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Metrics of the job that the command line names, else of the newest jobs."""
    named = ctx.params.get("job") or next(iter(ctx.params.get("jobs") or ()), None)
    names: dict[str, str] = {}
    for job in _answer(ctx, lambda client: _documents(client, named)) or []:
        names |= {metric["name"]: f"last {metric['last']}" for metric in job.get("metrics") or ()}
    return _starting(sorted(names.items()), incomplete)


def _documents(client: Client, named: str | None) -> list[dict[str, Any]]:
    """The named job, else the newest ones, with their metrics."""
    from weft._cli.find import job_id

    if named:
        return [client.jobs.document(job_id(client, str(named)), metrics=["*"])]
    return [job.document for job in client.jobs.list(limit=20, metrics=["*"])]


def complete_field(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields of the spec by their paths."""
    return _starting(_fields(), incomplete)


def complete_setting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """As ``complete_field``, for FIELD=VALUE."""
    return _starting([(f"{path}=", text) for path, text in _fields()], incomplete)


def _fields() -> list[tuple[str, str]]:
    from weft._cli.fields import all_fields

    return all_fields()


def _starting(values: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value, help=text or None) for value, text in values if value.startswith(incomplete)]


def _answer(ctx: click.Context, read: Callable[[Client], Iterable[T]]) -> list[T] | None:
    """What the platform answers; None without a profile or an answer. Nothing is tried twice."""
    from weft._cli.call import Call
    from weft._client import Client
    from weft._errors import WeftError

    def give_up(why: WeftError) -> None:
        raise why

    call = ctx.find_object(Call)
    try:
        with Client(profile=call.profile if call is not None else None, on_wait=give_up) as client:
            return list(read(client))
    except (WeftError, OSError):
        return None

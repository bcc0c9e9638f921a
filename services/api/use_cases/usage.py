"""GPU-hours and CPU-hours that jobs held, by tenant and user."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, Time, as_time, doc
from services.api.params import Params, unix_ms, wrong_parameter
from services.api.services import ApiServices
from services.api.use_cases.platform import TENANT
from services.core.domain.held_time import HeldTotal

DAY_MS: Final = 86_400_000
MOST_DAYS: Final = 366
"""Of a window: a leap year."""
DEFAULT_DAYS: Final = 30
_LATE_MS: Final = 60_000
"""A client that asks for the last 366 days has read its clock before the request arrives."""
_DIGITS: Final = 4
"""Of hours: a third of a second."""


class UsageParams(Params):
    """Whose jobs count, and when."""

    tenant: str | None = Field(default=None, description=TENANT)
    since: str | None = Field(
        default=None, description="Beginning of the window (RFC 3339); default: 30 days before its end."
    )
    until: str | None = Field(
        default=None,
        description="End of the window (RFC 3339), which does not belong to it; default, and at most: now.",
    )


class UserUsage(Answer):
    """What the jobs of a user held within the window."""

    tenant: Annotated[str, doc("Tenant of the jobs.")]
    user: Annotated[str, doc("User who submitted them.")]
    jobs: Annotated[int, doc("Number of jobs that held hardware.")]
    gpu_hours: Annotated[float, doc("GPUs times the hours for which they were held; half a GPU counts as 0.5.")]
    cpu_hours: Annotated[float, doc("CPU cores times the hours for which they were held.")]


class GetUsageReply(Answer):
    """The hardware that jobs held within a window: from each admission until all of it was given back."""

    since: Annotated[Time, doc("Beginning of the window.")]
    until: Annotated[Time, doc("End of the window.")]
    users: Annotated[list[UserUsage], doc("By tenant and user; those with most GPU-hours first.")]
    unreadable: Annotated[int, doc("Jobs of the window that cannot be read and are not counted; usually 0.")]


async def get_usage(services: ApiServices, principal: Principal, params: UsageParams) -> GetUsageReply:
    """GPU-hours and CPU-hours by tenant and user. Raises InvalidRequest, PermissionDenied."""
    tenant = principal.listed_tenant(params.tenant)
    since, until = _window(params, services.held_hardware.now_ms())
    totals = await services.held_hardware.within(since, until, tenant)
    users = [_user(*names, total) for names, total in totals.of_users.items()]
    users.sort(key=lambda entry: (-entry.gpu_hours, -entry.cpu_hours, entry.tenant, entry.user))
    return GetUsageReply(since=as_time(since), until=as_time(until), users=users, unreadable=totals.unreadable)


def _window(params: UsageParams, now: int) -> tuple[int, int]:
    """(since, until) in Unix ms. Raises InvalidRequest for a window that is empty or too long."""
    given = unix_ms("since", params.since), unix_ms("until", params.until)
    until = now if given[1] is None else min(given[1], now)
    since = until - DEFAULT_DAYS * DAY_MS if given[0] is None else given[0]
    if since >= until:
        raise wrong_parameter("since", "the window is empty: it begins before its end, and before now")
    if until - since > MOST_DAYS * DAY_MS + _LATE_MS:
        raise wrong_parameter("since", f"a window has at most {MOST_DAYS} days; ask for several, one after another")
    return since, until


def _user(tenant: str, user: str, total: HeldTotal) -> UserUsage:
    return UserUsage(
        tenant=tenant,
        user=user,
        jobs=total.jobs,
        gpu_hours=round(total.gpu_hours, _DIGITS),
        cpu_hours=round(total.cpu_hours, _DIGITS),
    )

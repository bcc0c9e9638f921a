"""Which job is meant: an id, ``@last`` (the one you submitted last), or a name that only one job has."""

from __future__ import annotations

import re

from weft._client import Client
from weft._errors import InvalidRequest, NotFound

_ID = re.compile(r"j[0-9a-hjkmnp-tv-z]{22}")


def job_id(client: Client, named: str) -> str:
    """The id of the job that is meant. NotFound, or InvalidRequest where several jobs have that name."""
    if _ID.fullmatch(named):
        return named
    if named == "@last":
        return _last(client)
    if named.startswith("@"):
        raise InvalidRequest(f"'{named}' is not known; @last is the job that you submitted last")
    jobs = list(client.jobs.list(name=named, limit=4))
    if len(jobs) == 1:
        return jobs[0].id
    if not jobs:
        raise NotFound(f"there is no job '{named}'{_suggestion(client, named)}")
    ids = ", ".join(job.id for job in jobs[:3])
    raise InvalidRequest(
        f"several jobs are called '{named}'; give the id of one, newest first: {ids}"
        f"{', ...' if len(jobs) > 3 else ''}; @last is the one that you submitted last"
    )


def _last(client: Client) -> str:
    me = client.whoami().get("user")
    for job in client.jobs.list(user=me, deleted=True, limit=1):
        if job.document.get("deleted"):
            raise NotFound(f"@last is {job.name} ({job.id}), and it was deleted; `weft list` shows the other jobs")
        return job.id
    raise NotFound("you have not submitted a job yet: `weft train`")


def _suggestion(client: Client, named: str) -> str:
    import difflib

    names = {job.name for job in client.jobs.list(limit=200)}
    close = difflib.get_close_matches(named, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else "; `weft list` shows what there is"

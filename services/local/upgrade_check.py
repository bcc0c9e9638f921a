"""Checks, before an upgrade or a rollback of the chart (helm/weft), that this version can read every job in the store.

    python -m services.local.upgrade_check

It runs with the image of the version to come, while the former version serves. It reads each job's document and writes
nothing, so the former version goes on as it was if the upgrade ends here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

from services.core.adapters.mongo.connection import close, connect
from services.core.adapters.mongo.jobs import MongoJobStore
from services.core.domain.errors import Conflict, Unavailable, WeftError
from services.core.ports.job_store import JobStore, Unreadable
from services.core.runtime.retry import Backoff
from services.local.chart_hooks import fail
from services.local.pod_home import MOUNTED, job_store_uri

_SHOWN: Final = 10
_STORE_WITHIN_S: Final = 60.0
"""A store that is being restarted answers within it."""
_IGNORE: Final = "To go on without this check: --set upgrades.checkJobs=false"


async def check_jobs(store: JobStore) -> None:
    """Reads all jobs, also deleted ones. Raises Conflict that names those that this version cannot read."""
    unreadable: list[Unreadable] = []
    after = ""
    while True:
        page, after = await store.unreadable(after=after)
        unreadable.extend(page)
        if not after:
            break
    if not unreadable:
        return
    shown = [f"  {bad.id}: {bad.why}" for bad in unreadable[:_SHOWN]]
    if len(unreadable) > _SHOWN:
        shown.append(f"  and {len(unreadable) - _SHOWN} more")
    if any(bad.newer for bad in unreadable):
        advice = "A newer Weft wrote some of them: use that version or a later one."
    else:
        advice = (
            "The changelog says from which versions an upgrade goes. Documents that `weft status` shows in quarantine "
            "are damaged and no version reads them: repair or remove them first."
        )
    raise Conflict(
        "\n".join(
            [f"this version cannot read {len(unreadable)} jobs:", *shown, "Nothing was changed.", advice, _IGNORE]
        )
    )


async def check_store(uri: str, *, within_s: float = _STORE_WITHIN_S) -> None:
    """Checks the jobs of a store, as ``check_jobs``. Raises Unavailable if it does not answer within ``within_s``."""
    database = connect(uri)
    store = MongoJobStore(database)  # not ``open``, which creates indexes
    try:
        await _wait_for(store, within_s)
        await check_jobs(store)
    except Unavailable as error:
        raise Unavailable(f"the jobs cannot be read: {error.message}. Nothing was changed. {_IGNORE}") from error
    finally:
        await close(database)


async def _wait_for(store: JobStore, within_s: float) -> None:
    backoff, until = Backoff(first_s=1.0, most_s=5.0), time.monotonic() + within_s
    while True:
        try:
            return await store.ping()
        except Unavailable:
            if time.monotonic() > until:
                raise
            await backoff.wait()


def main(mounted: Path = MOUNTED) -> int:
    """Returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m services.local.upgrade_check", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    ).parse_args()
    try:
        asyncio.run(check_store(job_store_uri(mounted / "stores", os.environ["WEFT_POD_HOSTS"])))
    except (WeftError, OSError) as error:
        return fail("upgrade-check", error)
    sys.stdout.write("upgrade-check: this version can read all jobs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

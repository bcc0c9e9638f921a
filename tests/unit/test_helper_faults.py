"""Whose fault a failed fetch is: outages of the machine, of the index and of stores, or the job's own spec."""

from __future__ import annotations

import errno
import socket

import pytest

from services.core.domain.errors import NoSpace, NotFound, Unavailable
from services.core.domain.outages import Outage
from services.helper.fetch.faults import outage_of, outage_of_build

REFUSED = """\
Using Python 3.11.2 environment at: v
error: Request failed after 3 retries in 11.0s
  cause: Failed to fetch: http://127.0.0.1:18999/simple/networkx/
  cause: error sending request for url (http://127.0.0.1:18999/simple/networkx/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
SERVER_ERROR = """\
error: Request failed after 3 retries in 8.6s
  cause: Failed to fetch: http://127.0.0.1:18503/simple/networkx/
  cause: HTTP status server error (503 Service Unavailable) for url (http://127.0.0.1:18503/simple/networkx/)
"""
OLDER_UV = """\
  \u00d7 Failed to download `rich==13.9.4`
  ├─▶ Failed to extract archive
  ├─▶ error decoding response body
  ╰─▶ operation timed out
"""
NO_NAME_SERVER = """\
error: Failed to fetch: `https://index.example/simple/rich/`
  Caused by: Request failed after 3 retries
  Caused by: error sending request for url (https://index.example/simple/rich/)
  Caused by: client error (Connect)
  Caused by: dns error: failed to lookup address information: Temporary failure in name resolution
"""
FULL = """\
error: Failed to install: rich-13.9.4-py3-none-any.whl (rich==13.9.4)
  Caused by: failed to copy file from /a to /b: No space left on device (os error 28)
"""
NO_SUCH_PACKAGE = """\
error: No solution found when resolving dependencies
  cause: Because networkx was not found in the package registry and you require networkx, we can conclude that your \
requirements are unsatisfiable.
"""
WRAPPED = """\
  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because you require dnspython==99 and
      connection refused is the name of no package, your requirements
      are unsatisfiable.
"""
WRONG_HASH = """\
error: Failed to download `connectorx==1`
  cause: Hash mismatch for `connectorx==1`
"""
NO_SUCH_FILE = """\
error: Failed to fetch: `https://host/files/rich-13.whl`
  Caused by: HTTP status client error (404 Not Found) for url (https://host/files/rich-13.whl)
"""


@pytest.mark.parametrize("output", [REFUSED, SERVER_ERROR, OLDER_UV, NO_NAME_SERVER])
def test_package_index_that_does_not_answer_is_an_outage(output: str) -> None:
    assert outage_of_build(output) is Outage.INDEX_UNAVAILABLE


def test_full_disk_during_a_build_is_an_outage() -> None:
    assert outage_of_build(FULL) is Outage.NO_SPACE


@pytest.mark.parametrize("code", [-11, -9, -6])
def test_a_build_tool_that_crashes_is_no_fault_of_the_job(code: int) -> None:
    assert outage_of_build("", code) is Outage.MACHINE_FAULT
    assert outage_of_build("", 1) is None


@pytest.mark.parametrize("output", [NO_SUCH_PACKAGE, WRAPPED, WRONG_HASH, NO_SUCH_FILE, ""])
def test_requirements_that_an_answering_index_cannot_satisfy_are_the_job_s_fault(output: str) -> None:
    assert outage_of_build(output) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "full"), Outage.NO_SPACE),
        (OSError(errno.EDQUOT, "quota"), Outage.NO_SPACE),
        (NoSpace("full"), Outage.NO_SPACE),
        (OSError(errno.EIO, "input/output error"), Outage.MACHINE_FAULT),
        (OSError(errno.ESTALE, "stale file handle"), Outage.MACHINE_FAULT),
        (Unavailable("the store is away"), Outage.MACHINE_FAULT),
        (OSError(errno.ENAMETOOLONG, "file name too long"), None),
        (socket.gaierror(socket.EAI_NONAME, "no such host"), None),
        (NotFound("no object"), None),
    ],
    ids=str,
)
def test_error_while_fetching_is_an_outage_only_if_another_try_may_succeed(
    error: Exception, reason: Outage | None
) -> None:
    outage = outage_of(error)
    assert (outage and outage.reason) == reason

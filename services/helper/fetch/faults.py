"""Distinguishes outages from faults of the job: in errors of the system, and in the output of uv.

uv reports a request that failed for good in a chain of causes, each on a line of its own. A line counts only by its
beginning: the rest may contain names that the job's owner has chosen, such as ``networkx`` or ``dnspython``.
"""

from __future__ import annotations

import errno
import re
import socket
from typing import Final

from services.core.domain.errors import NoSpace, Unavailable
from services.core.domain.outages import Outage
from services.core.runtime.durable_files import FULL
from services.helper.fetch.progress import FetchFailed

AWAY: Final = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOMEM,
        errno.ENOTCONN,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors of a machine, a disk or a server that fails. The same call may succeed later."""
_CAUSE: Final = re.compile(r"^\W*(?:\d+: |error: |cause: |caused by: )*(?P<cause>.*)$", re.IGNORECASE)
_UNSOLVED: Final = "no solution found"
_FULL_DISK: Final = re.compile(r"no space left on device|disk quota exceeded|.*\(os error (?:28|122)\)$")
_NO_ANSWER: Final = re.compile(
    r"request failed after \d+ retr|error sending request|http status server error"
    r"|http status client error \(4(?:08|25|29)|client error \((?:connect|sendrequest)|tcp connect error|dns error"
    r"|failed to lookup address|operation timed out|connection (?:refused|reset|closed|error|timed out)"
    r"|could not connect|error decoding response body|request or response body error|invalid peer certificate"
)


def outage_of(error: Exception) -> FetchFailed | None:
    """The failure to report for an error while fetching if it is an outage; None for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, NoSpace) or number in FULL:
        return FetchFailed(Outage.NO_SPACE, "the disk of the machine that was chosen for it is full")
    if isinstance(error, Unavailable):
        return FetchFailed(Outage.MACHINE_FAULT, error.message)
    if number in AWAY and not isinstance(error, socket.gaierror):
        return FetchFailed(Outage.MACHINE_FAULT, f"its machine failed while it fetched: {error}")
    return None


def outage_of_build(output: str, code: int = 1) -> Outage | None:
    """The outage that made uv fail; None if the requirements cannot be installed from an index that answers.

    ``code``: its exit code; that of a process that a signal ended is negative. uv ends itself with one only by a crash,
    and the kernel ends it for want of memory.
    """
    if code < 0:
        return Outage.MACHINE_FAULT
    causes = [match["cause"].strip().lower() for line in output.splitlines() if (match := _CAUSE.match(line))]
    if any(cause.startswith(_UNSOLVED) for cause in causes):
        return None
    if any(_FULL_DISK.match(cause) for cause in causes):
        return Outage.NO_SPACE
    return Outage.INDEX_UNAVAILABLE if any(_NO_ANSWER.match(cause) for cause in causes) else None

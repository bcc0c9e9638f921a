"""Prepares a new MongoDB server for Weft: a replica set of this one member, an administrator, and Weft's own user.

A server that demands passwords lets the first user be made without one, in the database ``admin`` and by a client on
its own machine only (MongoDB's "localhost exception"). So this runs where the server is ``localhost``. It may be
repeated: what exists is left as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from services.core.domain.errors import Unavailable

_ADMIN: Final = "admin"
_ALREADY_INITIALIZED: Final = 23
_UNAUTHORIZED: Final = 13
_AUTHENTICATION_FAILED: Final = 18
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What the server shall have."""

    replica_set: str
    member: str
    """host:port by which clients reach it."""
    user: str
    """Weft's own, with read and write access to the database of the same name."""
    password: str = field(repr=False)
    admin_password: str = field(repr=False)
    """Of the user ``admin``, who may do everything."""


def install(wanted: Installation, *, port: int, within_s: float) -> None:
    """Returns when the member is primary and Weft's user can log in.

    Raises Unavailable with the last reason after ``within_s`` seconds.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            _install(wanted, port)
        except PyMongoError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"MongoDB at port {port} cannot be prepared: {error}") from error
            time.sleep(_POLL_S)  # it starts, or is not primary yet
        else:
            return


def _install(wanted: Installation, port: int) -> None:
    if _can_log_in(port, wanted.user, wanted.password, database=wanted.user):
        return
    if not _can_log_in(port, _ADMIN, wanted.admin_password, database=_ADMIN):
        _make_administrator(wanted, port)
    with _client(port, username=_ADMIN, password=wanted.admin_password, authSource=_ADMIN) as client:
        _make_user(client, wanted.user, wanted.user, wanted.password, role="readWrite")


def _make_administrator(wanted: Installation, port: int) -> None:
    with _client(port) as client:
        members = [{"_id": 0, "host": wanted.member}]
        try:
            client.admin.command({"replSetInitiate": {"_id": wanted.replica_set, "members": members}})
        except OperationFailure as error:
            if error.code not in {_ALREADY_INITIALIZED, _UNAUTHORIZED}:
                raise
        _make_user(client, _ADMIN, _ADMIN, wanted.admin_password, role="root")


def _make_user(client: MongoClient[dict[str, Any]], database: str, user: str, password: str, *, role: str) -> None:
    roles = [{"role": role, "db": database}]
    client.get_database(database).command({"createUser": user, "pwd": password, "roles": roles})


def _can_log_in(port: int, user: str, password: str, *, database: str) -> bool:
    """Raises PyMongoError if the server does not answer."""
    try:
        with _client(port, username=user, password=password, authSource=database) as client:
            client.get_database(database).command("ping")
    except OperationFailure as error:
        if error.code == _AUTHENTICATION_FAILED:
            return False
        raise
    return True


def _client(port: int, **options: Any) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=2000, retryWrites=False, **options
    )

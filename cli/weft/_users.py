"""The users of a platform, read from its keys: every key belongs to one user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def users_of(keys: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The users with a key that works, by tenant and name. ``scope`` is the widest of their keys."""
    users: dict[tuple[str, str], dict[str, Any]] = {}
    for key in keys:
        if key.get("revoked"):
            continue
        name = (str(key["tenant"]), str(key["user"]))
        user = users.setdefault(
            name, {"user": name[1], "tenant": name[0], "scope": "user", "keys": 0, "created": key["created"]}
        )
        user["keys"] += 1
        user["scope"] = "admin" if "admin" in {user["scope"], key["scope"]} else "user"
        user["created"] = min(user["created"], key["created"])
    return [users[name] for name in sorted(users)]

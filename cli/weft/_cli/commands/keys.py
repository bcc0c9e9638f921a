"""key, user: who may use the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, command
from weft._cli.confirm import YES, confirm

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types

ANSWERS: Final[Answers] = {
    "user": {"users": ("list of User", "Users with a key that works.")},
    "user add": "ApiKey",
    "user remove": {
        "user": ("text", "Name of the user."),
        "tenant": ("text", "Tenant of the user."),
        "revoked": ("list of text", "Ids of the keys that were revoked."),
    },
    "key": {"keys": ("list of ApiKey", "Your keys, revoked ones included; for administrators of all users.")},
    "key create": "ApiKey",
    "key revoke": {
        "id": ("text", "Id of the key."),
        "revoked": ("flag", "Always true."),
    },
}
TYPES: Final[Types] = {
    "User": {
        "user": ("text", "Name of the user."),
        "tenant": ("text", "Tenant of the user."),
        "scope": ("text", "user or admin: the widest of the user's keys."),
        "keys": ("integer", "Number of keys that work."),
        "created": ("time", "When the first of them was made."),
    },
}

_TENANT = "Administrators: the tenant of the user; by default your own."


@command("key")
@click.argument("action", type=click.Choice(["list", "create", "revoke"]), default="list")
@click.argument("name", required=False, metavar="[NAME|ID]")
@click.option("--user", metavar="USER", help="Administrators: create it for this user; by default yourself.")
@click.option("--tenant", metavar="TENANT", help=_TENANT)
@click.option("--admin", is_flag=True, help="Administrators: create a key that may do everything.")
def key_command(call: Call, action: str, name: str | None, user: str | None, tenant: str | None, admin: bool) -> None:
    """List, create or revoke API keys.

    \b
    weft key                      your keys; administrators: those of all users
    weft key create laptop        a new key, printed once
    weft key revoke ID            it stops working within seconds
    """  # noqa: D301 - \b is click's: the lines after it stay as they are
    from weft._cli.output import details, emit

    if action == "list":
        _list_keys(call)
        return
    if not name:
        raise click.UsageError("name the key: `weft key create NAME`, `weft key revoke ID`")
    if action == "revoke":
        call.client.keys.revoke(name)
        emit(call, {"id": name, "revoked": True}, people=lambda _wide: f"revoked {name}", names=[name])
        return
    made = call.client.keys.create(name, user=user, tenant=tenant, scope="admin" if admin else None)
    emit(
        call,
        made,
        names=[made["id"]],
        people=lambda _wide: details(
            [
                ("key", made.get("key")),
                ("id", made["id"]),
                ("user", made["user"]),
                ("tenant", made["tenant"]),
                ("scope", made["scope"]),
                ("note", "this is the only time that the key is shown"),
            ]
        ),
    )


def _list_keys(call: Call) -> None:
    from weft._cli.output import Column, emit, table
    from weft._cli.text import ago
    from weft._times import parse_time

    keys = call.client.keys.list()

    def people(wide: bool) -> str:
        columns = [
            Column("ID"),
            Column("NAME", flexible=True),
            Column("USER", flexible=True, spare=1),
            Column("TENANT", flexible=True, spare=4),
            Column("SCOPE", spare=3),
            Column("AGE", right=True, spare=2),
            Column("STATE"),
        ]
        rows = [
            [
                key["id"],
                key["name"],
                key["user"],
                key["tenant"],
                key["scope"],
                ago(parse_time(key["created"])),
                "revoked" if key.get("revoked") else "works",
            ]
            for key in keys
        ]
        return table(columns, rows, wide=wide)

    emit(call, {"keys": keys}, people=people, names=(key["id"] for key in keys))


@command("user")
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--tenant", metavar="TENANT", help=_TENANT)
@click.option("--admin", is_flag=True, help="With add: an administrator.")
@YES
def user_command(call: Call, action: str, name: str | None, tenant: str | None, admin: bool, yes: bool) -> None:
    """List, add or remove users.

    A user is known by API keys: adding one makes the first key, removing one revokes all of them. Jobs stay.

    \b
    weft user                     the users; administrators: of all tenants
    weft user add ada             makes a key for ada, printed once
    weft user remove ada          asks first
    """  # noqa: D301 - \b is click's: the lines after it stay as they are
    from weft._cli.output import details, emit

    if action == "list":
        _list_users(call)
        return
    if not name:
        raise click.UsageError("name the user: `weft user add NAME`, `weft user remove NAME`")
    if action == "remove":
        _remove(call, name, tenant, yes=yes)
        return
    scope = "admin" if admin else None
    made: dict[str, Any] = call.client.keys.create(f"first key of {name}", user=name, tenant=tenant, scope=scope)
    emit(
        call,
        made,
        names=[made["user"]],
        people=lambda _wide: details(
            [
                ("user", made["user"]),
                ("tenant", made["tenant"]),
                ("scope", made["scope"]),
                ("key", made.get("key")),
                ("next", f"weft login {call.client.url} --key-stdin  (the key is shown this once)"),
            ]
        ),
    )


def _list_users(call: Call) -> None:
    from weft._cli.output import Column, emit, table
    from weft._cli.text import ago
    from weft._times import parse_time

    users = call.client.users()

    def people(wide: bool) -> str:
        columns = [
            Column("USER", flexible=True),
            Column("TENANT", flexible=True),
            Column("SCOPE"),
            Column("KEYS", right=True, spare=1),
            Column("AGE", right=True, spare=2),
        ]
        rows = [
            [user["user"], user["tenant"], user["scope"], user["keys"], ago(parse_time(user["created"]))]
            for user in users
        ]
        return table(columns, rows, wide=wide)

    emit(call, {"users": users}, people=people, names=(user["user"] for user in users))


def _remove(call: Call, name: str, tenant: str | None, *, yes: bool) -> None:
    from weft._cli.output import emit
    from weft._errors import NotFound

    caller = call.client.whoami()
    tenant = tenant or caller["tenant"]
    keys = [
        key
        for key in call.client.keys.list()
        if (key["user"], key["tenant"]) == (name, tenant) and not key.get("revoked")
    ]
    keys.sort(key=lambda key: key["id"] == caller["key_id"])  # the last one: it is needed to revoke the others
    if not keys:
        raise NotFound(f"there is no user '{name}' with a key in tenant '{tenant}'; `weft user` lists the users")
    losses = [f"key {key['id']} ({key['name']}) stops working" for key in keys]
    confirm(f"remove the user '{name}' of tenant '{tenant}'", losses, yes=yes)
    for key in keys:
        call.client.keys.revoke(key["id"])
    ids = [key["id"] for key in keys]
    emit(
        call,
        {"user": name, "tenant": tenant, "revoked": ids},
        names=ids,
        people=lambda _wide: f"removed {name}: {len(ids)} key{'s' if len(ids) > 1 else ''} revoked",
    )

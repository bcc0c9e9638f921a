"""secret: credentials of the tenant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command
from weft._cli.completion import complete_secrets
from weft._cli.confirm import YES, confirm

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "secret": {"secrets": ("list of TenantSecret", "Secrets of the tenant, without their values.")},
    "secret set": "TenantSecret",
    "secret delete": {
        "name": ("text", "Name of the secret."),
        "deleted": ("flag", "Always true."),
    },
}
_MOST: Final = 64 * 1024
"""Bytes of the values of a secret, of which the platform accepts no more."""
_FORM: Final = "write each key as KEY=@FILE or KEY=VALUE, and without a value give --stdin"


@command("secret")
@click.argument("action", type=click.Choice(["list", "set", "delete"]), default="list")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_secrets)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--stdin", is_flag=True, help="With set: read lines KEY=VALUE from standard input.")
@click.option("--tenant", metavar="TENANT", help="Administrators: the tenant of the secret; by default your own.")
@YES
def secret_command(
    call: Call, action: str, name: str | None, values: tuple[str, ...], stdin: bool, tenant: str | None, yes: bool
) -> None:
    """List, set or delete the tenant's secrets.

    A secret is a name with up to 16 keys, e.g. of an object store. Its values cannot be read back.

    \b
    weft secret                          names and keys, never values
    weft secret set s3 access_key=@FILE  from a file, without its last line break
    weft secret set s3 --stdin < FILE    lines KEY=VALUE
    weft secret delete s3                asks first
    """  # noqa: D301 - \b is click's: the lines after it stay as they are
    if action != "set" and (values or stdin):
        raise click.UsageError(f"`weft secret {action}` takes no values")
    if action == "list":
        _list_secrets(call, tenant)
        return
    if not name:
        raise click.UsageError("name the secret: `weft secret set NAME KEY=@FILE`, `weft secret delete NAME`")
    if action == "set":
        _set(call, name, _values(values, stdin=stdin), tenant)
    else:
        _delete(call, name, tenant, yes=yes)


def _set(call: Call, name: str, values: dict[str, str], tenant: str | None) -> None:
    from weft._cli.output import details, emit

    secret = call.client.secrets.set(name, values, tenant=tenant)
    emit(
        call,
        secret,
        names=[secret["name"]],
        people=lambda _wide: details([("secret", secret["name"]), ("keys", ", ".join(secret["keys"]))]),
    )


def _delete(call: Call, name: str, tenant: str | None, *, yes: bool) -> None:
    from weft._cli.output import emit

    confirm(f"delete the secret '{name}'", ["its values cannot be brought back"], yes=yes)
    call.client.secrets.delete(name, tenant=tenant)
    emit(call, {"name": name, "deleted": True}, people=lambda _wide: f"deleted {name}", names=[name])


def _list_secrets(call: Call, tenant: str | None) -> None:
    from weft._cli.notices import note
    from weft._cli.output import Column, emit, table
    from weft._cli.text import ago
    from weft._times import parse_time

    secrets = call.client.secrets.list(tenant=tenant)

    def people(wide: bool) -> str:
        columns = [
            Column("NAME"),
            Column("KEYS", flexible=True),
            Column("CHANGED", right=True, spare=1),
            Column("BY", flexible=True, spare=2),
        ]
        rows = [
            [
                secret["name"],
                "damaged: set it again" if secret["damaged"] else ",".join(secret["keys"]),
                ago(parse_time(secret["changed"])) if secret["changed"] else "",
                secret["changed_by"],
            ]
            for secret in secrets
        ]
        return table(columns, rows, wide=wide)

    emit(call, {"secrets": secrets}, people=people, names=(secret["name"] for secret in secrets))
    if call.for_people and not secrets:
        note("no secrets yet; `weft secret set NAME KEY=@FILE` stores one")


def _values(words: tuple[str, ...], *, stdin: bool) -> dict[str, str]:
    """The values by key. Warns of values in clear. No error repeats a word without a key: it may be a value."""
    from weft._cli.notices import warn

    pairs = [_pair(word) for word in words]
    if any(not value.startswith("@") for _key, value in pairs):
        warn("values on the command line stay in the shell's history; give KEY=@FILE or --stdin")
    pairs = [(key, _from_file(key, value[1:]) if value.startswith("@") else value) for key, value in pairs]
    if stdin:
        pairs += [_pair(line) for line in _text(sys.stdin.buffer.read(2 * _MOST), "stdin").splitlines() if line.strip()]
    values = dict(pairs)
    if not values:
        raise click.UsageError(_FORM)
    if len(values) < len(pairs):
        raise click.UsageError("a key is given twice")
    return values


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not (key and equals):
        raise click.UsageError(_FORM)
    return key, value


def _from_file(key: str, path: str) -> str:
    """The text of the file without its last line break."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST + 3)
    except OSError as error:
        raise click.UsageError(f"{key}: {path}: {error.strerror or error}") from None
    text = _text(content, key)
    return text.removesuffix("\n").removesuffix("\r")


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{what}: a secret's value is text in UTF-8; encode it, e.g. with base64") from None

"""login, logout, whoami, storage, profile: the known platforms, and the user at each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command
from weft._cli.completion import complete_profile

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types
    from weft._profile import Config

ANSWERS: Final[Answers] = {
    "login": {
        "profile": ("text", "Name of the profile that was written."),
        "url": ("text", "Address of the platform."),
        "user": ("text", "User of the key."),
        "tenant": ("text", "Tenant of the key."),
    },
    "logout": {
        "profile": ("text", "The profile."),
        "removed": ("flag", "Always true."),
    },
    "whoami": {
        "user": ("text", "User of the key."),
        "tenant": ("text", "Tenant of the key."),
        "scope": ("text", "user or admin."),
        "key_id": ("text", "Id of the key."),
        "permissions": ("list of text", "What the key allows."),
        "url": ("text", "Address of the platform."),
        "profile": ("text", "Name of the profile; empty if the key comes from the environment."),
    },
    "storage": "TenantStorage",
    "profile": {"profiles": ("list of Profile", "The platforms that you know.")},
}
TYPES: Final[Types] = {
    "Profile": {
        "name": ("text", "Name of the profile."),
        "url": ("text", "Address of its platform."),
        "current": ("flag", "Commands go to it."),
        "home": ("text", "Folder of a platform on this machine; empty for one elsewhere."),
    },
}


@command("login")
@click.argument("url")
@click.option("--key", metavar="KEY", help="The API key; better --key-stdin, which no process list shows.")
@click.option("--key-stdin", is_flag=True, help="Read the API key from standard input.")
@click.option("--name", metavar="NAME", help="Name of the profile; by default the host's.")
def login_command(call: Call, url: str, key: str | None, key_stdin: bool, name: str | None) -> None:
    """Sign in to a platform and make it current.

    URL may be that of the dashboard. The key is tried before it is stored. On a terminal the command prompts for a
    key that is not given; WEFT_KEY works, too.
    """
    from weft._cli.output import emit
    from weft._client import Client
    from weft._profile import Profile, config_file, environment_key, locked_config, normal_address, write_config

    address = normal_address(url)
    if key_stdin:
        key = sys.stdin.readline()
    elif key is None:
        key = environment_key(address)
    if key is None:
        if not sys.stdin.isatty():
            raise click.UsageError("no key: give it with --key-stdin, --key or WEFT_KEY")
        key = click.prompt("API key", hide_input=True)
    key = str(key).strip()
    if not key:  # the client would use the stored key in its place, and then the profile would lose that
        raise click.UsageError("the key is empty; nothing was stored")
    with Client(address, key) as client:
        me = client.whoami()
    with locked_config() as config:
        profile = Profile(name or call.profile or _name_for(config, address), address, key)
        write_config(config.with_profile(profile, current=True))
    document = {"profile": profile.name, "url": address, "user": me.get("user"), "tenant": me.get("tenant")}
    emit(
        call,
        document,
        names=[profile.name],
        people=lambda _wide: f"signed in to {address} as {me.get('user')}; profile '{profile.name}' in {config_file()}",
    )


def _name_for(config: Config, address: str) -> str:
    """The host's name; with a number if that is the name of another platform, whose key must not be lost."""
    from urllib.parse import urlsplit

    host = urlsplit(address).hostname or "default"
    names = (host, *(f"{host}-{number}" for number in range(2, 10_000)))
    return next(name for name in names if name not in config.profiles or config.profiles[name].url == address)


@command("logout")
@click.argument("name", required=False, shell_complete=complete_profile)
def logout_command(call: Call, name: str | None) -> None:
    """Forget a platform and its key.

    NAME is a profile; by default the current one. The key itself stays valid until it is revoked.
    """
    from weft._cli.output import emit
    from weft._errors import Unauthenticated
    from weft._profile import locked_config, no_such_profile, write_config

    with locked_config() as config:
        name = name or call.profile or config.current
        if not name:
            raise Unauthenticated("not signed in anywhere; `weft login URL` signs in")
        if name not in config.profiles:
            raise no_such_profile(name, config)
        write_config(config.without(name))
    emit(call, {"profile": name, "removed": True}, people=lambda _wide: f"forgot '{name}'", names=[name])


@command("whoami")
def whoami_command(call: Call) -> None:
    """Show the user of the key."""
    from weft._cli.output import details, emit

    client = call.client
    me = {**client.whoami(), "url": client.url, "profile": client.profile.name}

    def people(wide: bool) -> str:
        return details(
            [
                ("user", me.get("user")),
                ("tenant", me.get("tenant")),
                ("scope", me.get("scope")),
                ("platform", me["url"]),
                ("profile", me["profile"] or "(from the environment)"),
                ("key", me.get("key_id")),
                ("may", "\n".join(me.get("permissions") or ()) if wide else ""),
            ]
        )

    emit(call, me, people=people, names=[str(me.get("user"))])


@command("storage")
def storage_command(call: Call) -> None:
    """Show what the tenant has stored.

    Sizes of code, results, logs and checkpoints, at most a minute old; in JSON and YAML they are bytes. Deleted jobs
    count until the operator's retention time is over.
    """
    from weft._cli.output import details, emit
    from weft._cli.text import size

    usage = call.client.storage()

    def people(_wide: bool) -> str:
        more = "" if usage.get("complete") else " or more"
        kinds = sorted((usage.get("kinds") or {}).items())
        return details(
            [
                ("tenant", usage.get("tenant")),
                ("objects", f"{usage.get('objects', 0):,}{more}"),
                ("size", f"{size(usage.get('bytes', 0))}{more}"),
                *((f"  {kind}", size(count)) for kind, count in kinds),
            ]
        )

    emit(call, usage, people=people, names=[str(usage.get("tenant"))])


@command("profile")
@click.argument("name", required=False, shell_complete=complete_profile)
def profile_command(call: Call, name: str | None) -> None:
    """List the platforms you know, or switch to one.

    With NAME: commands go to that platform from now on. WEFT_PROFILE, and WEFT_URL with WEFT_KEY, win over it.
    """
    from weft._cli.notices import note
    from weft._cli.output import Column, emit, table
    from weft._profile import locked_config, read_config, write_config

    if name:
        with locked_config() as config:
            write_config(config.using(name))
    config = read_config()
    documents = [
        {"name": profile.name, "url": profile.url, "current": profile.name == config.current, "home": profile.home}
        for profile in config.profiles.values()
    ]

    def people(_wide: bool) -> str:
        rows = [["*" if d["current"] else "", d["name"], d["url"], d["home"]] for d in documents]
        return table([Column(""), Column("NAME"), Column("URL", flexible=True), Column("FOLDER", flexible=True)], rows)

    emit(call, {"profiles": documents}, people=people, names=(str(d["name"]) for d in documents))
    if call.for_people and not documents:
        note("none yet: `weft up` starts a platform on this machine, `weft login URL` signs in to one")

"""backup, restore, master-key: for operators, on the platform's machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, command
from weft._cli.homes import HOME_HELP

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Fields, Types

_RESTORED: Final[Fields] = {
    "home": ("text", "Folder of the platform."),
    "head": ("BackupHead", "What the backup says of itself."),
    "counts": ("map of integer", "Number of things restored, by kind."),
    "again": ("list of text", "Ids of jobs that are queued again."),
    "halted": ("list of text", "Ids of jobs that were halted (--halted)."),
    "warnings": ("list of text", "What the backup lacked."),
}
_VERIFIED: Final[Fields] = {
    "file": ("text", "The backup."),
    "head": ("BackupHead", "What the backup says of itself."),
    "counts": ("map of integer", "Number of things in it, by kind."),
    "authentic": ("flag", "Its key is here, and it is as that key wrote it."),
    "warnings": ("list of text", "What it lacks. It can be restored without that."),
}
ANSWERS: Final[Answers] = {
    "backup": {
        "file": ("text", "The backup."),
        "bytes": ("integer", "Its size."),
        "counts": ("map of integer", "Number of things in it, by kind."),
        "key": ("text", "File of the key that opens its secrets; empty with a passphrase."),
        "key_made": ("flag", "The key file is new."),
        "warnings": ("list of text", "What could not be read, and is not in the backup."),
    },
    "backup --verify": _VERIFIED,
    "restore": _RESTORED,
    "restore --dry-run": _VERIFIED,
    "master-key": {
        "file": ("text", "File of the master keys."),
        "current": ("text", "Id of the key that new secrets are wrapped by."),
        "rewrapped": ("integer", "Secrets that were wrapped anew."),
        "refused": ("integer", "Secrets that cannot be read."),
        "retired": ("list of text", "Ids of keys that were removed."),
        "keys": ("list of MasterKey", "All master keys."),
    },
}
TYPES: Final[Types] = {
    "BackupHead": {
        "created": ("time", "When the backup was made."),
        "weft": ("text", "Version of the platform that made it."),
    },
    "MasterKey": {
        "id": ("text", "Id of the master key."),
        "secrets": ("integer", "Number of secrets that it opens."),
    },
}

_KEY_HELP = "File of the key that opens the backup's secrets; by default the backup's name with .key."
_ASK_HELP = "Ask for a passphrase instead of a key file; WEFT_BACKUP_PASSPHRASE."


def _read_passphrase(wanted: bool, *, twice: bool) -> str | None:
    """The passphrase, from the environment or typed."""
    from weft._errors import InvalidRequest

    if not wanted:
        return None
    given = os.environ.get("WEFT_BACKUP_PASSPHRASE")
    if given:
        return given
    if not sys.stdin.isatty():
        raise InvalidRequest("there is no terminal to ask for a passphrase; set WEFT_BACKUP_PASSPHRASE")
    typed: str = click.prompt("passphrase", hide_input=True, confirmation_prompt=twice, err=True)
    return typed


def _contents(counts: dict[str, int]) -> str:
    from weft._cli.text import size

    kinds = ("job", "event", "record", "secret", "line", "point", "file")
    numbers = [(counts.get(f"{kind}s", 0), kind) for kind in kinds]
    files = f" ({size(counts.get('file bytes', 0))})"
    return ", ".join(f"{number:,} {kind}{'' if number == 1 else 's'}" for number, kind in numbers) + files


def _with_times(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with the time of the backup as text."""
    import datetime as dt

    from weft._times import time_text

    head = answer["head"]
    made = time_text(dt.datetime.fromtimestamp(head.get("created", 0) / 1000, dt.UTC))
    return {**answer, "head": {"created": made, "weft": str(head.get("weft", "?"))}}


def _made(head: dict[str, Any]) -> str:
    return f"{head['created'][:19].replace('T', ' ')} UTC by weft {head['weft']}"


@command("backup")
@click.argument("target", metavar="FILE|FOLDER")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--key", metavar="FILE", help=_KEY_HELP)
@click.option("--passphrase", is_flag=True, help=_ASK_HELP)
@click.option("--verify", is_flag=True, help="Read the backup FILE instead, every byte, and say whether it is whole.")
def backup_command(call: Call, target: str, home: str | None, key: str | None, passphrase: bool, verify: bool) -> None:
    """Write all of a platform into one file, while it runs.

    Jobs, histories, records, metrics, logs and files lie in it as they are. Secrets are sealed under a key of the
    backup's own: keep that elsewhere.
    """
    from weft._cli.homes import chosen_home
    from weft._cli.local import platform, translated
    from weft._cli.notices import note, warn
    from weft._cli.output import details, emit
    from weft._cli.progress import transfer_bar
    from weft._cli.text import size

    if verify:
        _verify(call, target, key, _read_passphrase(passphrase, twice=False))
        return
    typed = _read_passphrase(passphrase, twice=True)
    with translated(), transfer_bar("backup", shown=call.for_people) as on_bytes:
        answer: dict[str, Any] = platform().backup(
            target, chosen_home(call, home), key=key, passphrase=typed, report=warn, progress=on_bytes
        )
    if answer["key_made"]:
        note(f"{answer['key']} opens the secrets in this backup, and nothing else does: keep it in another place")
    opens = answer["key"] or "the passphrase"
    emit(
        call,
        answer,
        people=lambda _wide: details(
            [
                ("backup", answer["file"]),
                ("size", size(answer["bytes"])),
                ("holds", _contents(answer["counts"])),
                ("plain", "everything but the secrets (file mode 600)"),
                ("secrets", f"need {opens}"),
            ]
        ),
        names=[answer["file"]],
    )


def _verify(call: Call, source: str, key: str | None, passphrase: str | None) -> None:
    from weft._cli.local import platform, translated
    from weft._cli.notices import warn
    from weft._cli.output import details, emit
    from weft._cli.progress import transfer_bar

    with translated(), transfer_bar("verify", shown=call.for_people) as on_bytes:
        answer = _with_times(platform().verify_backup(source, key=key, passphrase=passphrase, progress=on_bytes))
    for warning in answer["warnings"]:
        warn(warning)
    whole = "incomplete" if answer["warnings"] else "whole"
    whole += "; as its key wrote it" if answer["authentic"] else " (its key is not here: secrets not opened)"
    emit(
        call,
        answer,
        people=lambda _wide: details(
            [
                ("backup", answer["file"]),
                ("state", whole),
                ("made", _made(answer["head"])),
                ("holds", _contents(answer["counts"])),
            ]
        ),
        names=[answer["file"]],
    )


@command("restore")
@click.argument("source", metavar="FILE")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--key", metavar="FILE", help=_KEY_HELP)
@click.option("--passphrase", is_flag=True, help=_ASK_HELP)
@click.option("--halted", is_flag=True, help="Halt what ran or waited: nothing trains until it is resumed.")
@click.option("--replace", is_flag=True, help="Remove what the platform has, every job and key, and restore over it.")
@click.option("--dry-run", is_flag=True, help="Check the backup and show its content; change nothing.")
def restore_command(
    call: Call,
    source: str,
    home: str | None,
    key: str | None,
    passphrase: bool,
    halted: bool,
    replace: bool,
    dry_run: bool,
) -> None:
    """Bring a platform back from a backup, on an empty one.

    What ran when the backup was made is queued again and goes on from its checkpoints with the next `weft up`. For a
    copy beside a platform that still runs, say --halted.
    """
    from weft._cli.homes import chosen_home, command_in
    from weft._cli.local import platform, translated
    from weft._cli.notices import note, warn
    from weft._cli.output import details, emit
    from weft._cli.progress import transfer_bar

    typed = _read_passphrase(passphrase, twice=False)
    if dry_run:
        _verify(call, source, key, typed)
        return
    place = chosen_home(call, home)
    with translated(), transfer_bar("restore", shown=call.for_people) as on_bytes:
        restored = platform().restore(
            source, place, key=key, passphrase=typed, halted=halted, replace=replace, progress=on_bytes
        )
    answer = _with_times(restored)
    for warning in answer["warnings"]:
        warn(warning)
    if answer["again"]:
        many = len(answer["again"]) > 1
        note(
            f"{len(answer['again'])} job{'s wait' if many else ' waits'} and will run after `{command_in('up', place)}`"
        )
    if answer["halted"]:
        note(f"{len(answer['halted'])} halted; `weft resume` continues them")
    emit(
        call,
        answer,
        people=lambda _wide: details(
            [
                ("folder", answer["home"]),
                ("from", _made(answer["head"])),
                ("holds", _contents(answer["counts"])),
                ("next", command_in("up", place)),
            ]
        ),
        names=[answer["home"]],
    )


@command("master-key")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--rotate", is_flag=True, help="Make a new master key and wrap every secret by it; the old one stays.")
@click.option("--retire", is_flag=True, help="Forget old master keys: no secret needs them any more.")
def master_key_command(call: Call, home: str | None, rotate: bool, retire: bool) -> None:
    """Show or change the master key, which opens the platform's secrets.

    The platform may run meanwhile. Copy the file again after each change.
    """
    from weft._cli.homes import chosen_home
    from weft._cli.local import platform, translated
    from weft._cli.notices import warn
    from weft._cli.output import details, emit

    with translated():
        answer: dict[str, Any] = platform().master_key(chosen_home(call, home), rotate=rotate, retire=retire)
    if answer["refused"]:
        warn(f"{answer['refused']} secrets cannot be read, and stay as they are; write them again")
    key_lines = [f"{key['id']} wraps {key['secrets']:,}" for key in answer["keys"]]
    done = [
        f"{answer['rewrapped']:,} secrets wrapped anew" if rotate else "",
        f"{', '.join(answer['retired']) or 'no key'} retired" if retire else "",
    ]
    emit(
        call,
        answer,
        people=lambda _wide: details(
            [
                ("file", answer["file"]),
                ("current", answer["current"]),
                ("keys", "; ".join(key_lines)),
                ("done", "; ".join(filter(None, done))),
            ]
        ),
        names=[key["id"] for key in answer["keys"]],
    )

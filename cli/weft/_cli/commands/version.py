"""version, completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command
from weft._version import SDK_VERSION

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "version": {
        "client": ("text", "Version of this command."),
        "platform": ("text or null", "Version of the platform; null if it does not answer."),
        "url": ("text or null", "Address of the platform; null if none is known."),
    },
    "completion": {
        "shell": ("text", "bash, zsh or fish."),
        "script": ("text", "The script."),
    },
}


@command("version")
def version_command(call: Call) -> None:
    """Show the versions of this command and of the platform."""
    from weft._cli.output import details, emit
    from weft._errors import WeftError

    document: dict[str, object] = {"client": SDK_VERSION, "platform": None, "url": None}
    why = ""
    try:
        document["url"] = call.client.url
        document["platform"] = call.client.version()["version"]
    except WeftError as unknown:  # the command's own version is an answer without a platform, too
        why = unknown.message
    emit(
        call,
        document,
        names=[SDK_VERSION],
        people=lambda _wide: details(
            [
                ("weft", document["client"]),
                ("platform", document["platform"] or f"unknown: {why}"),
                ("address", document["url"]),
            ]
        ),
    )


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(call: Call, shell: str) -> None:
    """Print a script that completes commands in your shell.

    \b
    For bash:
    weft completion bash > ~/.local/share/bash-completion/completions/weft
    """  # noqa: D301 - \b is click's: the lines after it stay as they are
    from click.shell_completion import get_completion_class

    from weft._cli.main import weft
    from weft._cli.output import emit

    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover - click knows the three
        raise click.UsageError(f"there is no completion for {shell}")
    script = kind(weft, {}, "weft", "_WEFT_COMPLETE").source()
    emit(call, {"shell": shell, "script": script}, people=lambda _wide: script, names=[script])

"""Notices on stderr: stdout carries the answer only."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import click

from weft._cli.call import Call
from weft._cli.failure import INTERRUPTED, MACHINE
from weft._cli.text import fitted, plain
from weft._errors import WeftError


def note(text: str) -> None:
    """Shows a notice. Where programs read stderr it is JSON or YAML as well."""
    _notice("note", text, shown=text, dim=True)


def reconnecting(_why: WeftError) -> None:
    """The notice for each cut of a followed stream."""
    note("the connection was lost; reconnecting")


def warn(text: str) -> None:
    """As `note`, for what may be wrong."""
    _notice("warning", text, shown=f"warning: {text}", fg="yellow")


def _notice(kind: str, text: str, *, shown: str, **style: Any) -> None:
    context = click.get_current_context(silent=True)  # none in a thread
    call = context.find_object(Call) if context is not None else None
    if call is not None and call.output in MACHINE:
        from weft._cli.output import json_text, yaml_text

        document = {kind: text}
        click.echo(json_text(document) if call.output == "json" else f"---\n{yaml_text(document)}", err=True)
    else:
        click.secho(fitted(plain(shown), sys.stderr), err=True, **style)


@contextmanager
def following(again: str) -> Generator[None]:
    """Ctrl-C ends the following and not the job: says so, and which command takes it up again."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("", err=True)
        note(f"no longer following; the job keeps running. `{again}` follows it again")
        raise click.exceptions.Exit(INTERRUPTED) from None

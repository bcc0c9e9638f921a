"""Notices on stderr: stdout carries the answer only."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from weft._cli.failure import INTERRUPTED
from weft._cli.text import fitted, plain
from weft._errors import WeftError


def note(text: str) -> None:
    click.secho(fitted(plain(text), sys.stderr), dim=True, err=True)


def reconnecting(_why: WeftError) -> None:
    """The notice for each cut of a followed stream."""
    note("the connection was lost; reconnecting")


def warn(text: str) -> None:
    click.secho(fitted(plain(f"warning: {text}"), sys.stderr), fg="yellow", err=True)


@contextmanager
def following(again: str) -> Generator[None]:
    """Ctrl-C ends the following and not the job: says so, and which command takes it up again."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("", err=True)
        note(f"no longer following; the job keeps running. `{again}` follows it again")
        raise click.exceptions.Exit(INTERRUPTED) from None

"""Asks before something is lost that cannot be got back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(what: str, losses: Sequence[str], *, yes: bool) -> None:
    """Asks on a terminal whether to go on; returns if so.

    ``what``: the action, for example "kill 2 jobs". ``losses``: a line for each thing that would be lost. Without a
    terminal, unless ``yes``, it is a usage error that names ``--yes``. Aborts where the answer is no.
    """
    if yes:
        return
    from weft._cli.text import plain

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        shown = f" ({'; '.join(plain(loss) for loss in losses)})" if losses else ""
        raise click.UsageError(f"to {what}{shown} give --yes: there is no terminal to ask on")
    click.echo(f"This would {what}:", err=True)
    for loss in losses:
        click.echo(f"  {plain(loss)}", err=True)
    click.confirm("Go on?", abort=True, err=True)

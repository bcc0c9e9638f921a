"""Asks before something is lost that cannot be got back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from weft._cli.call import Stop
from weft._cli.failure import INTERRUPTED

YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(what: str, losses: Sequence[str], *, yes: bool) -> None:
    """Asks on a terminal whether to go on; returns if so.

    ``what``: the action, for example "kill 2 jobs". ``losses``: a line for each thing that would be lost. Without a
    terminal, unless ``yes``, it is a usage error that names ``--yes``. Raises Stop where the answer is no.
    """
    if yes:
        return
    from weft._cli.notices import note
    from weft._cli.text import fitted, plain

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        shown = f" ({'; '.join(plain(loss) for loss in losses)})" if losses else ""
        raise click.UsageError(f"to {what}{shown} give --yes: there is no terminal to ask on")
    click.echo(fitted(f"This would {what}:", sys.stderr), err=True)
    for loss in losses:
        click.echo(fitted(f"  {plain(loss)}", sys.stderr, indent="    "), err=True)
    try:
        if click.confirm("Go on?", err=True):
            return
    except click.Abort:  # Ctrl-C, or the end of the input: the cursor stands behind the question
        click.echo(err=True)
    note("nothing was changed")
    raise Stop(INTERRUPTED)

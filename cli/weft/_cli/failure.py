"""How a failure is shown: one red line that says what and what to do, on stderr, and the exit code of its kind."""

from __future__ import annotations

import traceback

import click

from weft._cli.text import plain
from weft._errors import WeftError

INTERRUPTED = 130


def show(failure: BaseException, *, debug: bool) -> int:
    """Print a failure; its exit code."""
    if debug and not isinstance(failure, click.exceptions.Exit):
        click.echo("".join(traceback.format_exception(failure)), err=True)
    match failure:
        case click.exceptions.Exit():
            return failure.exit_code
        case click.exceptions.Abort() | KeyboardInterrupt():
            click.echo("", err=True)
            return INTERRUPTED
        case click.UsageError():
            where = failure.ctx.command_path if failure.ctx else "weft"
            line(failure.format_message(), then=f"`{where} --help` says how it is used.")
            return 2
        case click.ClickException():
            line(failure.format_message())
            return failure.exit_code
        case WeftError():
            return weft_error(failure)
        case OSError():
            line(f"{failure.filename or 'this machine'}: {failure.strerror or failure}")
            return 1
        case _:
            line(
                f"this is a fault of weft itself: {type(failure).__name__}: {failure}", then="--debug shows the trace."
            )
            return 1


def weft_error(failure: WeftError) -> int:
    """Print an error of the SDK or the platform."""
    if len(failure.errors) > 1:
        line(f"{len(failure.errors)} things are wrong:")
        for error in failure.errors:
            hint = f" ({error.hint})" if error.hint else ""
            click.echo(plain(f"  {error.path or 'spec'}: {error.message}{hint}"), err=True)
    else:
        line(failure.message)
    if failure.trace_id and failure.code == "internal":
        click.echo(f"  the platform's logs have more under {plain(failure.trace_id)}", err=True)
    return failure.exit_code


def line(text: str, *, then: str = "") -> None:
    """One red line on stderr, and what to do under it."""
    click.secho(plain(f"weft: {text}"), fg="red", err=True)
    if then:
        click.echo(plain(f"  {then}"), err=True)

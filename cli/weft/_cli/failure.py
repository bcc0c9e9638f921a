"""How a failure is shown: one red line that says what and what to do, on stderr, and the exit code of its kind."""

from __future__ import annotations

import sys
import traceback

import click

from weft._cli.text import fitted, plain
from weft._errors import Unauthenticated, WeftError

INTERRUPTED = 130
_KEY = "`weft login URL` signs in with another key; `weft up` writes this machine's anew."


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
        case click.exceptions.NoArgsIsHelpError():
            click.echo(failure.format_message())  # help was what was missing, so that is no error to read
            return 2
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
            _say(f"  {error.path or 'spec'}: {error.message}{hint}")
    else:
        unknown_key = isinstance(failure, Unauthenticated) and "`weft" not in failure.message
        line(failure.message, then=_KEY if unknown_key else "")
    if failure.trace_id and failure.code == "internal":
        _say(f"  the platform's logs have more under {failure.trace_id}")
    return failure.exit_code


def line(text: str, *, then: str = "") -> None:
    """One red line on stderr, and what to do under it."""
    click.secho(fitted(plain(f"weft: {text}"), sys.stderr), fg="red", err=True)
    if then:
        _say(f"  {then}")


def _say(text: str) -> None:
    click.echo(fitted(plain(text), sys.stderr, indent="    "), err=True)

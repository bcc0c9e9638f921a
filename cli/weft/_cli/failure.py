"""How a failure is shown: one red line that says what and what to do, on stderr, and the exit code of its kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from weft._cli.text import fitted, plain
from weft._errors import Unauthenticated, WeftError

INTERRUPTED = 130
MACHINE = frozenset({"json", "yaml"})
"""The forms of output that programs read."""
_OPTIONS_ELSEWHERE = {"--detach": "--no-follow", "--background": "--no-follow"}
"""Options of docker, sbatch and others -> the option of Weft that does the same."""
_KEY = "`weft login URL` signs in with another key; on the platform's machine `weft up --home DIR` writes its key anew."


def show(failure: BaseException, *, debug: bool, form: str = "table") -> int:
    """Print a failure; its exit code. ``form``: with json and yaml, programs read stderr as well."""
    if debug and not isinstance(failure, click.exceptions.Exit):
        import traceback

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
            hint = f"`{where} --help` says how it is used."
            return _shown("usage", _usage_text(failure), exit_code=2, form=form, then=hint)
        case click.ClickException():
            return _shown("error", failure.format_message(), exit_code=failure.exit_code, form=form)
        case WeftError():
            return weft_error(failure, form=form)
        case OSError():
            text = f"{failure.filename or 'this machine'}: {failure.strerror or failure}"
            return _shown("machine", text, exit_code=1, form=form)
        case _:
            text = f"this is a fault of weft itself: {type(failure).__name__}: {failure}"
            return _shown("fault", text, exit_code=1, form=form, then="--debug shows the trace.")


def _usage_text(failure: click.UsageError) -> str:
    """One line; an option that does not exist suggests the one whose word looks alike, not its dashes, or means it."""
    if isinstance(failure, click.NoSuchOption) and (same := _same_option(failure)):
        return f"{failure.message} Did you mean '{same}'?"
    if isinstance(failure, click.NoSuchOption) and failure.possibilities:
        import difflib

        words = {option.lstrip("-"): option for option in failure.possibilities}
        alike = difflib.get_close_matches(failure.option_name.lstrip("-"), words, n=1, cutoff=0.6)
        failure = click.NoSuchOption(
            failure.option_name, possibilities=[words[word] for word in alike], ctx=failure.ctx
        )
    return failure.format_message().replace("\n\t", " ")


def _same_option(failure: click.NoSuchOption) -> str:
    """The option of this command that other programs call by the given name; empty: there is none."""
    option = _OPTIONS_ELSEWHERE.get(failure.option_name, "")
    params = failure.ctx.command.params if failure.ctx else ()
    return option if any(option in {*param.opts, *param.secondary_opts} for param in params) else ""


def weft_error(failure: WeftError, *, form: str = "table") -> int:
    """Print an error of the SDK or the platform; its exit code."""
    if form in MACHINE:
        fields = [
            {"pointer": e.pointer, "message": e.message, "hint": e.hint, "place": e.place} for e in failure.errors
        ]
        document = {
            "code": failure.code,
            "message": failure.message,
            "errors": fields,
            "exit_code": failure.exit_code,
            "retryable": failure.retryable,
            "trace_id": failure.trace_id,
        }
        _document(document, form)
        return failure.exit_code
    if len(failure.errors) > 1:
        line(f"{len(failure.errors)} things are wrong:")
        for error in failure.errors:
            hint = f" ({error.hint})" if error.hint else ""
            _say(f"  {error.where or 'spec'}: {error.message}{hint}")
    else:
        unknown_key = isinstance(failure, Unauthenticated) and "`weft" not in failure.message
        line(failure.message, then=_KEY if unknown_key else "")
    if failure.trace_id and failure.code == "internal":
        _say(f"  the platform's logs have more under {failure.trace_id}")
    return failure.exit_code


def _shown(code: str, message: str, *, exit_code: int, form: str, then: str = "") -> int:
    if form in MACHINE:
        document = {
            "code": code,
            "message": message,
            "errors": [],
            "exit_code": exit_code,
            "retryable": False,
            "trace_id": "",
        }
        _document(document, form)
    else:
        line(message, then=then)
    return exit_code


def _document(error: Mapping[str, object], form: str) -> None:
    """One JSON object on one line, or one YAML document, on stderr."""
    from weft._cli.output import json_text, yaml_text

    text = (
        json_text({"error": dict(error)})
        if form == "json"
        else f"---\n{yaml_text({'error': dict(error)})}".rstrip("\n")
    )
    click.echo(text, err=True)


def line(text: str, *, then: str = "") -> None:
    """One red line on stderr, and what to do under it."""
    click.secho(fitted(plain(f"weft: {text}"), sys.stderr), fg="red", err=True)
    if then:
        _say(f"  {then}")


def _say(text: str) -> None:
    click.echo(fitted(plain(text), sys.stderr, indent="    "), err=True)

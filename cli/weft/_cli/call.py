"""What every command knows of how it was called: profile, output form, debugging; and the options that say so.

Imports click alone: this is on the way of `weft --help`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from weft._client import Client
    from weft._errors import WeftError

F = TypeVar("F", bound=Callable[..., Any])

# A request that is tried again for longer than this is explained, in seconds.
_SILENCE_S: Final = 1.0
FORMS: Final = ("table", "wide", "json", "yaml", "name")


@dataclass(slots=True)
class Call:
    """One run of `weft`."""

    profile: str | None = None
    output: str = "table"
    debug: bool = field(default_factory=lambda: bool(os.environ.get("WEFT_DEBUG")))
    _client: Client | None = None
    _waits_since: float = 0.0
    _said_why: bool = False

    @property
    def for_people(self) -> bool:
        """Whether stdout is read by a person; otherwise it carries one document and nothing else."""
        return self.output in {"table", "wide"}

    @property
    def client(self) -> Client:
        """The client of the profile; created on first use."""
        if self._client is None:
            from weft._client import Client

            self._client = Client(profile=self.profile, on_wait=self._wait)
            click.get_current_context().find_root().call_on_close(self._client.close)
        return self._client

    def _wait(self, why: WeftError) -> None:
        """Say, once, why nothing happens for a while."""
        import time

        from weft._cli.notices import note

        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if now - self._waits_since > _SILENCE_S and not self._said_why:
            self._said_why = True
            note(f"{why}; trying again")


pass_call = click.make_pass_decorator(Call, ensure=True)


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(Call), name, value)

    return store


def _json(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given:
        ctx.ensure_object(Call).output = "json"


def _complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from weft._cli.completion import complete_profile

    return complete_profile(ctx, param, incomplete)


def shared_options(command: F) -> F:
    """--profile and --debug: on `weft` itself and on every command, before or after its name."""
    profile = click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        callback=_set("profile"),
        shell_complete=_complete_profile,
        help="Use this platform (`weft profile`).",
    )
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set("debug"),
        help="Show the trace of an error.",
    )
    return profile(debug(command))


def output_option(command: F, forms: tuple[str, ...] = FORMS) -> F:
    """-o, and FfDL's --json."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        expose_value=False,
        is_eager=True,
        callback=_set("output"),
        help="How to print; json: nothing else on stdout.",
    )
    json = click.option("--json", is_flag=True, expose_value=False, hidden=True, callback=_json)
    return output(json(command))


def command(
    name: str, *, add_help_option: bool = True, forms: tuple[str, ...] = FORMS
) -> Callable[[Callable[..., None]], click.Command]:
    """A command with the shared options and -o; its function is given the Call first. ``forms``: what -o takes."""

    def make(function: Callable[..., None]) -> click.Command:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        dressed = output_option(shared_options(pass_call(function)), forms)
        return click.command(name, context_settings=settings, add_help_option=add_help_option)(dressed)

    return make


class Stop(click.exceptions.Exit):
    """Ends a command with an exit code; everything has been printed already."""

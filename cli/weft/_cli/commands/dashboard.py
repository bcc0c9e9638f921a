"""dashboard: the platform in a browser, signed in by a one-time code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "dashboard": {
        "url": ("text", "Address that signs a browser in, once."),
        "expires": ("time", "When the address stops working."),
        "opened": ("flag", "A browser was opened."),
    },
}


@command("dashboard")
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
def dashboard_command(call: Call, no_open: bool) -> None:
    """Open the dashboard in a browser, signed in.

    The address has a code that signs in once, within a minute. The code is behind #, so no server and no proxy sees it.
    """
    import webbrowser

    from weft._cli.output import emit

    made = call.client.session_code()
    address = f"{call.client.url.rstrip('/')}/ui/signin#code={made['code']}"
    opened = not no_open and webbrowser.open(address)
    document = {"url": address, "expires": made["expires"], "opened": opened}
    where = "opened in your browser" if opened else "open within a minute"
    emit(call, document, names=[address], people=lambda _wide: f"{where}: {address}")

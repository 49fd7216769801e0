"""`homeai top`: the status page in a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()

DEFAULT_URL = "http://127.0.0.1:8700"


@app.command()
def top(
    url: Annotated[str, typer.Option("--url", envvar="HOMEAI_URL", help="The running daemon.")] = DEFAULT_URL,
    key: Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="API key, if it wants one.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print how it is now, and end.")] = False,
) -> None:
    """What runs, who waits and why, live; q quits."""
    from homeai import top as screen
    from homeai.console import DaemonClient, plain_console

    console, daemon = plain_console(), DaemonClient(url, key)
    if once or not console.is_terminal:
        screen.show_once(daemon, console)
    else:
        screen.show(daemon, console)

"""`homeai load`, `unload`, `reload`, `pin`, `yield`, `pause`, `resume`: telling the running daemon what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homeai.errors import HomeAIError

if TYPE_CHECKING:
    from homeai.console import DaemonClient
    from homeai.status import Status

app = typer.Typer()

UrlOption = Annotated[str, typer.Option("--url", envvar="HOMEAI_URL", help="The running daemon.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="An admin key, from afar.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is so.")]
ClassArgument = Annotated[str, typer.Argument(metavar="CLASS", help="Such as background.")]

DEFAULT_URL = "http://127.0.0.1:8700"
POLL_S = 0.2


@app.command()
def load(url: UrlOption = DEFAULT_URL, key: KeyOption = None, wait: WaitOption = True) -> None:
    """Load the model, also after `unload` and `yield`."""
    daemon = _daemon(url, key)
    daemon.control("load")
    _follow(daemon, lambda status: status.state == "resident", wait)


@app.command()
def unload(url: UrlOption = DEFAULT_URL, key: KeyOption = None, wait: WaitOption = True) -> None:
    """Free the model's memory when what runs has ended; the next request loads it again."""
    daemon = _daemon(url, key)
    daemon.control("unload")
    _follow(daemon, lambda status: status.state == "sleeping", wait)


@app.command()
def reload(
    model: Annotated[
        str | None, typer.Argument(help="A file, a folder or a pulled model's name; without it, the same anew.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    wait: WaitOption = True,
) -> None:
    """Load another model, or the same anew; who waits goes on waiting."""
    daemon = _daemon(url, key)
    num_loads = daemon.status().residency.num_loads
    if model is not None and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())  # the daemon has another working folder
    daemon.control("reload", **({} if model is None else {"model": model}))
    _follow(daemon, lambda status: status.state == "resident" and status.residency.num_loads > num_loads, wait)


@app.command()
def pin(url: UrlOption = DEFAULT_URL, key: KeyOption = None, wait: WaitOption = True) -> None:
    """Load the model and keep it loaded, whatever residency.policy says."""
    daemon = _daemon(url, key)
    daemon.control("pin")
    _follow(daemon, lambda status: status.state == "resident", wait)


@app.command("yield")
def give_device_away(
    seconds: Annotated[float | None, typer.Option("--for", min=0.1, help="Come back by itself after so long.")] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    wait: WaitOption = True,
) -> None:
    """Make room on the GPU for another program, now; `homeai load` takes it back."""
    daemon = _daemon(url, key)
    daemon.control("yield", **({} if seconds is None else {"seconds": seconds}))
    _follow(daemon, lambda status: status.state == "yielded", wait)


@app.command()
def pause(fairness_class: ClassArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Let requests of a class wait; what runs goes on."""
    _daemon(url, key).control("pause", **{"class": fairness_class})
    typer.echo(f"{fairness_class} waits until `homeai resume {fairness_class}`")


@app.command()
def resume(fairness_class: ClassArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Let requests of a class go on."""
    _daemon(url, key).control("resume", **{"class": fairness_class})
    typer.echo(f"{fairness_class} goes on")


def _daemon(url: str, key: str | None) -> DaemonClient:
    from homeai.console import DaemonClient

    return DaemonClient(url, key)


def _follow(daemon: DaemonClient, is_done: Callable[[Status], bool], wait: bool) -> None:
    """Until it is so. Raises `HomeAIError` when it will not be."""
    said = ""
    while wait and not is_done(status := daemon.status()):
        if status.state in ("failed", "stopped"):
            raise HomeAIError(f"the model is {status.state}: {status.failure or 'the log says why'}")
        words = (
            status.state if status.load is None else f"{status.state}: {status.load.stage} {status.load.fraction:.0%}"
        )
        if words != said:
            typer.echo(words, err=True)
        said = words
        time.sleep(POLL_S)
    typer.echo(daemon.status().state)

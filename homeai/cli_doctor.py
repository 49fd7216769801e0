"""`homeai doctor`: what is wrong, and what to change. Exit code 0: healthy, 1: findings, 2: could not examine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from homeai.config import Config

app = typer.Typer()

DEFAULT_URL = "http://127.0.0.1:8700"
INSTALLED = Path("/etc/homeai/config.yaml"), Path("~/.config/homeai/config.yaml")
WIDTH = 120  # in a file or a pipe


@app.command()
def doctor(
    url: Annotated[str, typer.Option("--url", envvar="HOMEAI_URL", help="The running daemon.")] = DEFAULT_URL,
    key: Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="An admin key, from afar.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.01, help="How far back in the ledger; else since the start, a day at most.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings of a daemon that does not answer.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where models, ledger and keys live.")] = None,
) -> None:
    """Say what is wrong with the daemon and its machine, how that is known, and what to change."""
    import sys

    from rich.console import Console

    from homeai.evaluation.doctor import report
    from homeai.evaluation.doctor.checks import examine
    from homeai.evaluation.doctor.gather import Wish, gather

    facts = gather(Wish(url, key, hours, lambda: _settings(config, data_dir)))
    findings = examine(facts)
    if as_json:
        print(report.as_json(facts, findings))
    else:
        width = None if sys.stdout.isatty() else WIDTH
        Console(markup=False, emoji=False, highlight=False, width=width).print(report.render(facts, findings))
    raise typer.Exit(report.exit_code(facts, findings))


def _settings(path: Path | None, data_dir: Path | None) -> Config:
    """As told, else those of an installed service. Raises `ConfigError`."""
    from homeai import config

    if path is None:
        path = next((each.expanduser() for each in INSTALLED if each.expanduser().is_file()), None)
        if path == INSTALLED[0] and data_dir is None:
            data_dir = Path("/var/lib/homeai")
    overrides = [] if data_dir is None else [("data_dir", f'"{data_dir}"')]
    return config.load(path, env=os.environ, overrides=overrides)

"""`homeai pull` and `homeai models`: model files for people at a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from homeai.errors import HomeAIError

if TYPE_CHECKING:
    from pathlib import Path

    from homeai.config import Config
    from homeai.hub import RemoteModel
    from homeai.models import Store, StoredModel

GB = 1e9
INTERRUPTED = 130


def pull(config: Config, name: str) -> int:
    """Fetch a model; the exit code."""
    from homeai import hub
    from homeai.models import Reference, Store

    reference = Reference.parse(name)
    if reference is None:
        raise HomeAIError(f"{name!r} names no model on a hub: owner/repo or owner/repo:quant is needed")
    try:
        model = hub.look_up(reference)
        stored = _with_bar(model, Store(config.data_dir))
    except KeyboardInterrupt:
        typer.echo("homeai: interrupted; the same command goes on from here", err=True)
        return INTERRUPTED
    typer.echo(f"{stored.name} is complete and checked; serve it with `homeai serve --model {stored.name}`")
    return 0


def _with_bar(model: RemoteModel, store: Store) -> StoredModel:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from homeai import hub

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=console, transient=True) as bar:
        task = bar.add_task(model.files.stem.rpartition("/")[2], total=model.size_bytes)
        return hub.Pull(model, store).run(lambda num_bytes: bar.update(task, completed=num_bytes))


def show(config: Config, served: str | None) -> None:
    """Print what is there. `served`: the file name of the running daemon's model."""
    from rich.table import Table

    from homeai.console import plain_console
    from homeai.models import Store

    store = Store(config.data_dir)
    table = Table("model", "size", "file", "", box=None, header_style="dim")
    chosen = _chosen(config)
    for model in store.list():
        table.add_row(model.name, f"{model.size_bytes / GB:.2f} GB", str(model.path), _use(model, chosen, served) or "")
    for repo_id, num_bytes in store.unfinished():
        table.add_row(repo_id, f"{num_bytes / GB:.2f} GB", "", "unfinished: pull it again to go on")
    plain_console().print(table if table.row_count else f"no models in {store.root}; fetch one with `homeai pull`")


def remove(config: Config, name: str, *, served: str | None, force: bool) -> None:
    """Delete a model, or what came of an unfinished one. Raises `HomeAIError` when it is in use."""
    from homeai.models import Reference, Store

    store = Store(config.data_dir)
    model = store.find(name)
    if model is not None:
        use = _use(model, _chosen(config), served)
        if use and not force:
            raise HomeAIError(f"{model.name} is in use ({use}): choose another model first, or add --force")
        size_bytes = model.size_bytes
        store.remove(model)
        typer.echo(f"{model.name} is deleted, {size_bytes / GB:.2f} GB are free again")
        return
    reference = Reference.parse(name)
    if reference is None or not store.remove_unfinished(reference.repo_id):
        raise HomeAIError(f"there is no model {name!r} in {store.root}; `homeai models list` shows what there is")
    typer.echo(f"the unfinished download of {reference.repo_id} is deleted")


def _chosen(config: Config) -> Path | None:
    """The file that would be served with these settings, if it is there."""
    from homeai import default_model
    from homeai.errors import ConfigError
    from homeai.models import chosen

    try:
        return chosen(config) or config.data_dir / "models" / default_model.FILE_NAME
    except ConfigError:
        return None


def _use(model: StoredModel, chosen: Path | None, served: str | None) -> str | None:
    if served == model.path.name:
        return "served now"
    is_chosen = chosen is not None and chosen.absolute() in [path.absolute() for path in (model.path, *model.paths)]
    return "chosen by model.path" if is_chosen else None


def serving(url: str, key: str | None) -> str | None:
    """The file name of the model that the daemon at `url` has; None where none answers."""
    from homeai.console import DaemonClient

    try:
        return DaemonClient(url, key).status().model.file
    except HomeAIError:
        return None

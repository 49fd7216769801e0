"""The `homeai` command. Each subcommand imports what it needs, when it needs it: `--help` stays fast."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homeai import __version__, cli_batches, cli_bench, cli_control, cli_doctor, cli_plan, cli_top
from homeai.errors import ConfigError, HomeAIError

if TYPE_CHECKING:
    from homeai.config import Config
    from homeai.keys import KeyStore

app = typer.Typer(
    help="One resident language model for a whole home.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug's traceback goes to a log, and shows nobody's keys
)
config_app = typer.Typer(help="Settings.", no_args_is_help=True)
keys_app = typer.Typer(help="API keys, one per device or person.", no_args_is_help=True)
models_app = typer.Typer(help="Model files on this machine.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")
app.add_typer(models_app, name="models")
app.add_typer(cli_batches.app, name="batch")
app.add_typer(cli_control.app)
app.add_typer(cli_top.app)
app.add_typer(cli_doctor.app)
app.add_typer(cli_plan.app)
app.add_typer(cli_bench.app, name="bench")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file, as config.example.yaml.")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where models, ledger and keys live.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting.")]
UrlOption = Annotated[str, typer.Option("--url", envvar="HOMEAI_URL", help="The running daemon.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="API key, if it wants one.")]

DEFAULT_URL = "http://127.0.0.1:8700"


def main() -> None:
    """Run, and turn the errors that people make into one line and an exit code."""
    try:
        app()
    except ConfigError as error:
        sys.exit(_complain(str(error), 2))
    except HomeAIError as error:
        sys.exit(_complain(str(error), 1))


def _complain(message: str, exit_code: int) -> int:
    print(f"homeai: {message}", file=sys.stderr)
    return exit_code


def _load(path: Path | None, data_dir: Path | None, settings: list[str] | None, **flags: object) -> Config:
    from homeai import config

    flags["data_dir"] = data_dir
    overrides = [(key, _as_yaml(value)) for key, value in flags.items() if value is not None]
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: needs the form section.key=value")
        overrides.append((key, value))
    return config.load(path, env=os.environ, overrides=overrides)


def _as_yaml(value: object) -> str:
    """A flag has its type already: the host `::` is text, and so is a model file named 7."""
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)


# ---- serve ---------------------------------------------------------------------------------------------


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file or a folder of safetensors; else the small default.")
    ] = None,
    data_dir: DataDirOption = None,
    settings: SetOption = None,
) -> None:
    """Run the daemon."""
    from homeai.logs import setup
    from homeai.models import chosen
    from homeai.server import launch

    flags: dict[str, object] = {"server.host": host, "server.port": port, "model.path": model}
    loaded = _load(config, data_dir, settings, **flags)
    setup(loaded.server.log_level, loaded.server.log_format)
    raise typer.Exit(launch.serve(loaded, chosen(loaded) or _default_model(loaded)))


def _default_model(config: Config) -> Path:
    """Put together on first use, with a progress bar for people."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from homeai import default_model

    columns = TextColumn("preparing the default model"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        return default_model.ensure(config.data_dir, lambda fraction: bar.update(task, completed=fraction))


# ---- looking and talking -------------------------------------------------------------------------------


@app.command()
def status(url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """What is resident, who is queued and why."""
    from homeai import console

    console.plain_console().print(console.render(console.DaemonClient(url, key).status()))


@app.command()
def chat(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    system: Annotated[str | None, typer.Option(help="What the model is told about its part.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The longest answer.")] = None,
) -> None:
    """Talk to the model in the terminal."""
    from homeai import console

    daemon = console.DaemonClient(url, key)
    is_fine = console.chat(daemon, console.plain_console(), system=system, max_tokens=max_tokens)
    raise typer.Exit(0 if is_fine else 1)


@app.command()
def simulate(
    workload: Annotated[
        str,
        typer.Option(help="household, bursts, adversarial, overlap, shared, conversation, or a file of arrivals."),
    ] = "household",
    mode: Annotated[list[str] | None, typer.Option(help="May be given several times; without it, all of them.")] = None,
    preset: Annotated[str | None, typer.Option(help="Estimate for a graphics card, such as rtx-5090.")] = None,
    model_size: Annotated[str, typer.Option(help="The model on it, such as 8b-q4.")] = "8b-q4",
    cost: Annotated[Path | None, typer.Option(help="Step times as fitted before.")] = None,
    fit: Annotated[
        Path | None, typer.Option(help="Fit step times from a daemon's $HOMEAI_STEP_LOG, and keep them in --cost.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another trace.")] = 11,
    scale: Annotated[float, typer.Option(min=0.01, help="How many times as fast the requests come.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Play a workload through the scheduler with a simulated model and compare the modes."""
    import msgspec

    from homeai.console import plain_console
    from homeai.evaluation import simulate, table

    arrivals = simulate.arrivals_of(workload, seed, scale)
    step_cost = simulate.cost_of(preset, model_size, cost, fit)
    loaded = _load(config, None, settings)
    comparison = simulate.compare(loaded, workload, arrivals, mode or simulate.MODES, step_cost)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(comparison)).decode())
    else:
        plain_console().print(table.render(f"{workload}, seed {seed}", comparison.cost, comparison.modes))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


# ---- models --------------------------------------------------------------------------------------------


@app.command()
def pull(
    model: Annotated[str, typer.Argument(metavar="OWNER/REPO[:QUANT]", help="Such as unsloth/Qwen3-8B-GGUF:Q4_K_M.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Fetch a model from Hugging Face, or go on where that was interrupted."""
    from homeai import cli_models

    raise typer.Exit(cli_models.pull(_load(config, data_dir, None), model))


@models_app.command("list")
def models_list(
    config: ConfigOption = None, data_dir: DataDirOption = None, url: UrlOption = DEFAULT_URL, key: KeyOption = None
) -> None:
    """What is in the data folder, and which of it is in use."""
    from homeai import cli_models

    cli_models.show(_load(config, data_dir, None), cli_models.serving(url, key))


@models_app.command("rm")
def models_rm(
    model: Annotated[str, typer.Argument(help="A name that `homeai models list` shows.")],
    force: Annotated[bool, typer.Option("--force", help="Although it is in use.")] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Delete a model, or what came of an unfinished download."""
    from homeai import cli_models

    loaded = _load(config, data_dir, None)
    cli_models.remove(loaded, model, served=cli_models.serving(url, key), force=force)


# ---- settings and keys ---------------------------------------------------------------------------------


@config_app.command("check")
def config_check(config: ConfigOption = None, data_dir: DataDirOption = None, settings: SetOption = None) -> None:
    """Say whether the settings can be used; exit code 2 and one line if not."""
    from homeai.backends.choice import checked, unused
    from homeai.models import chosen

    loaded = _load(config, data_dir, settings)
    for note in unused(loaded, checked(loaded, chosen(loaded))):
        print(note)
    print("the settings are fine")


@keys_app.command("add")
def keys_add(
    name: Annotated[str, typer.Argument(help="Who will use it, e.g. living-room-tablet.")],
    fairness_class: Annotated[str | None, typer.Option("--class", help="Fairness class of its requests.")] = None,
    trusted: Annotated[bool, typer.Option(help="May say for whom it asks (X-HomeAI-Source, Open WebUI).")] = False,
    admin: Annotated[
        bool, typer.Option("--admin", help="May load, unload, pause (`homeai load` and its like).")
    ] = False,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="The most requests within a minute.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="Prompts and answers, until midnight.")] = None,
    max_context: Annotated[int | None, typer.Option(min=2, help="Tokens of one request, prompt and answer.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Make a key. It is shown this once; only its hash is kept."""
    loaded = _load(config, data_dir, None)
    if fairness_class is not None and fairness_class not in loaded.classes:
        raise ConfigError(f"--class {fairness_class}: allowed are {', '.join(loaded.classes)}")
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_day": tokens_per_day,
        "max_context": max_context,
    }
    print(_key_store(loaded).add(name, fairness_class, trusted, admin=admin, **limits))


@keys_app.command("list")
def keys_list(config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Names, classes and limits of the keys."""
    from homeai.console import plain_console, render_keys

    plain_console().print(render_keys(_key_store(_load(config, data_dir, None)).list()))


@keys_app.command("revoke")
def keys_revoke(name: str, config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """End a key, at once."""
    _key_store(_load(config, data_dir, None)).revoke(name)
    print(f"the key {name} is revoked")


def _key_store(config: Config) -> KeyStore:
    from homeai.keys import KeyStore

    return KeyStore(config.ledger_path)

"""`homeai plan`: what a model takes and how fast it would be, here or on a card that one may buy or rent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeai.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from homeai.config import Config

app = typer.Typer()

DEFAULT_URL = "http://127.0.0.1:8700"
NUMBERS = "A model without a file"
CALIBRATING = "Measuring this machine"


def _number(help_text: str) -> Any:  # as typer.Option has it
    return typer.Option(min=1, help=help_text, rich_help_panel=NUMBERS)


@app.command()
def plan(
    model: Annotated[
        Path | None, typer.Argument(help="A GGUF file, a folder of safetensors or a pulled model's name.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="A card, such as rtx-5090; several, side by side.")] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="List the cards, with the documents their figures are from.")] = (
        False
    ),
    streams: Annotated[int, typer.Option(min=1, max=256, help="Sequences at once.")] = 8,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each, prompt and answer.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens before the first one of an answer.")] = 1024,
    trace: Annotated[
        str | None,
        typer.Option(help="Play it on each card: household … or a file, as `homeai bench --save-trace`'s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another trace.")] = 11,
    scale: Annotated[float, typer.Option(min=0.01, help="How many times as fast the requests come.")] = 1.0,
    price_per_hour: Annotated[
        list[float] | None, typer.Option(min=0, help="Of the machine, rented or written off; for each --gpu in turn.")
    ] = None,
    kwh: Annotated[float | None, typer.Option(min=0, help="Price of a kWh; the card draws all it may when busy.")] = (
        None
    ),
    currency: Annotated[str, typer.Option(help="Of the prices.")] = "EUR",
    model_size: Annotated[
        str | None, typer.Option(help="A published model, such as 8b-q4.", rich_help_panel=NUMBERS)
    ] = None,
    layers: Annotated[int | None, _number("Repeating layers.")] = None,
    hidden: Annotated[int | None, _number("Width of the embedding.")] = None,
    heads: Annotated[int | None, _number("Attention heads.")] = None,
    kv_heads: Annotated[int | None, _number("Of keys and values; else as many as --heads.")] = None,
    head_dim: Annotated[int | None, _number("Else --hidden / --heads.")] = None,
    ff: Annotated[int | None, _number("Width of the feed-forward part, with experts of one.")] = None,
    vocab: Annotated[int | None, _number("Tokens of the vocabulary.")] = None,
    parameters: Annotated[
        float | None, typer.Option(help="In all, such as 8e9; else from the others.", rich_help_panel=NUMBERS)
    ] = None,
    bytes_per_weight: Annotated[
        float, typer.Option(help="2 for f16, 1.06 for Q8_0, about 0.6 for Q4_K_M.", rich_help_panel=NUMBERS)
    ] = 2.0,
    tied: Annotated[
        bool, typer.Option("--tied", help="The output uses the embedding's weights.", rich_help_panel=NUMBERS)
    ] = False,
    window: Annotated[int | None, _number("Tokens that a layer with sliding-window attention looks back.")] = None,
    windowed_layers: Annotated[int | None, _number("How many have it; else all.")] = None,
    experts: Annotated[int | None, _number("Of each layer.")] = None,
    experts_used: Annotated[int | None, _number("For one token.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Load the model and time its steps.", rich_help_panel=CALIBRATING)
    ] = False,
    steps: Annotated[
        Path | None, typer.Option(help="From a daemon's $HOMEAI_STEP_LOG.", rich_help_panel=CALIBRATING)
    ] = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Ask the running daemon.", rich_help_panel=CALIBRATING)
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Of measuring, by turns.", rich_help_panel=CALIBRATING)] = 3,
    url: Annotated[str, typer.Option(envvar="HOMEAI_URL", help="It.", rich_help_panel=CALIBRATING)] = DEFAULT_URL,
    key: Annotated[
        str | None, typer.Option(envvar="HOMEAI_API_KEY", help="Its API key.", rich_help_panel=CALIBRATING)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file, as config.example.yaml.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where models and calibrations live.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting.")] = (
        None
    ),
) -> None:
    """Say whether a model fits, here or on a card, and how fast it would be there."""
    from homeai.evaluation.plan import report
    from homeai.evaluation.plan.gpus import GPUS

    if gpus:
        _show(GPUS, report.gpus(GPUS), as_json)
        return
    loaded = _load(config, data_dir, settings, model)
    numbers = {
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ff": ff,
        "vocab": vocab, "parameters": parameters, "window": window, "windowed_layers": windowed_layers,
        "experts": experts, "experts_used": experts_used,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    is_measuring = calibrate or steps is not None or daemon
    if sum((calibrate, steps is not None, daemon)) > 1:
        raise ConfigError("--calibrate, --steps and --daemon: only one of them says where measured steps come from")
    if gpu and is_measuring:
        raise ConfigError(f"--gpu {gpu[0]}: a calibration measures this machine, not a card of the table")
    if (given or model_size is not None) and not gpu:
        raise ConfigError("a model without a file is planned for a card: add --gpu (`homeai plan --gpus` lists them)")
    if sum((bool(given), model_size is not None, model is not None)) > 1:
        raise ConfigError("a file, --model-size or numbers: only one of them says what the model is")

    from homeai.evaluation.plan import session
    from homeai.evaluation.plan.session import Wish

    wish = Wish(streams=streams, context=context, prompt=prompt)
    if is_measuring:
        asked = (url, key) if daemon else None
        with _bar() as on_progress:
            found = session.calibrate(
                loaded, _path(loaded), steps=steps, daemon=asked, rounds=rounds, on_progress=on_progress
            )
        _show(found, report.calibration(found), as_json)
    elif gpu:
        if given:
            given |= {"bytes_per_weight": bytes_per_weight, "tied": tied}
        wish = Wish(
            streams=streams, context=context, prompt=prompt, cards=gpu, trace=trace, seed=seed, scale=scale,
            hours=price_per_hour or [], kwh=kwh, currency=currency,
        )  # fmt: skip
        path = None if given or model_size is not None else _path(loaded)
        answer = session.on_cards(loaded, session.architecture(path, model_size, given), wish)
        _show(answer, report.on_cards(answer), as_json)
    else:
        here = session.here(loaded, _path(loaded), wish)
        _show(here, report.here(here), as_json)


@contextmanager
def _bar() -> Iterator[Callable[[float], None]]:
    """For people; takes the fraction that is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("measuring"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def _show(answer: object, rendered: RenderableType, as_json: bool) -> None:
    import msgspec

    from homeai.console import plain_console

    if as_json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        plain_console().print(rendered)


def _path(config: Config) -> Path:
    from homeai import default_model
    from homeai.models import chosen

    return chosen(config) or default_model.ensure(config.data_dir, lambda fraction: None)


def _load(path: Path | None, data_dir: Path | None, settings: list[str] | None, model: Path | None) -> Config:
    from homeai import config

    flags = {"data_dir": data_dir, "model.path": model}
    overrides = [(name, json.dumps(str(value))) for name, value in flags.items() if value is not None]
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: needs the form section.key=value")
        overrides.append((name, value))
    return config.load(path, env=os.environ, overrides=overrides)

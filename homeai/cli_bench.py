"""`homeai bench`: measure, compare, decide; `list`, `report` and `export` what was measured."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homeai.errors import ConfigError, HomeAIError

if TYPE_CHECKING:
    from homeai.config import Config
    from homeai.evaluation.bench.rows import Findings, Overlap
    from homeai.evaluation.bench.session import Wish
    from homeai.evaluation.bench.store import Store
    from homeai.evaluation.cost_model import StepCost

app = typer.Typer(help="Measure a trace on this server or another one, and say what to change.")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file, as config.example.yaml.")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where results and models live.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting.")]
IdArgument = Annotated[str | None, typer.Argument(metavar="ID", help="As `homeai bench list` shows; else the latest.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="A file; else to the terminal.")]

WIDTH = 160  # of the tables in a file or a pipe
DEFAULT_URL = "http://127.0.0.1:8700"
SIZES = "How long texts are, against a household's; 0.25 suits a small CPU."


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="URL", help="A server that runs; several, one by one.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="API key of the targets.")] = None,
    api: Annotated[str | None, typer.Option(help="chat, completions or ollama.")] = None,
    model_name: Annotated[str | None, typer.Option("--name", help="Model to ask for, where a server has many.")] = None,
    natural: Annotated[bool, typer.Option("--natural", help="Answers end where the model ends them.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="After a rejection that says when to come back.")] = 0,
    start: Annotated[
        bool, typer.Option("--start", help="Start daemons of its own, as --mode and --control do.")
    ] = False,
    model: Annotated[Path | None, typer.Option(help="For its own daemons; else the configured or default one.")] = None,
    modes: Annotated[bool, typer.Option("--modes", help="continuous, static, window, single.")] = False,
    mode: Annotated[list[str] | None, typer.Option(help="One of them; several times.")] = None,
    controls: Annotated[bool, typer.Option("--controls", help="Every control, one at a time.")] = False,
    control: Annotated[
        list[str] | None, typer.Option(metavar="SECTION.KEY=VALUE,VALUE", help="One control; several times.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="The scheduler with a simulated model.")] = False,
    preset: Annotated[str | None, typer.Option(help="Simulate a graphics card, such as rtx-5090.")] = None,
    model_size: Annotated[str, typer.Option(help="The model on it.")] = "8b-q4",
    cost: Annotated[Path | None, typer.Option(help="Step times as fitted by `homeai simulate`.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace as JSON lines; else a synthetic one.")] = None,
    from_ledger: Annotated[float | None, typer.Option(metavar="DAYS", help="What this house asked lately.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="The trace and targets of `homeai bench export`.")] = None,
    save_trace: Annotated[Path | None, typer.Option(help="Write the trace to a file.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="chat, long, agents; several times; else all.")] = None,
    duration: Annotated[float, typer.Option(min=1, help="Seconds of the trace.")] = 60.0,
    rate: Annotated[float, typer.Option(min=0.01, help="1: a busy evening, a request in two seconds.")] = 1.0,
    sizes: Annotated[float, typer.Option(min=0.01, help=SIZES)] = 1.0,
    seed: Annotated[int, typer.Option(help="Another one gives another trace.")] = 11,
    salt: Annotated[str | None, typer.Option(help="The words of the texts; else new ones, found in no cache.")] = None,
    rates: Annotated[
        str, typer.Option(help="Times the trace's own rate, tried until one is too much.")
    ] = "0.5,1,2,4,8",
    spike: Annotated[float, typer.Option(help="Times the rate in a spike; 0: none.")] = 4.0,
    overlap: Annotated[str, typer.Option(help="How many at once; empty: none.")] = "1,2,4,8",
    rounds: Annotated[int, typer.Option(min=1, help="All of it so many times; medians are shown.")] = 1,
    ttft: Annotated[float | None, typer.Option(help="Wanted TTFT p95, s.")] = 2.0,
    queue: Annotated[float | None, typer.Option(help="Wanted queue time p95, s.")] = None,
    e2e: Annotated[float | None, typer.Option(help="Wanted time of an answer p95, s.")] = None,
    errors: Annotated[float, typer.Option(min=0, max=1, help="Wanted rate of rejected and failed ones.")] = 0.01,
    kwh: Annotated[float | None, typer.Option(help="Price of a kWh.")] = None,
    hour: Annotated[float | None, typer.Option(help="Price of an hour of this machine, rented or written off.")] = None,
    watts: Annotated[float | None, typer.Option(help="What it draws, where that cannot be read.")] = None,
    currency: Annotated[str, typer.Option(help="Of the prices.")] = "EUR",
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    settings: SetOption = None,
) -> None:
    """Against the running daemon; with --mode, --control or --start against daemons of its own, one per setting."""
    if context.invoked_subcommand is not None:
        return
    from homeai.evaluation.bench import agenda, session
    from homeai.evaluation.bench import trace as traces
    from homeai.evaluation.bench.client import Manners
    from homeai.evaluation.bench.dialects import DIALECTS
    from homeai.evaluation.bench.groups import Sizes
    from homeai.evaluation.bench.rows import Aims
    from homeai.evaluation.bench.score import Prices
    from homeai.evaluation.bench.targets import Asking

    loaded = _load(config, data_dir, settings)
    changed = agenda.variants(
        [*(agenda.MODES if modes else ()), *(mode or ())], [*(agenda.CONTROLS if controls else ()), *(control or ())]
    )
    is_simulated = simulate or preset is not None or cost is not None
    starts = start or model is not None or len(changed) > 1
    text_sizes, aims = Sizes().scaled(sizes), Aims(ttft_s=ttft, queue_s=queue, e2e_s=e2e, error_rate=errors)
    own_overlap: Overlap | None = None
    if api is not None and api not in DIALECTS:
        raise ConfigError(f"--api {api}: known are {', '.join(DIALECTS)}")
    if is_simulated and (target or model is not None):
        raise ConfigError("--target and --model: a simulation has neither (--simulate, --preset, --cost)")
    if sum(each is not None for each in (trace, from_ledger, bundle)) > 1:
        raise ConfigError("--trace, --from-ledger and --bundle: only one of them says what is asked")
    if bundle is not None:
        from homeai.evaluation.bench.bundle import read

        manifest, played = read(bundle)
        aims, seed, salt = manifest.aims, manifest.seed, salt or manifest.salt
    elif from_ledger is not None:
        played, own_overlap = session.trace_of_ledger(
            loaded.ledger_path, from_ledger, hides_names=save_trace is not None, longest_s=duration
        )
    else:
        played = traces.load(trace) if trace else session.synthetic(seed, duration, group or [], rate, text_sizes)
    if save_trace is not None:
        traces.save(played, save_trace)
    wish = session.Wish(
        trace=played,
        loads=session.loads_of(
            _numbers("--rates", rates), spike or None, [round(n) for n in _numbers("--overlap", overlap)]
        ),
        aims=aims,
        prices=Prices(kwh, hour, watts, currency),
        command=shlex.join(["homeai", *sys.argv[1:]]),
        urls=target or ([] if starts or is_simulated else [DEFAULT_URL]),
        model=_model(loaded, model) if starts and not is_simulated else None,
        config_path=config,
        env=os.environ,
        cost=_cost(preset, model_size, cost) if is_simulated else None,
        settings=[_pair(each) for each in settings or []],
        changed=changed,
        asking=Asking(api, model_name, key, natural, Manners(max_retries=retries)),
        sizes=text_sizes,
        seed=seed,
        salt=salt,
        num_rounds=rounds,
        own_overlap=own_overlap,
    )
    session.check(wish)
    store = _store(loaded)
    findings = _play(wish, loaded, store)
    if html is not None:
        _write(html, _report(store, findings, "html"))
    if markdown is not None:
        _write(markdown, _report(store, findings, "markdown"))
    if as_json:
        print(_report(store, findings, "json"), end="")
    else:
        _show(findings)


@app.command("list")
def list_benches(config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """What was measured here, the latest first."""
    for findings in _store(_load(config, data_dir, None)).list():
        variants = ", ".join(dict.fromkeys(row.variant for row in findings.rows))
        print(f"{findings.bench_id}  {findings.trace_name}: {variants}")


@app.command()
def report(
    bench_id: IdArgument = None,
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, json or html.")] = "terminal",
    out: OutOption = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show it again."""
    store = _store(_load(config, data_dir, None))
    findings, _ = store.load(bench_id)
    if form not in ("terminal", "markdown", "json", "html"):
        raise ConfigError(f"--format {form}: known are terminal, markdown, json, html")
    if form == "terminal":
        _show(findings)
    elif out is not None:
        _write(out, _report(store, findings, form))
    else:
        print(_report(store, findings, form), end="")


@app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A zip file to write.")],
    bench_id: IdArgument = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What it takes to repeat it on another machine: trace, targets, model, memory."""
    from homeai.evaluation.bench.bundle import export

    findings, trace = _store(_load(config, data_dir, None)).load(bench_id)
    export(findings, trace, out)
    print(f"{out}: repeat it with `homeai bench --bundle {out.name}`")


# ---- parts -----------------------------------------------------------------------------------------------


def _play(wish: Wish, loaded: Config, store: Store) -> Findings:
    from rich.console import Console

    from homeai.evaluation.bench import session
    from homeai.evaluation.bench.progress import TerminalProgress

    with TerminalProgress(Console(stderr=True)) as progress:
        return asyncio.run(session.bench(wish, loaded, store, progress))


def _show(findings: Findings) -> None:
    from rich.console import Console

    from homeai.evaluation.bench.text_report import render
    from homeai.evaluation.bench.verdict import judge

    width = None if sys.stdout.isatty() else WIDTH
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    console.print(render(findings, judge(findings)))


def _report(store: Store, findings: Findings, form: str) -> str:
    from homeai.evaluation.bench import html_report, text_report
    from homeai.evaluation.bench.verdict import base_row, judge

    verdict = judge(findings)
    match form:
        case "html":
            return html_report.page(findings, verdict, store.play(findings.bench_id, base_row(findings).id))
        case "markdown":
            return text_report.markdown(findings, verdict)
        case _:
            return text_report.as_json(findings, verdict).decode()


def _store(loaded: Config) -> Store:
    from homeai.evaluation.bench.store import Store

    return Store(loaded.data_dir / "bench.db")


def _model(loaded: Config, model: Path | None) -> Path:
    from homeai import default_model
    from homeai.models import chosen

    return model or chosen(loaded) or default_model.ensure(loaded.data_dir, lambda fraction: None)


def _cost(preset: str | None, model_size: str, fitted: Path | None) -> StepCost:
    from homeai.evaluation.simulate import cost_of

    return cost_of(preset, model_size, fitted, None)


def _load(path: Path | None, data_dir: Path | None, settings: list[str] | None) -> Config:
    from homeai import config

    overrides = [_pair(each) for each in settings or []]
    if data_dir is not None:
        overrides.insert(0, ("data_dir", json.dumps(str(data_dir))))
    return config.load(path, env=os.environ, overrides=overrides)


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise ConfigError(f"--set {setting}: needs the form section.key=value")
    return key, value


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise ConfigError(f"{option} {text}: needs numbers with commas between them") from None
    return numbers


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HomeAIError(f"{str(path)!r} cannot be written: {error.strerror}") from None

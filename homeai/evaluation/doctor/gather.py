"""Looks at everything once: the daemon, its ledger, the machine. Afterwards there are only `Facts`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation.doctor import machine, records
from homeai.evaluation.doctor.asking import TIMEOUT_S, Said, ask
from homeai.evaluation.doctor.facts import Event, Facts, Row

HOUR_S: Final = 3600.0
DEFAULT_HOURS: Final = 24.0
FROM_AFAR: Final = "the machine and the ledger: the daemon runs on another machine (run `homeai doctor` there)"


@dataclass(frozen=True, slots=True)
class Wish:
    """`hours` None: since the daemon's start, a day at most. `load`: the settings as this command's options say."""

    url: str
    key: str | None
    hours: float | None
    load: Callable[[], Config]
    timeout_s: float = TIMEOUT_S


def gather(wish: Wish) -> Facts:
    now = time.time()
    said = ask(wish.url, wish.key, wish.timeout_s)
    gaps = list(said.gaps)
    config, config_error = _config(said, wish)
    rows: list[Row] = []
    events: list[Event] = []
    around = None
    since = _since(said, wish, now)
    url = httpx.URL(wish.url)
    if machine.is_here(url.host):
        pid = said.vitals.pid if said.vitals else None
        model = Path(said.vitals.model_path) if said.vitals else None
        around = machine.look(config, url.port or (443 if url.scheme == "https" else 80), pid, model)
        if config is not None and config.ledger.enabled:
            rows, events = _ledger(config, since, gaps)
        elif config is not None:
            gaps.append("the ledger: ledger.enabled is false, so requests leave no rows")
    else:
        gaps.append(FROM_AFAR)
    return Facts(
        at=now,
        url=wish.url,
        hours=(now - since) / HOUR_S,
        silence=said.silence,
        status=said.status,
        vitals=said.vitals,
        itl_p95_s=said.itl_p95_s,
        rows=rows,
        events=events,
        config=config,
        config_error=config_error,
        machine=around,
        gaps=gaps,
    )


def settings_of(tree: dict[str, object]) -> Config:
    """The settings in force, as the daemon tells them. Raises `ValueError` for another version's."""
    return Config.model_validate_json(msgspec.json.encode(tree))


def _config(said: Said, wish: Wish) -> tuple[Config | None, str | None]:
    if said.vitals is not None:
        try:
            return settings_of(said.vitals.settings), None
        except ValueError as error:
            return None, f"the daemon's settings are another version's: {error}"
    try:
        return wish.load(), None
    except ConfigError as error:
        return None, str(error)


def _since(said: Said, wish: Wish, now: float) -> float:
    """What came before the daemon's start came under other settings."""
    if wish.hours is not None:
        return now - wish.hours * HOUR_S
    uptime_s = said.status.uptime_s if said.status else DEFAULT_HOURS * HOUR_S
    return now - min(uptime_s, DEFAULT_HOURS * HOUR_S)


def _ledger(config: Config, since: float, gaps: list[str]) -> tuple[list[Row], list[Event]]:
    try:
        return records.read(config.ledger_path, since)
    except (sqlite3.Error, OSError, msgspec.ValidationError) as error:
        gaps.append(f"the ledger {str(config.ledger_path)!r}: {error}")
        return [], []

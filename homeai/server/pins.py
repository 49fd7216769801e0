"""The beginnings of prompts that the settings want in the cache for good, as token ids; and why one cannot be.

A pin is never a reason not to start: its `problem` is told, and everything else goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from homeai.config import Config, PinConfig
from homeai.errors import RequestError
from homeai.server.sources import DEFAULT_SOURCE
from homeai.server.text import Text
from homeai.server.volatile import Rule, rules_by_source
from homeai.server.warmup import Pin

MIN_TOKENS = 32  # fewer are read again as fast as they are found
MAX_PART = 2  # of kv_cells, one part in so many: the rest is for requests


def read_pins(config: Config, text: Text) -> list[Pin]:
    """In the order of the settings, which is the order in which they are computed. Long texts take a while."""
    rules = rules_by_source(config.sources)
    pins = [_read(pin, config, text, rules.get(pin.source or "", ())) for pin in config.pins]
    _keep_room(pins, config.scheduler.kv_cells)
    return pins


def _read(config: PinConfig, house: Config, text: Text, rules: Sequence[Rule]) -> Pin:
    fairness_class = next((s.fairness_class for s in house.sources if s.name == config.source), None)
    pin = Pin(config.name, config.source or DEFAULT_SOURCE, fairness_class or house.scheduler.default_class)
    try:
        pin.token_ids = _token_ids(config, text, rules)
    except (RequestError, OSError, UnicodeDecodeError) as error:
        pin.problem = str(error)
        return pin
    if pin.num_tokens < MIN_TOKENS:
        pin.problem = f"it is too short: {pin.num_tokens} tokens < {MIN_TOKENS} minimum"
    return pin


def _token_ids(config: PinConfig, text: Text, rules: Sequence[Rule]) -> list[int]:
    if config.prompt is not None:
        return text.encode_beginning(config.prompt)
    system = config.system if config.file is None else config.file.read_text(encoding="utf-8")
    return text.encode_system(system or "", rules)


def _keep_room(pins: Sequence[Pin], num_cells: int) -> None:
    room = num_cells // MAX_PART
    taken = 0
    for pin in pins:
        if pin.problem is not None:
            continue
        if taken + pin.num_tokens > room:
            before = f" after the {taken} of the pins before it" if taken else ""
            pin.problem = f"its {pin.num_tokens} tokens{before} are more than {room}, half of scheduler.kv_cells"
        else:
            taken += pin.num_tokens

"""How long a client wants the model to stay after its request, in any of the ways in which clients say it."""

from __future__ import annotations

import math
import re
from typing import Final

from homeai.errors import InvalidRequest

SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION: Final = re.compile(rf"[-+]?(?:{_PART.pattern})+", re.ASCII)
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)", re.ASCII)


def keep_alive_s(value: object) -> float:
    """Seconds: 0 not at all, infinity for good. Raises `InvalidRequest`.

    A number is seconds and so is its text ("-1"); else a duration as Go writes it: "5m", "1h30m", "-2m". Whatever
    is negative means for good.
    """
    seconds = _seconds(value)
    if seconds is None:
        raise InvalidRequest(
            f'keep_alive: {str(value)[:40]!r} is neither a number of seconds nor a duration such as "5m" or "1h30m"',
            param="keep_alive",
        )
    return math.inf if seconds < 0 else seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if _DURATION.fullmatch(text):
        size = sum(float(number) * SECONDS[unit] for number, unit in _PART.findall(text))
        return -size if text.startswith("-") else size
    return None


def _float(value: float) -> float | None:
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:  # more seconds than a float can count
        return math.inf if value > 0 else -math.inf

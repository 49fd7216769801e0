"""What a house asks for: arrivals in time, each with its token ids. A file of it is JSON lines, one per arrival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from homeai.errors import ConfigError


class Arrival(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to come, `at` seconds after the start. Equal beginnings of `prompt_token_ids` can be shared.

    cancel_after_s: seconds after which the client leaves. cancels_on_token: it leaves with the first token it gets
    after that time, as clients do that only look when something comes (the bench's load generator is one).
    """

    at: float
    source: str
    fairness_class: str
    prompt_token_ids: list[int]
    max_tokens: int
    cancel_after_s: float | None = None
    cancels_on_token: bool = False


Workload = Sequence[Arrival]  # in order of `at`

_decoder = msgspec.json.Decoder(Arrival)


def save(workload: Workload, path: Path) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(arrival) + b"\n" for arrival in workload))


def load(path: Path) -> list[Arrival]:
    """The arrivals in order of time. Raises `ConfigError` with the file and the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"workload {str(path)!r} cannot be read: {error.strerror}") from None
    arrivals = [_arrival(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _arrival(line: bytes, place: str) -> Arrival:
    try:
        arrival = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{place}: not an arrival: {error}") from None
    if not arrival.prompt_token_ids:
        raise ConfigError(f"{place}: an empty prompt")
    if arrival.at < 0 or arrival.max_tokens < 0:
        raise ConfigError(f"{place}: at {arrival.at}, max_tokens {arrival.max_tokens}: neither may be negative")
    return arrival


def scaled(workload: Workload, scale: float) -> list[Arrival]:
    """The same requests, `scale` times as fast after one another."""
    return [msgspec.structs.replace(arrival, at=arrival.at / scale) for arrival in workload]

"""What a run was made under, and what two runs must have in common to be compared. Pure.

Only what was changed on purpose may differ, and what follows from it. Unknown is not equal, and not different: it is
said, and tabled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

UNKNOWN: Final = "unknown"
FORCED: Final = "as the trace says"  # lengths of answers


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Texts for people, equal when the thing is. `context`: tokens of one request, as the server allows.

    `tokenizer` is a hash of what the server makes of a fixed text; `lengths`, whether answers end where the trace says.
    `settings`: as far as they are known, with the bench's own changes.
    """

    server: str
    model: str
    model_hash: str = UNKNOWN
    tokenizer: str = UNKNOWN
    quantisation: str = UNKNOWN
    context: str = UNKNOWN
    hardware: str = UNKNOWN
    api: str
    lengths: str
    settings: dict[str, str] = {}


class Changed(msgspec.Struct, frozen=True):
    """What a row changes on purpose, against the base line."""

    target: bool = False
    settings: dict[str, str] = {}

    @property
    def label(self) -> str:
        """The scheduler's settings, the usual ones, without their section."""
        changes = (f"{key.removeprefix('scheduler.')}={value}" for key, value in self.settings.items())
        return ", ".join(changes) or "base line"


# What a setting changes beside itself. A layout divides the cells, so it changes how long one request may be.
FOLLOWS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduler.kv_cells": ("context",),
    "scheduler.kv_layout": ("context",),
    "scheduler.max_num_seqs": ("context",),
    "scheduler.max_model_len": ("context",),
    "model.path": ("model", "model_hash", "tokenizer", "quantisation", "context"),
    "model.device": ("hardware",),
    "model.n_gpu_layers": (),
}
COMPARED: Final = ("model_hash", "tokenizer", "quantisation", "context", "hardware", "api", "lengths")


def differences(base: Conditions, other: Conditions, changed: Changed) -> list[str]:
    """Why `other` cannot stand beside `base`, a sentence each; nothing when it can."""
    excused = {field for key in changed.settings for field in FOLLOWS.get(key, ())}
    problems = [
        f"{field.replace('_', ' ')}: {ours} here, {theirs} there"
        for field in (*COMPARED, *(() if changed.target else ("server",)))
        if field not in excused
        for ours, theirs in [(getattr(base, field), getattr(other, field))]
        if UNKNOWN not in (ours, theirs) and ours != theirs
    ]
    if changed.target:
        return problems  # another program has settings of its own
    keys = sorted((base.settings.keys() | other.settings.keys()) - changed.settings.keys() - _follow(changed))
    return problems + [
        f"{key}: {base.settings.get(key, 'its default')} here, {other.settings.get(key, 'its default')} there"
        for key in keys
        if base.settings.get(key) != other.settings.get(key)
    ]


def unknowns(conditions: Iterable[Conditions]) -> list[str]:
    """Of what is compared, what could not be read of each server."""
    said = (
        f"{each.server}: {', '.join(missing).replace('_', ' ')} not known, taken for equal"
        for each in conditions
        if (missing := [field for field in COMPARED if getattr(each, field) == UNKNOWN])
    )
    return list(dict.fromkeys(said))


def _follow(changed: Changed) -> set[str]:
    """Settings that a default ties to one that was changed."""
    tied = {"scheduler.max_num_batched_tokens": {"scheduler.max_chunk_tokens"}}
    return {key for setting in changed.settings for key in tied.get(setting, set())}


def table(conditions: Sequence[Conditions]) -> dict[str, list[str]]:
    """Every field with a value of each, for reports."""
    fields = [field for field in Conditions.__struct_fields__ if field != "settings"]
    rows = {field.replace("_", " "): [str(getattr(each, field)) for each in conditions] for field in fields}
    rows["settings"] = [", ".join(f"{k}={v}" for k, v in sorted(each.settings.items())) or "–" for each in conditions]
    return rows

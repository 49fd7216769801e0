"""What is wrong, by which figures, why, and what to change."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Severity(enum.StrEnum):
    """`TROUBLE`: somebody is served badly or not at all. `HINT`: something could be had for a change of settings."""

    TROUBLE = "trouble"
    HINT = "hint"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`evidence`: figures with what they are to be, and where they come from. `settings`: lines of the configuration
    by dotted key, as YAML writes their values."""

    check: str
    title: str
    evidence: list[str]
    cause: str
    advice: list[str]
    settings: Mapping[str, str] = {}
    severity: Severity = Severity.TROUBLE

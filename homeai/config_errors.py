"""Saying what is wrong with a setting: one `ConfigError` of one line with the key, the value, what is allowed.

What may be set is read off the JSON schema of the settings, so nothing is listed here a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

import msgspec
from pydantic_core import ErrorDetails

from homeai.errors import ConfigError

KeyPath = tuple[str | int, ...]


class _Schema(msgspec.Struct, rename="camel"):
    """The part of pydantic's JSON schema that says what a setting may be."""

    type: str = ""
    format: str = ""
    description: str = ""
    enum: list[str] = []
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    any_of: list[_Schema] = []
    properties: dict[str, _Schema] = {}
    additional_properties: _Schema | bool = False
    items: _Schema | None = None
    ref: str = msgspec.field(default="", name="$ref")
    defs: dict[str, _Schema] = msgspec.field(default_factory=dict, name="$defs")

    def child(self, key: str | int) -> _Schema | None:
        if isinstance(key, int):
            return self.items
        if isinstance(self.additional_properties, _Schema):
            return self.additional_properties
        return self.properties.get(key)

    def allowed(self) -> str:
        """In words, such as "an integer from 0 to 65535"."""
        if self.type == "object":
            return "a mapping"
        if self.description or self.enum:
            return self.description or any_of(self.enum)
        if self.any_of:
            return " or ".join(option.allowed() for option in self.any_of)
        return _KINDS[self.format or self.type] + self._range()

    def _range(self) -> str:
        if self.exclusive_minimum is not None:
            return f" above {self.exclusive_minimum}"
        if self.maximum is not None:
            return f" from {self.minimum} to {self.maximum}"
        return "" if self.minimum is None else f" from {self.minimum}"


_KINDS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "path": "a path",
    "array": "a list",
    "null": "null",
}


def explain(
    error: ErrorDetails, schema: Mapping[str, object], origins: Mapping[KeyPath, str], file: str
) -> ConfigError:
    """One line for one of pydantic's errors, with where the setting came from.

    `schema` is the JSON schema of all settings. What `origins` does not know came from `file`.
    """
    kind, value = error["type"], error["input"]
    loc = tuple(key for key in error["loc"] if key != "[key]")
    root = msgspec.convert(schema, _Schema)
    origin = next((origin for path, origin in origins.items() if _overlap(path, loc)), file)
    if kind in ("extra_forbidden", "invalid_key"):
        return ConfigError(f"{_dotted(loc)} is not a setting{_suggestion(root, loc)} ({origin})")
    allowed = _schema_at(root, loc).allowed()
    if kind == "missing":
        return ConfigError(f"{_dotted(loc)} is missing: {allowed} ({origin})")
    return refused(_dotted(loc), value, f"{allowed} ({origin})")


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    """Whether one of them is the other or lies below it."""
    return all(a == b for a, b in zip(one, other, strict=False))


def refused(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{key}: {_shown(value)} is not allowed: {allowed}")


def _schema_at(root: _Schema, loc: KeyPath) -> _Schema:
    node = root
    for key in loc:
        node = node.child(key) or _Schema()
        node = root.defs[node.ref.removeprefix("#/$defs/")] if node.ref else node
    return node


def _suggestion(root: _Schema, loc: KeyPath) -> str:
    """The most similar setting, by its whole name or by its last word (right key, wrong section)."""
    siblings = [(*loc[:-1], key) for key in _schema_at(root, loc[:-1]).properties]
    settings = [(section, key) for section in root.properties for key in _schema_at(root, (section,)).properties]

    def likeness(other: KeyPath) -> float:
        return max(_ratio(_dotted(loc), _dotted(other)), _ratio(str(loc[-1]), str(other[-1])))

    best = max((*siblings, *settings), key=likeness)
    return f"; did you mean {_dotted(best)}?" if likeness(best) > 0.6 else ""


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _dotted(loc: KeyPath) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_plain(key)}" for key in loc).removeprefix(".")


def _plain(key: str) -> str:
    return key if key and key.isprintable() else repr(key)


def any_of(words: Iterable[str]) -> str:
    *others, last = [*words] or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return f".{value}"  # as YAML spells it
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

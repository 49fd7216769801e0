"""Which types a call's arguments may have, for texts that do not say it themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from homeai.server.conversation import Schema
from homeai.server.schema_reader import TYPES, list_of, steps_to, target_of

MAX_DEPTH: Final = 100
UNLISTED: Final = "\0"  # no property is called so
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


class ArgumentTypes:
    """Of a tool's parameters. What may be anything is text, and so is what nothing is known of: it has none."""

    def __init__(self, parameters: Schema) -> None:
        self._root = parameters
        self._found: dict[str, frozenset[str]] = {}

    def of(self, key: str) -> frozenset[str]:
        if key not in self._found:
            seen: dict[int, frozenset[str]] = {}
            schemas = self._schemas_of(key, self._root, 0, set())
            types = frozenset().union(*(self._types(schema, 0, seen) for schema in schemas))
            self._found[key] = frozenset() if types == TYPES else types
        return self._found[key]

    @property
    def of_others(self) -> frozenset[str]:
        """Of those that are not listed."""
        return self.of(UNLISTED)

    def _schemas_of(self, key: str, schema: object, depth: int, seen: set[int]) -> list[object]:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH or id(schema) in seen:
            return []
        seen.add(id(schema))
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        if isinstance(properties, Mapping) and key in properties:
            found = [properties[key]]
        else:
            found = list(patterns.values()) if isinstance(patterns, Mapping) else []
            found += [others] if isinstance(others := schema.get("additionalProperties"), Mapping) else []
        for each in self._same_place(schema):
            found += self._schemas_of(key, each, depth + 1, seen)
        return found

    def _same_place(self, schema: Mapping[str, object]) -> list[object]:
        choices = [each for word in ("anyOf", "oneOf", "allOf") for each in list_of(schema.get(word))]
        return [*choices, self._resolved(schema.get("$ref"))]

    def _types(self, schema: object, depth: int, seen: dict[int, frozenset[str]]) -> frozenset[str]:
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return TYPES
        if id(schema) not in seen:
            seen[id(schema)] = TYPES  # for one that leads back here
            seen[id(schema)] = self._read(schema, depth, seen)
        return seen[id(schema)]

    def _read(self, schema: Mapping[str, object], depth: int, seen: dict[int, frozenset[str]]) -> frozenset[str]:
        types = TYPES
        if (declared := schema.get("type")) is not None:
            types = _with_integers(map(str, declared) if isinstance(declared, list) else [str(declared)])
        if "const" in schema or schema.get("enum") is not None:
            values = list_of(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
            types &= frozenset().union(*(kinds_of(json.dumps(value)) or frozenset() for value in values))
        for each in (*list_of(schema.get("allOf")), self._resolved(schema.get("$ref"))):
            types &= self._types(each, depth + 1, seen)
        for word in ("anyOf", "oneOf"):
            if schema.get(word) is not None:
                types &= frozenset().union(*(self._types(each, depth + 1, seen) for each in list_of(schema[word])))
        return types | {"null"} if schema.get("nullable") is True else types

    def _resolved(self, reference: object) -> object:
        steps = steps_to(self._root, reference) if isinstance(reference, str) else None
        try:
            return True if steps is None else target_of(self._root, steps)
        except LookupError:
            return True


def _with_integers(types: Iterable[str]) -> frozenset[str]:
    types = frozenset(types)
    return types | {"integer"} if "number" in types else types


def typed(value: str, types: frozenset[str]) -> str:
    """The value as JSON: of a type that it may have, else as text."""
    stripped = _PYTHON.get(value.strip(), value.strip())
    kinds = kinds_of(stripped)
    return stripped if kinds is not None and types & (kinds - {"string"}) else json.dumps(value, ensure_ascii=False)


def kinds_of(text: str) -> frozenset[str] | None:
    """The types of a JSON text; None for what is not JSON."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or value is None:
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        is_whole = isinstance(value, int) or value.is_integer()
        return frozenset({"number", "integer"} if is_whole else {"number"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


def refuse_constant(constant: str) -> None:
    raise ValueError(constant)

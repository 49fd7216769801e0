"""A schema as branches: a value fits it when it fits one of them. No references and no choices are left in a branch.

A branch is a schema whose `type` is a list, whose `enum` stands alone, and whose `patterns` must all be found. What
cannot be said in one branch is refused with its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from homeai.server.schema_reader import TYPES, Node, list_of
from homeai.server.schemas import fitting

MAX_BRANCHES: Final = 64
MAX_DEPTH: Final = 100  # of references and choices at one place
WORDS: Final = {
    "string": frozenset({"patterns", "minLength", "maxLength", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset(
        {"properties", "patternProperties", "required", "additionalProperties", "minProperties", "maxProperties"}
    ),
}
HIGHEST: Final = frozenset({"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"})
LOWEST: Final = frozenset({"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"})

Refuse = Callable[[str, str, str], NoReturn]
"""Says that what stands at a path, under a keyword, cannot be enforced, and why."""


class Branches:
    """Of one schema and its definitions."""

    def __init__(self, definitions: Node, refuse: Refuse) -> None:
        self._definitions = definitions
        self._refuse = refuse

    def of(self, node: object, path: str, types: Iterable[str] = TYPES) -> list[Node]:
        """Those of values of these types; none where nothing fits."""
        found = self._all(node, path, _expanded(types), 0)
        return [branch for each in found if (branch := self._settled(each)) is not None]

    def _all(self, node: object, path: str, types: frozenset[str], depth: int) -> list[Node]:
        if depth > MAX_DEPTH:
            self._refuse(path, "$ref", "too many references in a row")
        if node is False:
            return []
        node = node if isinstance(node, dict) else {}
        own = _flat(node, types)
        branches = [] if own is None else [own]
        if "$ref" in node:
            target = self._definitions[str(node["$ref"]).rpartition("/")[2]]
            branches = self._both(branches, self._all(target, path, types, depth + 1), path, "$ref")
        for each in list_of(node.get("allOf")):
            branches = self._both(branches, self._all(each, path, types, depth + 1), path, "allOf")
        for word in ("anyOf", "oneOf"):
            if word in node:
                options = [b for each in list_of(node[word]) for b in self._all(each, path, types, depth + 1)]
                branches = self._both(branches, options, path, word)
        return branches

    def _both(self, some: list[Node], others: list[Node], path: str, word: str) -> list[Node]:
        if len(some) * len(others) > MAX_BRANCHES:
            self._refuse(path, word, f"{len(some) * len(others)} alternatives, more than {MAX_BRANCHES}")
        pairs = [(one, other) for one in some for other in others]
        return [both for one, other in pairs if (both := self._merged(one, other, path)) is not None]

    def _merged(self, one: Node, other: Node, path: str) -> Node | None:
        types = _declared(one) & _declared(other)
        both = _flat({word: one.get(word, other.get(word)) for word in (one | other)} | {"type": list(types)}, types)
        if both is None:
            return None
        for word in both.keys() & one.keys() & other.keys() - {"type"}:
            both[word] = self._combined(word, one[word], other[word], path)
        if both.get("enum") == []:
            return None
        for word in ("additionalProperties", "patternProperties", "prefixItems"):
            self._check_apart(both, one, other, word, path)
        return both

    def _combined(self, word: str, one: object, other: object, path: str) -> object:
        if one == other and type(one) is type(other):
            return one
        if word in HIGHEST | LOWEST and isinstance(one, int | float) and isinstance(other, int | float):
            return max(one, other) if word in HIGHEST else min(one, other)
        found: object = None
        match word, one, other:
            case "enum", list(), list():
                written = set(map(json.dumps, other))
                found = [value for value in one if json.dumps(value) in written]
            case (("required" | "patterns"), list(), list()):
                found = list(dict.fromkeys([*one, *other]))
            case "properties", dict(), dict():
                common = {name: {"allOf": [one[name], other[name]]} for name in one.keys() & other.keys()}
                found = one | other | common
            case (("items" | "additionalProperties"), _, _):
                found = {"allOf": [one, other]}
            case _:
                self._refuse(path, word, "it is said twice of one value, in two ways")
        return found

    def _check_apart(self, both: Node, one: Node, other: Node, word: str, path: str) -> None:
        """What is said of the items or properties that one of the two does not list would fall on the other's."""
        for this, that in ((one, other), (other, one)):
            if word not in both or this.get(word, True) is True:
                continue
            if word == "prefixItems":
                is_apart = not ({"items", "prefixItems"} & that.keys())
            else:
                listed, others = (side.get("properties", {}) for side in (this, that))
                assert isinstance(listed, dict)
                assert isinstance(others, dict)
                is_apart = others.keys() <= listed.keys() and "patternProperties" not in that
            if not is_apart and this.get(word) != that.get(word):
                self._refuse(path, word, "beside other schemas of the same value")

    def _settled(self, branch: Node) -> Node | None:
        """A choice of values by itself: those that fit the rest."""
        if "enum" not in branch:
            return branch
        values = list_of(branch["enum"])
        if branch.keys() > {"enum", "type"}:
            rest = as_schema({word: value for word, value in branch.items() if word != "enum"})
            values = fitting(rest | ({"$defs": self._definitions} if self._definitions else {}), values)
        return {"type": branch["type"], "enum": values} if values else None


def as_schema(branch: Node) -> Node:
    """What `%json` takes."""
    schema = {word: value for word, value in branch.items() if word != "patterns"}
    if "patterns" in branch:
        schema["allOf"] = [{"pattern": pattern} for pattern in list_of(branch["patterns"])]
    return schema


def types_of(value: object) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"number", "integer"} if value == int(value) else {"number"})
        case str():
            return frozenset({"string"})
    return frozenset({"array" if isinstance(value, list) else "object"})


def _flat(node: Node, types: frozenset[str]) -> Node | None:
    """What a schema says by itself, of values of these types."""
    if "type" in node:
        types &= _declared(node)
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if isinstance(values, list):
        values = [value for value in values if types_of(value) & types]
        types &= frozenset().union(*map(types_of, values))
    if not types:
        return None
    kinds = types | ({"number"} if "integer" in types else set())
    words = frozenset().union(*(WORDS.get(kind, frozenset()) for kind in kinds))
    said = node | ({"patterns": [node["pattern"]]} if "pattern" in node else {})
    flat: Node = {"type": sorted(types - ({"integer"} if "number" in types else set()))}
    flat |= {word: value for word, value in said.items() if word in words}
    return flat | ({"enum": values} if values is not None else {})


def _declared(node: Node) -> frozenset[str]:
    types = node["type"]
    return _expanded(map(str, types) if isinstance(types, list) else [str(types)])


def _expanded(types: Iterable[str]) -> frozenset[str]:
    """Every integer is a number."""
    types = frozenset(types)
    return types | {"integer"} if "number" in types else types

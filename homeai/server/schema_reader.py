"""Our own walk over a client's JSON schema: every keyword is understood, refused by name, or means nothing.

What comes out is a schema of our own: references resolved, words of older drafts and of OpenAPI said in today's,
annotations and what asks for nothing left out. An object that lists its properties has no others unless it says that
it may: small models invent them. An integer without a bound has fifteen digits: small models come to no end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, NoReturn
from urllib.parse import unquote

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.conversation import Schema

MAX_DEPTH: Final = 48  # schemas in schemas; llguidance's own limit is 128 of JSON
MAX_SCHEMAS: Final = 5_000
MAX_VALUES: Final = 10_000  # in all of enum and const, their parts counted
MAX_OPTIONAL: Final = 450  # properties that may be missing, of all that may begin where a value does
PLACES: Final = 4  # in a grammar, for each of them
MAX_PLACES: Final = 1_900  # that the engine follows at once; its own limit is 2,000
MAX_COUNT: Final = 10**9  # of characters or items: no answer has so many
MAX_INTEGER: Final = 10**15 - 1  # a double holds it; all digits nine, which makes the smallest grammar
MAX_PATTERN_CHARS: Final = 4_096

TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
OTHER_FORMATS: Final = frozenset(  # of the standard; any other name is a remark, and means nothing
    {"idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"}
    | {"uri-reference", "uri-template"}
)
REFUSED: Final = frozenset(
    {"not", "propertyNames", "contains", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"unevaluatedItems", "$dynamicRef", "$recursiveRef"}
)
LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
CHOICES: Final = ("anyOf", "oneOf", "allOf")
OF_OBJECTS: Final = ("properties", "patternProperties", "required", "additionalProperties", *LENGTHS[4:])

Node = dict[str, object]


class Width(NamedTuple):
    """Of a schema: how many alternatives it has, and how many properties that may be missing are in all of them."""

    num_choices: int
    num_optional: int

    def beside(self, other: Width) -> Width:
        """Both are said of the same value."""
        return Width(
            min(MAX_COUNT, self.num_choices * other.num_choices),
            min(MAX_COUNT, self.num_optional * other.num_choices + other.num_optional * self.num_choices),
        )


class SchemaReader:
    """Reads one schema, for `enforceable`. `pattern_error` says why a pattern cannot be used, "" if it can.

    What references point to becomes definitions of ours: once as it is, and once more where others say something
    about the same value.
    """

    def __init__(self, root: Schema, param: str, what: str, pattern_error: Callable[[str], str]) -> None:
        self._root = root
        self._pattern_error = pattern_error
        self.relaxed: list[str] = []  # what is not enforced, for the client
        self._param = param
        self._prefix = f"{what}: " if what else ""
        self._names: dict[tuple[tuple[str, ...], bool], str] = {}
        self._unread: list[tuple[tuple[str, ...], bool]] = []
        self._num_schemas = self._num_values = 0
        self._choices: list[tuple[str, str, Node]] = []  # path, keyword, schema: what has alternatives
        self._widths: dict[str, Width] = {}  # of definitions

    def read(self) -> Node | bool:
        node = self._read(self._root, "$", 0, is_merged=False)
        definitions: Node = {}
        while self._unread:
            steps, is_merged = self._unread.pop()
            name = self._names[steps, is_merged]
            definitions[name] = self._read(self._target(steps), _path_of(steps), 0, is_merged=is_merged)
        if definitions:
            self._check_loops(definitions)
        for path, word, each in self._choices:
            self._check_width(path, word, each)
        if isinstance(node, dict) and definitions:
            node["$defs"] = definitions
        return node

    def _read(self, schema: object, path: str, depth: int, *, is_merged: bool) -> Node | bool:
        """`is_merged`: others say something about the same value, so it is not for this one to close it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._wrong(path, "", f"a schema is an object or a boolean, not {_kind(schema)}")
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            self._refuse(path, "", f"the schema is too large: more than {MAX_SCHEMAS} schemas in it")
        if depth > MAX_DEPTH:
            self._refuse(path[:200], "", f"the schema is nested too deep: more than {MAX_DEPTH} levels")
        self._check_refused(schema, path)
        shared = [word for word in (*OF_OBJECTS, *CHOICES, "$ref") if schema.get(word) is not None]
        is_shared = is_merged or any(word in (*CHOICES, "$ref") for word in shared)
        is_choice_merged = is_merged or len(shared) > 1
        node: Node = {}
        self._read_type(schema, path, node)
        self._read_values(schema, path, node)
        self._read_numbers(schema, path, node)
        self._read_string(schema, path, node)
        self._read_array(schema, path, node, depth, is_merged=is_shared)
        self._read_object(schema, path, node, depth, is_merged=is_shared)
        for word in CHOICES:
            if schema.get(word) is not None:
                choices = self._list(schema, word, path)
                are_merged = is_choice_merged or (word == "allOf" and len(choices) > 1)
                node[word] = [
                    self._read(choice, f"{path}.{word}[{i}]", depth + 1, is_merged=are_merged)
                    for i, choice in enumerate(choices)
                ]
        if schema.get("$ref") is not None:
            node["$ref"] = self._reference(schema["$ref"], path, is_merged=is_choice_merged)
        if not is_shared:
            _bound_integer(node)
        for word in ("properties", *CHOICES):
            if word in node:
                self._choices.append((path, word, node))
                break
        return _or_null(node) if schema.get("nullable") is True else node

    def _check_refused(self, schema: Mapping[str, object], path: str) -> None:
        for word in schema:
            if word in REFUSED and schema[word] is not None:
                self._cannot(path, word)
        if schema.get("uniqueItems") is True:
            self._relax_unique_items(schema, path)
        if schema.get("if") is not None and (schema.get("then") is not None or schema.get("else") is not None):
            self._cannot(path, "if")
        if schema.get("unevaluatedProperties") not in (None, True):
            self._cannot(path, "unevaluatedProperties")

    def _relax_unique_items(self, schema: Mapping[str, object], path: str) -> None:
        """Home Assistant asks for it where several of a few choices may be named: to hear one twice does no harm."""
        items = schema.get("items")
        if not (isinstance(items, dict) and items.get("enum") is not None):
            self._cannot(path, "uniqueItems")
        self.relaxed.append(self._message(path, "uniqueItems", "a choice may be named twice"))

    # ---- what a value is -------------------------------------------------------------------------

    def _read_type(self, schema: Mapping[str, object], path: str, node: Node) -> None:
        if (types := schema.get("type")) is None:
            return
        self._count_values(types, path, "type")
        for name in types if isinstance(types, list) else [types]:
            if not isinstance(name, str) or name not in TYPES:
                self._wrong(path, "type", f"{short(name)} is no type; there are {', '.join(sorted(TYPES))}")
        if isinstance(types, list) and not types:
            self._wrong(path, "type", "the list is empty")
        node["type"] = types

    def _read_values(self, schema: Mapping[str, object], path: str, node: Node) -> None:
        if schema.get("enum") is not None:
            values = self._list(schema, "enum", path)
            if not values:
                self._wrong(path, "enum", "the list is empty")
            self._count_values(values, path, "enum")
            node["enum"] = values
        if "const" in schema:
            self._count_values(schema["const"], path, "const")
            node["const"] = schema["const"]

    def _count_values(self, value: object, path: str, word: str) -> None:
        for depth, part in _parts(value):
            self._num_values += 1
            if self._num_values > MAX_VALUES:
                self._refuse(path, word, f"more than {MAX_VALUES} values in the schema")
            if depth > MAX_DEPTH:
                self._refuse(path, word, f"a value is nested more than {MAX_DEPTH} deep")
            if isinstance(part, float) and not math.isfinite(part):
                self._wrong(path, word, f"{part} is no JSON")

    def _read_numbers(self, schema: Mapping[str, object], path: str, node: Node) -> None:
        for word in LIMITS:
            if (limit := schema.get(word)) is None or limit is False:
                continue
            if limit is True and word.startswith("exclusive"):  # as draft 4 said it
                plain = word.removeprefix("exclusive").lower()
                if plain in node:
                    node[word] = node.pop(plain)
                continue
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
                self._wrong(path, word, f"{short(limit)} is no number")
            if word == "multipleOf" and limit <= 0:
                self._wrong(path, word, f"{limit} is not above 0")
            node[word] = limit
        for word in LENGTHS:
            if (length := schema.get(word)) is None:
                continue
            if (count := _count(length)) is None:
                self._wrong(path, word, f"{short(length)} is no count")
            if count < MAX_COUNT:
                node[word] = count
            elif word.startswith("min"):
                self._refuse(path, word, f"{count} is more than any answer has")

    def _read_string(self, schema: Mapping[str, object], path: str, node: Node) -> None:
        if (pattern := schema.get("pattern")) is not None:
            node["pattern"] = self._pattern(pattern, path, "pattern")
        name = schema.get("format")
        if not isinstance(name, str):
            return
        if name in FORMATS:
            node["format"] = name
        elif name in OTHER_FORMATS:
            self._cannot(path, "format", f"{name!r} is none of {', '.join(sorted(FORMATS))}")

    def _pattern(self, pattern: object, path: str, word: str) -> str:
        if not isinstance(pattern, str):
            self._wrong(path, word, f"{short(pattern)} is no text")
        if len(pattern) > MAX_PATTERN_CHARS:
            self._refuse(path, word, f"{len(pattern)} characters, more than {MAX_PATTERN_CHARS}")
        if error := self._pattern_error(pattern):
            self._wrong(path, word, f"{short(pattern)} cannot be used: {error}")
        return pattern

    # ---- arrays and objects ----------------------------------------------------------------------

    def _read_array(self, schema: Mapping[str, object], path: str, node: Node, depth: int, *, is_merged: bool) -> None:
        items, first = schema.get("items"), schema.get("prefixItems")
        if isinstance(items, list):  # as the drafts before 2020 said it
            items, first = schema.get("additionalItems"), items
        if first is not None:
            if not isinstance(first, list):
                self._wrong(path, "prefixItems", f"a list is needed, not {_kind(first)}")
            node["prefixItems"] = [
                self._read(item, f"{path}.prefixItems[{i}]", depth + 1, is_merged=is_merged)
                for i, item in enumerate(first)
            ]
        if items is not None:
            node["items"] = self._read(items, f"{path}.items", depth + 1, is_merged=is_merged)

    def _read_object(self, schema: Mapping[str, object], path: str, node: Node, depth: int, *, is_merged: bool) -> None:
        properties = self._read_each(schema, "properties", path, depth, is_merged=is_merged)
        patterns = self._read_each(schema, "patternProperties", path, depth, is_merged=is_merged)
        required = self._required(schema, path)
        num_optional = len(properties.keys() - set(required))
        for pattern in patterns:
            self._pattern(pattern, path, "patternProperties")
        others = schema.get("additionalProperties")
        if others is not None:
            node["additionalProperties"] = self._read(
                others, f"{path}.additionalProperties", depth + 1, is_merged=is_merged
            )
        elif properties and not patterns and not is_merged:
            properties |= {name: True for name in required if name not in properties}
            node["additionalProperties"] = False
        if "properties" in schema:
            node["properties"] = properties
        if patterns:
            node["patternProperties"] = patterns
        if required:
            node["required"] = required
        self._settle_counts(path, node, num_optional)

    def _required(self, schema: Mapping[str, object], path: str) -> list[str]:
        """Draft 3 said it within the property."""
        value, properties = schema.get("required"), schema.get("properties")
        names = [] if value is None or isinstance(value, bool) else self._list(schema, "required", path)
        if isinstance(properties, Mapping):
            names = names + [name for name, each in properties.items() if _is_marked_required(each)]
        self._count_values(names, path, "required")
        for name in names:
            if not isinstance(name, str):
                self._wrong(path, "required", f"{short(name)} is no name")
        return list(dict.fromkeys(map(str, names)))

    def _read_each(
        self, schema: Mapping[str, object], word: str, path: str, depth: int, *, is_merged: bool
    ) -> dict[str, object]:
        schemas = schema.get(word)
        if schemas is None:
            return {}
        if not isinstance(schemas, Mapping):
            self._wrong(path, word, f"an object is needed, not {_kind(schemas)}")
        return {
            str(name): self._read(each, f"{path}.{word}.{name}", depth + 1, is_merged=is_merged)
            for name, each in schemas.items()
        }

    def _settle_counts(self, path: str, node: Node, num_optional: int) -> None:
        """Counts of properties that say nothing new are left out; others only go with properties that must be there."""
        properties, required = node.get("properties", {}), node.get("required", [])
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        least, most = node.get("minProperties"), node.get("maxProperties")
        if isinstance(least, int) and least <= len(required):
            del node["minProperties"]
        if isinstance(most, int) and node.get("additionalProperties") is False and len(properties) <= most:
            del node["maxProperties"]
        for word in ("minProperties", "maxProperties"):
            if word in node and num_optional:
                self._cannot(path, word, "it goes with listed properties only when all of them are required")

    # ---- references ------------------------------------------------------------------------------

    def _reference(self, reference: object, path: str, *, is_merged: bool) -> str:
        if not isinstance(reference, str):
            self._wrong(path, "$ref", f"{short(reference)} is no text")
        steps = steps_to(self._root, reference)
        if steps is None:
            self._refuse(path, "$ref", f"{short(reference)} is not a place in this schema, like '#/$defs/name'")
        key = (steps, is_merged)
        if key not in self._names:
            self._target(key[0], path, reference)
            self._names[key] = f"d{len(self._names)}"
            self._unread.append(key)
        return f"#/$defs/{self._names[key]}"

    def _target(self, steps: tuple[str, ...], path: str = "$", reference: str = "") -> object:
        try:
            return target_of(self._root, steps)
        except LookupError:
            self._wrong(path, "$ref", f"{short(reference)} points to nothing")

    def _check_loops(self, definitions: Node) -> None:
        """A reference that leads back to itself, with nothing in between that must be written, has no end.

        What has one gets its width, after all that it refers to."""
        settled: set[str] = set()
        for name in definitions:
            trail: list[tuple[str, Iterator[str]]] = [(name, _same_place(definitions[name]))]
            on_trail = {name}
            while trail:
                current, following = trail[-1]
                target = next(following, None)
                if target is None:
                    settled.add(current)
                    self._widths[current] = self._width(definitions[current])
                    on_trail.discard(current)
                    trail.pop()
                elif target in on_trail:
                    steps = next(key[0] for key, value in self._names.items() if value == target)
                    self._wrong(_path_of(steps), "$ref", "it leads back to itself")
                elif target not in settled:
                    on_trail.add(target)
                    trail.append((target, _same_place(definitions[target])))

    # ---- width -----------------------------------------------------------------------------------

    def _check_width(self, path: str, word: str, node: Node) -> None:
        """The engine follows all that may come next at once, and fails where that is too much."""
        num_choices, num_optional = self._width(node)
        if num_optional > MAX_OPTIONAL:
            self._refuse(path, word, f"{num_optional} properties that are not required, more than {MAX_OPTIONAL}")
        if num_choices > MAX_PLACES - PLACES * num_optional:
            self._refuse(path, word, f"{num_choices} alternatives, more than {MAX_PLACES - PLACES * num_optional}")

    def _width(self, node: object) -> Width:
        """How many alternatives a value has where it begins, and how many optional properties are in all of them."""
        if not isinstance(node, dict):
            return Width(1, 0)
        properties, required = node.get("properties", {}), list_of(node.get("required"))
        assert isinstance(properties, dict)
        width = Width(1, len(properties.keys() - set(required)))
        if "$ref" in node:
            width = width.beside(self._widths[str(node["$ref"]).rpartition("/")[2]])
        for each in list_of(node.get("allOf")):
            width = width.beside(self._width(each))
        for word in ("anyOf", "oneOf"):
            if word in node:
                options = [self._width(each) for each in list_of(node[word])]
                width = width.beside(Width(sum(each[0] for each in options), sum(each[1] for each in options)))
        return width

    # ---- refusals --------------------------------------------------------------------------------

    def _list(self, schema: Mapping[str, object], word: str, path: str) -> list[object]:
        value = schema[word]
        if not isinstance(value, list):
            self._wrong(path, word, f"a list is needed, not {_kind(value)}")
        return value

    def _cannot(self, path: str, word: str, why: str = "") -> NoReturn:
        self._refuse(path, word, f"it cannot be enforced{': ' + why if why else ''}")

    def _refuse(self, path: str, word: str, why: str) -> NoReturn:
        raise Unsupported(self._message(path, word, why), param=self._param)

    def _wrong(self, path: str, word: str, why: str) -> NoReturn:
        raise InvalidRequest(self._message(path, word, why), param=self._param)

    def _message(self, path: str, word: str, why: str) -> str:
        place = f"{path}.{word}" if word else path
        return f"{self._prefix}the schema of {self._param}, {short(place, 300)}: {why}"


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        return None
    return int(value) if value == int(value) else None


def _is_marked_required(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("required") is True


def _bound_integer(node: Node) -> None:
    """What every reader of JSON can hold: a small model may write digits without end."""
    if node.get("type") != "integer" or "enum" in node or "const" in node:
        return
    low = node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum", node.get("exclusiveMaximum"))
    if high is None and (not isinstance(low, int | float) or low < MAX_INTEGER):
        node["maximum"] = MAX_INTEGER
    if low is None and (not isinstance(high, int | float) or high > -MAX_INTEGER):
        node["minimum"] = -MAX_INTEGER


def _or_null(node: Node) -> Node:
    """What OpenAPI 3.0 calls nullable."""
    if isinstance(node.get("type"), str) and "enum" not in node and "const" not in node:
        return node | {"type": [node["type"], "null"]}
    return {"anyOf": [node, {"type": "null"}]} if node else node


def _same_place(node: object) -> Iterator[str]:
    """Definitions that say something about the very value that `node` is about."""
    unread = [node]
    while unread:
        node = unread.pop()
        if isinstance(node, dict):
            if "$ref" in node:
                yield str(node["$ref"]).rpartition("/")[2]
            unread += [choice for word in CHOICES for choice in node.get(word, ())]


def _parts(value: object) -> Iterator[tuple[int, object]]:
    """A JSON value and all that is in it, each with its depth."""
    unread = [(0, value)]
    while unread:
        depth, part = unread.pop()
        yield depth, part
        if isinstance(part, Mapping):
            unread += [(depth + 1, child) for child in part.values()]
        elif isinstance(part, list | tuple):
            unread += [(depth + 1, child) for child in part]


def _unescaped(step: str) -> str:
    return unquote(step).replace("~1", "/").replace("~0", "~")


def steps_to(root: object, reference: str) -> tuple[str, ...] | None:
    """The names on the way to what a reference means; None where it leads out of the schema."""
    root_id = root.get("$id") if isinstance(root, Mapping) else None
    pointer = reference.removeprefix(root_id) if isinstance(root_id, str) else reference
    if pointer not in ("", "#") and not pointer.startswith("#/"):
        return None
    return tuple(map(_unescaped, pointer.split("/")[1:]))


def target_of(root: object, steps: tuple[str, ...]) -> object:
    """What stands there. Raises `LookupError`."""
    target = root
    for step in steps:
        if isinstance(target, Mapping):
            target = target[step]
        elif isinstance(target, list) and step.isdecimal():
            target = target[int(step)]
        else:
            raise LookupError(step)
    return target


def _path_of(steps: tuple[str, ...]) -> str:
    return ".".join(("$", *steps))


def _kind(value: object) -> str:
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def short(value: object, length: int = 80) -> str:
    text = value if isinstance(value, str) else repr(value) if isinstance(value, bool | int | float) else _kind(value)
    return text if len(text) <= length else f"{text[:length]}…"


def list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else []

"""How a call's arguments are written, as rules of a grammar: JSON, or what some families write instead.

Where strings stand unquoted, what a schema says of their inside is enforced as far as a text can have it: choices,
patterns and lengths are, formats are not, and `notes` says so.
"""

from __future__ import annotations

import json
from typing import Final

from homeai.server.families.syntax import CallSyntax
from homeai.server.lark import Rules
from homeai.server.schema_reader import Node

PLAIN_TYPES: Final = frozenset({"integer", "number", "boolean", "null"})
NAME: Final = "/[A-Za-z0-9_.$-]+/"
ANY: Final = "anything"


def arguments_rule(rules: Rules, schema: Node | bool, syntax: CallSyntax, notes: list[str]) -> str:
    """The name of the rule for a call's arguments; `schema` is enforceable, and of an object."""
    if syntax.arguments == "json":
        return rules.json(schema)
    writer = (_Blocks if syntax.arguments == "xml" else _Braces)(rules, schema, syntax, notes)
    return writer.arguments()


class _Writer:
    def __init__(self, rules: Rules, schema: Node | bool, syntax: CallSyntax, notes: list[str]) -> None:
        self._rules = rules
        self._schema: Node = schema if isinstance(schema, dict) else {}
        self._syntax = syntax
        self._notes = notes
        definitions = self._schema.get("$defs")
        self._definitions: Node = definitions if isinstance(definitions, dict) else {}

    def _resolved(self, node: object) -> Node:
        """A schema itself, where a reference is all that it is. (None leads back to itself.)"""
        while isinstance(node, dict) and node.keys() == {"$ref"}:
            node = self._definitions[str(node["$ref"]).rpartition("/")[2]]
        return node if isinstance(node, dict) else {}

    def _json(self, node: Node) -> str:
        return self._rules.json(node | ({"$defs": self._definitions} if self._definitions else {}))

    def _string(self, node: Node, end: str) -> str:
        """A text that a schema allows, up to and with `end`."""
        rules = self._rules
        pattern, least, most = node.get("pattern"), node.get("minLength", 0), node.get("maxLength")
        for word in ("format", "pattern"):
            if word in node and (word == "format" or "|" in str(pattern)):
                self._notes.append(f"{word} {node[word]} is not enforced in this model's way to write calls")
        if isinstance(pattern, str) and "|" not in pattern:
            return f"{rules.pattern(pattern)} {rules.text(end)}"
        if least or most is not None:
            return f"/(?s:.{{{least},{'' if most is None else most}}})/ {rules.text(end)}"
        return rules.until(end)


class _Blocks(_Writer):
    """`before_key KEY before_value VALUE after_value` for each argument: strings as they are, all else as JSON."""

    def arguments(self) -> str:
        properties, required = self._schema.get("properties"), self._schema.get("required", [])
        assert isinstance(required, list)
        blocks = []
        for name, node in properties.items() if isinstance(properties, dict) else ():
            head = self._rules.text(self._syntax.before_key + name + self._syntax.before_value)
            block = f"{head} {self._value(self._resolved(node))}"
            blocks.append(block if name in required else f"({block})?")
        others = self._schema.get("additionalProperties", True)
        if others is not False:
            before, after = self._rules.text(self._syntax.before_key), self._rules.text(self._syntax.before_value)
            blocks.append(f"({before} {NAME} {after} {self._value(self._resolved(others))})*")
        return self._rules.new(" ".join(blocks))

    def _value(self, node: Node) -> str:
        rules, end = self._rules, self._syntax.after_value
        choices = node.get("enum", [node["const"]] if "const" in node else None)
        if isinstance(choices, list):
            written = [each if isinstance(each, str) else json.dumps(each) for each in choices]
            return rules.new(" | ".join(rules.text(each + end) for each in written))
        types = node.get("type")
        if types == "string":
            return self._string(node, end)
        if types is None or (isinstance(types, list) and "string" in types):
            return rules.until(end)
        return f"{self._json(node)} {rules.text(end)}"


class _Braces(_Writer):
    """`{key:VALUE,key:VALUE}`: names bare, strings between two `quote`s, lists in brackets, all else as JSON."""

    def arguments(self) -> str:
        self._names: dict[str, str] = {}  # of the rules for definitions, which may lead back to themselves
        return self._object(self._schema)

    def _value(self, node: object) -> str:
        if isinstance(node, dict) and node.keys() == {"$ref"}:
            return self._definition(str(node["$ref"]).rpartition("/")[2])
        node = node if isinstance(node, dict) else {}
        choices = node.get("enum", [node["const"]] if "const" in node else None)
        if isinstance(choices, list):
            return self._rules.new(" | ".join(self._rules.text(self._written(each)) for each in choices))
        match node.get("type"):
            case "string":
                return f"{self._rules.text(self._syntax.quote)} {self._string(node, self._syntax.quote)}"
            case "object":
                return self._object(node)
            case "array":
                return self._array(node)
            case str(name) if name in PLAIN_TYPES:
                return self._json(node)
            case list(types) if types:
                return self._rules.new(" | ".join(self._value(node | {"type": name}) for name in types))
        if isinstance(options := node.get("anyOf", node.get("oneOf")), list):
            return self._rules.new(" | ".join(map(self._value, options)))
        return self._anything()

    def _definition(self, name: str) -> str:
        if name not in self._names:
            rule = self._names[name] = self._rules.new("")
            self._rules.add(rule, self._value(self._definitions[name]))
        return self._names[name]

    def _object(self, node: Node) -> str:
        """Properties in their order; a comma stands before each but the first that is there."""
        rules, properties, required = self._rules, node.get("properties"), node.get("required", [])
        assert isinstance(required, list)
        items = list(properties.items()) if isinstance(properties, dict) else []
        others = node.get("additionalProperties", True)
        more = f'{NAME} ":" {self._value(others)}' if others is not False else ""
        after_none = rules.new(f'({more} ("," {more})*)?' if more else "")
        after_some = rules.new(f'("," {more})*' if more else "")
        for name, each in reversed(items):
            pair = f"{rules.text(f'{name}:')} {self._value(each)} {after_some}"
            is_optional = name not in required
            after_none = rules.new(f"{pair} | {after_none}" if is_optional else pair)
            after_some = rules.new(f'"," {pair} | {after_some}' if is_optional else f'"," {pair}')
        return rules.new(f'"{{" {after_none} "}}"')

    def _array(self, node: Node) -> str:
        item = self._value(node.get("items", True))
        least, most = node.get("minItems", 0), node.get("maxItems")
        assert isinstance(least, int)
        if most == 0:
            return '"[" "]"'
        rest = f'("," {item}){{{max(0, least - 1)},{most - 1 if isinstance(most, int) else ""}}}'
        items = f"{item} {rest}"
        return self._rules.new(f'"[" {items if least else f"({items})?"} "]"')

    def _anything(self) -> str:
        if ANY not in self._rules:
            rules, quote = self._rules, self._syntax.quote
            rules.add(ANY, "")
            text = f"{rules.text(quote)} {rules.until(quote)}"
            plain = rules.json({"type": sorted(PLAIN_TYPES)})
            pair = f'{NAME} ":" {ANY}'
            array, braces = f'"[" ({ANY} ("," {ANY})*)? "]"', f'"{{" ({pair} ("," {pair})*)? "}}"'
            rules.add(ANY, f"{text} | {plain} | {array} | {braces}")
        return ANY

    def _written(self, value: object) -> str:
        match value:
            case str():
                return f"{self._syntax.quote}{value}{self._syntax.quote}"
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                return "{" + ",".join(f"{name}:{self._written(each)}" for name, each in value.items()) + "}"
        return json.dumps(value)

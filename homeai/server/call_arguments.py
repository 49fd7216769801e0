"""How a call's arguments are written, as rules of a grammar: JSON, or what some families write instead.

Where strings stand unquoted, what a schema says of their inside is enforced as far as a text can have it: choices,
patterns and lengths are, formats are not, and `notes` says so. What cannot be written at all is refused by its place.
"""

from __future__ import annotations

import json
from typing import Final, NoReturn

from homeai.errors import Unsupported
from homeai.server.branches import WORDS, Branches, as_schema
from homeai.server.conversation import Tool
from homeai.server.families.argument_types import ArgumentTypes, typed
from homeai.server.families.syntax import CallSyntax
from homeai.server.lark import Rules, text_of_pattern
from homeai.server.schema_reader import MAX_INTEGER, TYPES, Node, list_of, short

NAME: Final = "[A-Za-z0-9_.$-]+"
ANY: Final = "anything"
MAX_NESTED: Final = 100
NUMBERS: Final = {"integer": r"-?(0|[1-9][0-9]{0,14})", "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"}
BOUNDS: Final[tuple[Node, ...]] = (
    {},
    {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
)  # none, or those that every integer has
NO_TEXT: Final = {  # unquoted, they would be read as something else
    "null": "null|None",
    "boolean": "true|false|True|False",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?",
    "integer": r"-?(0|[1-9][0-9]*)(\.0+|(\.[0-9]+)?[eE][+\-]?[0-9]+)?",
    "bounded": r"-?[0-9](?s:.*)",
    "array": r"\[(?s:.*)",
    "object": r"\{(?s:.*)",
}


def arguments_rule(rules: Rules, schema: Node | bool, tool: Tool, syntax: CallSyntax, notes: list[str]) -> str:
    """The name of the rule for a call's arguments; `schema` is the tool's, enforceable. Raises `Unsupported`."""
    if syntax.arguments == "json":
        return rules.json(schema)
    writer = (_Blocks if syntax.arguments == "xml" else _Braces)(rules, schema, tool, syntax, notes)
    return writer.arguments()


class _Writer:
    def __init__(self, rules: Rules, schema: Node | bool, tool: Tool, syntax: CallSyntax, notes: list[str]) -> None:
        self._rules = rules
        self._schema: Node = schema if isinstance(schema, dict) else {"type": "object"}
        self._tool = tool
        self._syntax = syntax
        self._notes = notes
        definitions = self._schema.get("$defs")
        self._definitions: Node = definitions if isinstance(definitions, dict) else {}
        self._branches = Branches(self._definitions, self._refuse)

    def _refuse(self, path: str, word: str, why: str) -> NoReturn:
        place = short(f"{path}.{word}" if word else path, 300)
        raise Unsupported(
            f"tool {self._tool.name!r}: the schema of {self._tool.path}, {place}: "
            f"it cannot be enforced in this model's way to write calls: {why}",
            param=self._tool.path,
        )

    def _json(self, node: Node) -> str:
        return self._rules.json(as_schema(node) | ({"$defs": self._definitions} if self._definitions else {}))

    def _text(self, branch: Node, path: str, end: str, *, not_as: frozenset[str] = frozenset()) -> str:
        """A text that a branch allows, up to and with `end`, whose mark it does not hold."""
        if "format" in branch:
            self._notes.append(f"format {branch['format']} is not enforced in this model's way to write calls")
        wanted = []
        for pattern in list_of(branch.get("patterns")):
            text = text_of_pattern(str(pattern))
            if text is None:
                self._refuse(path, "pattern", f"^ or $ inside of {short(str(pattern))}")
            wanted.append(text)
        least, most = branch.get("minLength", 0), branch.get("maxLength")
        assert isinstance(least, int)
        assert most is None or isinstance(most, int)
        unwanted = [rf"\s*({NO_TEXT[name]})\s*" for name in sorted(not_as & NO_TEXT.keys())]
        return self._rules.text_until(end, wanted, unwanted, (least, most))

    def _properties(self, branch: Node, path: str) -> list[tuple[str, object, bool]]:
        """Name, schema and whether it must be there, of those with a name."""
        properties, required = branch.get("properties", {}), list_of(branch.get("required"))
        assert isinstance(properties, dict)
        patterns = branch.get("patternProperties")
        unlisted = [str(name) for name in required if name not in properties]
        if patterns and (properties or unlisted):
            self._refuse(path, "patternProperties", "it stands beside names that are listed")
        others = branch.get("additionalProperties", True)
        for name in (*properties, *unlisted):
            self._check_name(name, f"{path}.properties.{name}")
        return [(name, each, name in required) for name, each in properties.items()] + [
            (name, others, True) for name in unlisted
        ]

    def _others(self, branch: Node, path: str, before: str, after: str) -> list[tuple[str, object, str]]:
        """The rule for a name that is not listed, the schema of its value, and its path."""
        patterns = branch.get("patternProperties", {})
        assert isinstance(patterns, dict)
        listed = [name for name, _, _ in self._properties(branch, path)]
        texts = {pattern: text_of_pattern(pattern) for pattern in patterns}
        found: list[tuple[str, object, str]] = []
        for pattern, text in texts.items():
            if text is None:
                self._refuse(path, "patternProperties", f"^ or $ inside of {short(pattern)}")
            name = self._rules.name(before, NAME, after, wanted=[text])
            found.append((name, patterns[pattern], f"{path}.patternProperties.{pattern}"))
        others = branch.get("additionalProperties", True)
        if others is not False:
            no_others = [text for text in texts.values() if text is not None]
            name = self._rules.name(before, NAME, after, listed=listed, unwanted=no_others)
            found.append((name, others, f"{path}.additionalProperties"))
        return found

    def _check_name(self, name: str, path: str) -> None:
        raise NotImplementedError


def _num_others(branch: Node, num_listed: int, path: str) -> tuple[int, int | None]:
    """How many properties without a name in the schema there may be beside those that must be there."""
    least, most = branch.get("minProperties", 0), branch.get("maxProperties")
    assert isinstance(least, int)
    return max(0, least - num_listed), max(0, most - num_listed) if isinstance(most, int) else None


def _repeat(least: int, most: int | None) -> str:
    return "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"


def _is_bounded(branch: Node) -> bool:
    """A number, within limits of the client's own."""
    is_number = bool({"integer", "number"} & set(map(str, list_of(branch["type"])))) and "enum" not in branch
    return is_number and {word: limit for word, limit in branch.items() if word in WORDS["number"]} not in BOUNDS


class _Blocks(_Writer):
    """`before_key KEY before_value VALUE after_value` for each argument: strings as they are, all else as JSON."""

    def arguments(self) -> str:
        self._types = ArgumentTypes(self._tool.parameters)
        branches = self._branches.of(self._schema, "$", ["object"])
        if not branches or any("enum" in branch for branch in branches):
            self._refuse("$", "enum" if branches else "", "a choice of whole objects" if branches else "nothing fits")
        self._check_same(branches)
        return self._rules.new(" | ".join(self._blocks(branch) for branch in branches))

    def _check_same(self, branches: list[Node]) -> None:
        """Text that may be something else, too, is told apart by what one schema says."""
        seen: dict[str, object] = {}
        for branch in branches:
            for name, node, _ in self._properties(branch, "$"):
                if seen.setdefault(name, node) != node and len(self._types.of(name) | {"string"}) > 1:
                    self._refuse(f"$.properties.{name}", "", "alternatives say different things of it")

    def _blocks(self, branch: Node) -> str:
        rules, syntax = self._rules, self._syntax
        blocks, num_listed = [], 0
        for name, node, is_required in self._properties(branch, "$"):
            value = self._value(node, f"$.properties.{name}", self._types.of(name))
            if not value and is_required:
                self._refuse(f"$.properties.{name}", "", "nothing fits")
            if value:
                block = f"{rules.text(syntax.before_key + name + syntax.before_value)} {value}"
                blocks.append(block if is_required else f"({block})?")
            num_listed += is_required
        others = [
            f"{name} {value}"
            for name, node, path in self._others(branch, "$", syntax.before_key, syntax.before_value)
            if (value := self._value(node, path, self._types.of_others))
        ]
        if others:
            least, most = _num_others(branch, num_listed, "$")
            blocks.append(f"({' | '.join(others)}){_repeat(least, most)}")
        return rules.new(" ".join(blocks))

    def _value(self, node: object, path: str, read_as: frozenset[str]) -> str:
        """ "" where nothing fits. `read_as`: the types that are looked for in the text, none where it stays text."""
        rules, end = self._rules, self._syntax.after_value
        texts = self._branches.of(node, path, ["string"])
        if not texts and isinstance(node, dict) and not ({"enum", "const"} & node.keys()):
            return f"{self._json(node)} {rules.text(end)}"
        if any(branch.keys() == {"type"} for branch in texts) and not read_as:
            return rules.new(rules.text_until(end, [], []))
        others = self._branches.of(node, path, TYPES - {"string"}) if read_as - {"string"} else []
        not_as = read_as | ({"bounded"} if any(_is_bounded(branch) for branch in others) else set())
        ways = [way for branch in texts for way in self._texts(branch, path, read_as, not_as)]
        ways += [way for branch in others for way in self._others_than_text(branch, path, read_as)]
        return rules.new(" | ".join(dict.fromkeys(ways))) if ways else ""

    def _texts(self, branch: Node, path: str, read_as: frozenset[str], not_as: frozenset[str]) -> list[str]:
        if "enum" not in branch:
            return [self._text(branch, path, self._syntax.after_value, not_as=not_as)]
        return self._literals(list_of(branch["enum"]), path, read_as)

    def _literals(self, values: list[object], path: str, read_as: frozenset[str]) -> list[str]:
        end = self._syntax.after_value
        written = []
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            if end.strip() in text:
                self._refuse(path, "enum", f"{short(text)} holds {end.strip()!r}")
            if not read_as or json.loads(typed(text, read_as)) == value:
                written.append(self._rules.text(text + end))
        return written

    def _others_than_text(self, branch: Node, path: str, read_as: frozenset[str]) -> list[str]:
        rules, end = self._rules, self._syntax.after_value
        if "enum" in branch:
            return self._literals(list_of(branch["enum"]), path, read_as)
        ways = []
        for name in list_of(branch["type"]):
            match name:
                case "null":
                    ways.append(rules.text("null" + end))
                case "boolean":
                    ways += [rules.text("true" + end), rules.text("false" + end)]
                case str() if name in NUMBERS and not _is_bounded(branch):
                    ways.append(rules.text_until(end, [NUMBERS[name]], []))
                case _:
                    ways.append(f"{self._json(branch | {'type': name})} {rules.text(end)}")
        return ways

    def _check_name(self, name: str, path: str) -> None:
        end = self._syntax.before_value.split()[0]
        if end in name:
            self._refuse(path, "", f"{end!r} ends a name")


class _Braces(_Writer):
    """`{key:VALUE,key:VALUE}`: names bare, strings between two `quote`s, lists in brackets, all else as JSON."""

    def arguments(self) -> str:
        self._written_nodes: dict[str, str] = {}  # rules by schema, which may lead back to itself
        self._depth = 0
        if not (rule := self._value(self._schema | {"$defs": None}, "$")):
            self._refuse("$", "", "nothing fits")
        return rule

    def _value(self, node: object, path: str) -> str:
        """ "" where nothing fits."""
        key = json.dumps(node)
        if key in self._written_nodes:
            return self._written_nodes[key]
        if self._depth == MAX_NESTED:
            self._refuse(path, "", f"more than {MAX_NESTED} schemas in one another")
        if not (branches := self._branches.of(node, path)):
            return ""
        rule = self._written_nodes[key] = self._rules.new("")
        self._depth += 1
        ways = [way for branch in branches for way in self._ways(branch, path)]
        self._depth -= 1
        self._rules.add(rule, " | ".join(dict.fromkeys(ways)))
        return rule

    def _ways(self, branch: Node, path: str) -> list[str]:
        quote = self._syntax.quote
        if "enum" in branch:
            return [self._literal(value, path) for value in list_of(branch["enum"])]
        if branch == {"type": sorted(TYPES - {"integer"})}:
            return [self._anything()]
        ways = []
        for name in list_of(branch["type"]):
            match name:
                case "string":
                    ways.append(f"{self._rules.text(quote)} {self._text(branch, path, quote)}")
                case "object":
                    ways.append(self._object(branch, path))
                case "array":
                    ways.append(self._array(branch, path))
                case _:
                    words = {word: value for word, value in branch.items() if word in WORDS["number"]}
                    ways.append(self._rules.json({"type": name} | (words if name in NUMBERS else {})))
        return ways

    def _object(self, branch: Node, path: str) -> str:
        """Properties in their order; a comma stands before each but the first that is there."""
        rules, num_listed = self._rules, 0
        others = [
            f"{name} {value}"
            for name, node, place in self._others(branch, path, "", ":")
            if (value := self._value(node, place))
        ]
        listed = self._properties(branch, path)
        least, most = _num_others(branch, sum(is_required for _, _, is_required in listed), path)
        after_none = after_some = rules.new("")
        if others and most != 0:
            more = rules.new(" | ".join(others))
            rest = _repeat(max(0, least - 1), None if most is None else most - 1)
            after_none = rules.new(f'{more} ("," {more}){rest}' + ("" if least else " | "))
            after_some = rules.new(f'("," {more}){_repeat(least, most)}')
        for name, each, is_required in reversed(listed):
            value = self._value(each, f"{path}.properties.{name}")
            if not value and is_required:
                self._refuse(f"{path}.properties.{name}", "", "nothing fits")
            if not value:
                continue
            num_listed += 1
            pair = f"{rules.text(f'{name}:')} {value} {after_some}"
            after_none = rules.new(pair if is_required else f"{pair} | {after_none}")
            after_some = rules.new(f'"," {pair}' if is_required else f'"," {pair} | {after_some}')
        return f'"{{" {after_none} "}}"'

    def _array(self, branch: Node, path: str) -> str:
        rules, first = self._rules, list_of(branch.get("prefixItems"))
        least, most = branch.get("minItems", 0), branch.get("maxItems")
        assert isinstance(least, int)
        items = [self._value(each, f"{path}.prefixItems[{i}]") for i, each in enumerate(first)]
        item = self._value(branch.get("items", True), f"{path}.items")
        num_first = next((i for i, each in enumerate(items) if not each), len(items))
        num_first = min(num_first, most) if isinstance(most, int) else num_first
        if num_first < len(items) or not item:
            most = num_first
        if isinstance(most, int) and most < least:
            self._refuse(path, "minItems", f"{least}, and there are {most} at most")
        if most == 0:
            return '"[" "]"'
        num_more = None if most is None else most - num_first if isinstance(most, int) else None
        if num_first == 0:
            rest = f'("," {item}){_repeat(max(0, least - 1), None if num_more is None else num_more - 1)}'
            return f'"[" {f"{item} {rest}" if least else f"({item} {rest})?"} "]"'
        body = f'("," {item}){_repeat(max(0, least - num_first), num_more)}' if num_more != 0 else '""'
        for i in reversed(range(num_first)):
            comma = '"," ' if i else ""
            body = rules.new(f"{comma}{items[i]} {body}" + ("" if i < least else " | "))
        return f'"[" {body} "]"'

    def _anything(self) -> str:
        if ANY not in self._rules:
            rules, quote = self._rules, self._syntax.quote
            rules.add(ANY, "")
            text = f"{rules.text(quote)} {rules.text_until(quote, [], [])}"
            plain = rules.json({"type": ["boolean", "integer", "null", "number"]})
            pair = f"{rules.name('', NAME, ':')} {ANY}"
            array, braces = f'"[" ({ANY} ("," {ANY})*)? "]"', f'"{{" ({pair} ("," {pair})*)? "}}"'
            rules.add(ANY, f"{text} | {plain} | {array} | {braces}")
        return ANY

    def _literal(self, value: object, path: str) -> str:
        rules, quote = self._rules, self._syntax.quote
        match value:
            case str():
                if quote in value:
                    self._refuse(path, "enum", f"{short(value)} holds {quote!r}")
                return f"{rules.text(quote)} {rules.text(value + quote)}"
            case list():
                items = ' "," '.join(self._literal(each, path) for each in value)
                return f'"[" {items} "]"'
            case dict():
                for name in value:
                    self._check_name(name, path)
                pairs = ' "," '.join(
                    f"{rules.text(f'{name}:')} {self._literal(each, path)}" for name, each in value.items()
                )
                return f'"{{" {pairs} "}}"'
        return rules.text(json.dumps(value))

    def _check_name(self, name: str, path: str) -> None:
        if not name or name != name.strip() or self._syntax.quote in name or any(each in name for each in ",:{}"):
            self._refuse(path, "", "a name has none of , : { } in it, and no blanks around it")

"""A client's JSON schema, read before anything queues: what of it can be enforced, and how.

The engine's own errors name no place. `schema_reader.py` looks at every part by itself, so that a refusal says which
keyword, where, and of which tool; here llguidance has the last word on whether the parts go together.

Four things are narrower than the client's schema, and fit it: objects are closed unless they say otherwise, properties
come in the order in which they are listed, integers have bounds, and white space is at most a blank, or a line end
and its indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.conversation import Schema
from homeai.server.schema_reader import CHOICES, Node, SchemaReader, list_of, short

UNSATISFIABLE: Final = "Unsatisfiable"
MAX_MISTAKE_CHECKS: Final = 300
REMEMBERED: Final = {2_000: 1_024, 200_000: 64}  # characters of a grammar → how many such checks are remembered
NO_ESCAPE: Final = re.compile(r"(?:[^\\]|^)(?:\\\\)*(\\[^\w\s^$\\.*+?()\[\]{}|/-])")
OPTIONS: Final = {"whitespace_pattern": r" |\n {0,32}"}


def enforceable(
    schema: Schema, *, param: str, notes: list[str], what: str = "", is_object: bool = False
) -> Node | bool:
    """The schema as the engine can enforce it, without options of ours.

    `param` is the path of the client's body, `what` says whose schema it is in a message ("tool 'x'"), `is_object`
    that only an object will do; what was relaxed is told to `notes`. Raises `Unsupported` for what cannot be enforced,
    `InvalidRequest` for what is no schema; both name the place and the keyword.
    """
    reader = SchemaReader(schema, param, what, pattern_error)
    node = reader.read()
    notes += reader.relaxed
    prefix = f"{what}: " if what else ""
    if node is False:
        raise Unsupported(f"{prefix}the schema of {param}: nothing fits it", param=param)
    if is_object:
        node = {"type": "object"} | (node if isinstance(node, dict) else {})
        if node["type"] != "object" and "object" not in list_of(node["type"]):
            raise InvalidRequest(f"{prefix}the schema of {param}, $.type: it must be 'object'", param=param)
        node["type"] = "object"
    _check(node, param, prefix, notes)
    return node


def grammar_json(node: Node | bool) -> str:
    """An enforceable schema as text, for `%json` in a grammar. Options come last: llguidance puts the last word in
    their place when it takes them out, and the order of the others is that of the properties they bring."""
    return json.dumps((node if isinstance(node, dict) else {}) | {"x-guidance": OPTIONS})


def grammar_of(node: Node | bool) -> str:
    """A grammar of the engine for JSON that fits an enforceable schema."""
    return f'{{"grammars": [{{"json_schema": {grammar_json(node)}}}]}}'


def fitting(node: Node, values: list[object]) -> list[object]:
    """Those of the values that fit an enforceable schema."""
    matcher = LLMatcher(_bytes(), grammar_of(node), log_level=0)
    fit = []
    for value in values:
        written = list(json.dumps(value, ensure_ascii=False).encode())
        matcher.reset()
        if matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting():
            fit.append(value)
    return fit


@lru_cache(1)
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


# ---- what llguidance says to it -----------------------------------------------------------------------


def pattern_error(pattern: str) -> str:
    """Why a pattern cannot be used, "" if it can. JSON schema's are ECMA-262's with the flag u: there is no `\\!`."""
    if escape := NO_ESCAPE.search(pattern):
        return f"{escape[1]} is no escape of ECMA-262"
    return grammar_error(grammar_of({"type": "string", "pattern": pattern}))


def grammar_error(grammar: str) -> str:
    """One line, empty when there is none. Milliseconds; llguidance bounds its own work."""
    check = next((check for num_chars, check in _REMEMBERING if len(grammar) <= num_chars), _error)
    return check(grammar)


def _error(grammar: str) -> str:
    if "\0" in grammar:
        return "there is a NUL character in it"
    try:
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except UnicodeEncodeError as error:
        return f"character {error.start} is half a character (a lone surrogate)"
    lines = [line for line in map(str.strip, "\n".join(messages).splitlines()) if line]
    if not is_error or not lines:
        return ""
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])


_REMEMBERING: Final = [(num_chars, lru_cache(number)(_error)) for num_chars, number in REMEMBERED.items()]


def _check(node: Node | bool, param: str, prefix: str, notes: list[str]) -> None:
    """What is right by itself may still not go together: llguidance says so, and we find the place."""
    error = grammar_error(grammar_of(node))
    if error.startswith("oneOf"):  # it cannot prove that no value fits two of them
        _relax(node)
        notes.append(f"{prefix}oneOf in the schema of {param} is enforced as anyOf")
        error = grammar_error(grammar_of(node))
    if not error:
        return
    definitions = {"$defs": node["$defs"]} if isinstance(node, dict) and "$defs" in node else {}
    path = "$"
    for number, (place, part) in enumerate(_innermost_first(node)):
        if number == MAX_MISTAKE_CHECKS:
            break
        own = grammar_error(grammar_of(part | definitions))
        if own == error or (own.startswith(UNSATISFIABLE) and error.startswith(UNSATISFIABLE)):
            path, error = place, own
            break
    raise Unsupported(f"{prefix}the schema of {param}, {short(path, 300)}: {error}", param=param)


def _relax(node: Node | bool) -> None:
    for _, part in _innermost_first(node):
        if "oneOf" in part:
            choices = {"anyOf": part.pop("oneOf")}
            if "anyOf" in part:
                part["allOf"] = [*list_of(part.get("allOf")), choices]
            else:
                part |= choices


def _innermost_first(node: object, path: str = "$") -> Iterator[tuple[str, Node]]:
    """A schema and those in it, each after what it is made of."""
    if not isinstance(node, dict):
        return
    for word in ("properties", "patternProperties", "$defs"):
        named = node.get(word)
        if isinstance(named, dict):
            for name, each in named.items():
                yield from _innermost_first(each, f"{path}.{word}.{name}")
    for word in (*CHOICES, "prefixItems"):
        for i, each in enumerate(list_of(node.get(word))):
            yield from _innermost_first(each, f"{path}.{word}[{i}]")
    for word in ("items", "additionalProperties"):
        yield from _innermost_first(node.get(word), f"{path}.{word}")
    yield path, node

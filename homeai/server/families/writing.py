"""Calls as a model of a family writes them: for histories and instructions that a template does not write itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from homeai.server.conversation import ToolCall
from homeai.server.families.syntax import CallSyntax


def write_calls(syntax: CallSyntax, calls: Sequence[ToolCall]) -> str:
    written = syntax.separator.join(_call(syntax, call) for call in calls)
    return syntax.begin + written + syntax.end


def _call(syntax: CallSyntax, call: ToolCall) -> str:
    arguments = _ARGUMENTS[syntax.arguments](syntax, call.arguments)
    return syntax.before_name + call.name + syntax.before_arguments + arguments + syntax.after_arguments


def _json(syntax: CallSyntax, arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _blocks(syntax: CallSyntax, arguments: Mapping[str, object]) -> str:
    return "".join(
        syntax.before_key + key + syntax.before_value + _text_or_json(value) + syntax.after_value
        for key, value in arguments.items()
    )


def _text_or_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _gemma(syntax: CallSyntax, value: object) -> str:
    if isinstance(value, str):
        return syntax.quote + value + syntax.quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma(syntax, item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_gemma(syntax, item) for item in value) + "]"
    return json.dumps(value)


_ARGUMENTS = {"json": _json, "xml": _blocks, "gemma": _gemma}

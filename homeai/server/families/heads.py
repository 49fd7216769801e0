"""Where a call begins, and whose: the text in front of its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from homeai.server.conversation import Tool
from homeai.server.families.arguments import NO_ARGUMENTS, is_object
from homeai.server.families.cursor import Cursor, Mismatch, Unfinished
from homeai.server.families.syntax import CallSyntax

NAME_KEYS: Final = ("name", "tool_name")
ARGUMENTS_KEYS: Final = ("arguments", "parameters")
OTHER_KEYS: Final = ("id", "tool_call_id", "type")
_JOINTS: Final = re.compile(r"\]|```|[^\]`\s]+")  # what stands behind a call, bit by bit: models leave some out
FUNCTION_KEY: Final = "function"  # {"type": "function", "function": {"name": …}}


class Head(NamedTuple):
    """A call of `tool`: its arguments begin at `end`.

    `arguments` are they, where they are known already; then `end` is behind them. `depth` objects are open there.
    """

    tool: Tool
    end: int
    arguments: str | None = None
    depth: int = 0


class HeadReader:
    """Reads the heads of one syntax. Calls that are `{"name": …, "arguments": …}` may have their keys in any order."""

    def __init__(self, syntax: CallSyntax, tools: Mapping[str, Tool]) -> None:
        self.syntax = syntax
        self._tools = tools
        self._names = sorted(tools, key=len, reverse=True)  # of two that begin alike the longer one is meant
        wrapper, brace, _key = syntax.before_name.partition('{"name"')
        self._is_object = bool(brace)
        self._before = wrapper if self._is_object else syntax.before_name
        self.stands_alone = not (syntax.begin + self._before).strip()  # nothing marks it but its shape
        close = syntax.after_arguments.lstrip("}") if self._is_object else syntax.after_arguments
        self.joints = _JOINTS.findall(f"{close} {syntax.separator} {syntax.end}")
        self.first = (syntax.begin + self._before).strip()[:1] or "{"

    def read(self, text: str, at: int, *, goes_on: bool = False) -> Head:
        """`goes_on`: after a call, where `begin` is not written again. Raises `Mismatch`, `Unfinished`."""
        cursor = Cursor(text, at)
        cursor.literal(self._before if goes_on else self.syntax.begin + self._before)
        return self._read_object(cursor) if self._is_object else self._read_name(cursor)

    # ---- NAME between two texts ---------------------------------------------------------------------

    def _read_name(self, cursor: Cursor) -> Head:
        start, is_unfinished = cursor.at, False
        for name in self._names:
            cursor.at = start
            try:
                cursor.exactly(name)
                cursor.literal(self.syntax.before_arguments)
                return self._before_its_arguments(self._tools[name], cursor)
            except Unfinished:
                is_unfinished = True
            except Mismatch:
                continue
        raise Unfinished if is_unfinished else Mismatch

    def _before_its_arguments(self, tool: Tool, cursor: Cursor) -> Head:
        if self.syntax.arguments == "xml":
            return self._before_blocks(tool, cursor)
        cursor.space()
        if cursor.peek() == "{":
            return Head(tool, cursor.at)
        if self.syntax.after_arguments:
            cursor.literal(self.syntax.after_arguments)
            return Head(tool, cursor.at, NO_ARGUMENTS)
        raise Mismatch

    def _before_blocks(self, tool: Tool, cursor: Cursor) -> Head:
        end = cursor.at
        cursor.space()
        key, after = self.syntax.before_key, self.syntax.after_arguments.split()[0]
        for text in (key, after):
            if cursor.text.startswith(text, cursor.at):
                return Head(tool, end)
        rest = cursor.text[cursor.at : cursor.at + max(len(key), len(after))]
        raise Unfinished if key.startswith(rest) or after.startswith(rest) else Mismatch

    # ---- a JSON object ------------------------------------------------------------------------------

    def _read_object(self, cursor: Cursor) -> Head:
        cursor.space()
        cursor.exactly("{")
        depth = 1
        tool: Tool | None = None
        arguments: str | None = None
        while True:
            cursor.space()
            if cursor.peek() == "}":
                cursor.at += 1
                depth -= 1
                if tool is None:
                    raise Mismatch
                return self._whole(tool, arguments or NO_ARGUMENTS, cursor.at, depth)
            key = cursor.string()
            self._colon(cursor)
            if key in NAME_KEYS or (key == FUNCTION_KEY and cursor.peek() == '"'):
                tool = self._tool(cursor.string())
            elif key == FUNCTION_KEY and cursor.peek() == "{" and depth == 1:
                cursor.at += 1
                depth += 1
                continue
            elif key in ARGUMENTS_KEYS and tool is not None:
                if cursor.peek() == "{":
                    return Head(tool, cursor.at, depth=depth)
                arguments = self._decoded(cursor.value())
                return self._whole(tool, arguments, cursor.at, depth)
            elif key in ARGUMENTS_KEYS:
                arguments = self._decoded(cursor.value())
            elif key in OTHER_KEYS or not self.stands_alone:
                cursor.value()
            else:
                raise Mismatch
            self._comma(cursor)
            if tool is not None and arguments is not None:
                return self._whole(tool, arguments, cursor.at, depth)

    def _tool(self, name: str) -> Tool:
        if name not in self._tools:
            raise Mismatch
        return self._tools[name]

    def _whole(self, tool: Tool, arguments: str, end: int, depth: int) -> Head:
        if not is_object(arguments):
            raise Mismatch
        return Head(tool, end, arguments, depth)

    def _colon(self, cursor: Cursor) -> None:
        cursor.space()
        cursor.exactly(":")
        cursor.space()
        cursor.peek()

    def _comma(self, cursor: Cursor) -> None:
        """Behind a member: a comma is skipped, the end of the object left for the loop."""
        cursor.space()
        if cursor.peek() == ",":
            cursor.at += 1
        elif cursor.peek() != "}":
            raise Mismatch

    def _decoded(self, value: str) -> str:
        """Some models write the object as text, or null for none."""
        if value == "null":
            return NO_ARGUMENTS
        if value.startswith('"'):
            decoded = json.loads(value, strict=False)
            return str(decoded) if str(decoded).strip() else NO_ARGUMENTS
        return value

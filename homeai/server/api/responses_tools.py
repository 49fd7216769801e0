"""Tools of the Responses API: functions, texts written for a tool ("custom"), and functions in namespaces.

To the model all of them are functions: a custom tool is one with a single text, and a namespace is the beginning of
its functions' names. What OpenAI's servers, or only its models, could run is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import Body
from homeai.server.api.choices import check_choice, check_names
from homeai.server.api.fields import Name
from homeai.server.api.notes import add_note
from homeai.server.api.openai_tools import MAX_TOOLS, MODES, ToolName
from homeai.server.conversation import Tool, ToolChoice

TEXT: Final = "input"  # the one argument of a custom tool
TEXT_SCHEMA: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {TEXT: {"type": "string"}},
    "required": [TEXT],
    "additionalProperties": False,
}
BETWEEN: Final = "__"


def full_name(name: str, namespace: str | None) -> str:
    """What the model calls a function of a namespace."""
    if namespace is None:
        return name
    return f"{namespace}{name}" if namespace.endswith(BETWEEN) else f"{namespace}{BETWEEN}{name}"


def text_arguments(text: str) -> dict[str, object]:
    """Of a call of a custom tool."""
    return {TEXT: text}


class ToolBody(Body):
    """Any tool; whole, because an answer repeats what it was given."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    type: Name
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    format: dict[str, object] | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None

    @property
    def as_sent(self) -> dict[str, object]:
        """With the fields that every function has."""
        fields = self.model_dump(exclude_unset=True)
        return {"description": None, "parameters": None, "strict": True} | fields if self.type == "function" else fields


Tools = Annotated[list[ToolBody], Field(fail_fast=True, max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool as the model sees it, and what its client calls it."""

    tool: Tool
    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What may be called."""

    declared: tuple[Declared, ...]
    choice: ToolChoice

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(declared.tool for declared in self.declared)

    def find(self, name: str) -> Declared:
        """By the model's name for it. One that was never declared is a function."""
        found = (declared for declared in self.declared if declared.tool.name == name)
        return next(found, Declared(Tool(name), "function", name))


def toolbox(tools: Sequence[ToolBody], choice: object, notes: list[str]) -> Toolbox:
    """Raises `InvalidRequest` naming the field. `notes` gains what was skipped."""
    declared = [each for index, tool in enumerate(tools) for each in _declared(tool, f"tools[{index}]", None, notes)]
    check_names([each.tool for each in declared], "tools")
    box = _chosen(tuple(declared), choice)
    check_choice(box.choice, box.tools, "tool_choice")
    return box


def _declared(tool: ToolBody, path: str, namespace: str | None, notes: list[str]) -> Iterator[Declared]:
    match tool.type:
        case "function" | "custom" | "namespace" if tool.name is None:
            raise InvalidRequest(f"{path}.name: field required", param=f"{path}.name")
        case "function":
            assert tool.name is not None
            path = f"{path}.parameters"
            name, description = full_name(tool.name, namespace), tool.description or ""
            plain = Tool(name, description, path=path)
            if tool.parameters is not None:
                plain = Tool(name, description, tool.parameters, path)
            yield Declared(plain, "function", tool.name, namespace)
        case "custom":
            assert tool.name is not None
            name = full_name(tool.name, namespace)
            yield Declared(Tool(name, _explained(tool), TEXT_SCHEMA, path), "custom", tool.name, namespace)
        case "namespace" if namespace is None:
            for index, inner in enumerate(tool.tools or ()):
                yield from _declared(inner, f"{path}.tools[{index}]", tool.name, notes)
        case _:
            note = f"tools of type {tool.type!r} were skipped"
            add_note(notes, note)


def _explained(tool: ToolBody) -> str:
    """A custom tool's grammar is told, not enforced: its text stands in a JSON string."""
    texts = [tool.description or ""]
    if tool.format is not None and isinstance(definition := tool.format.get("definition"), str):
        texts.append(f"The text must follow this {tool.format.get('syntax', '')} grammar:\n{definition}")
    return "\n\n".join(filter(None, texts))


def _chosen(declared: tuple[Declared, ...], choice: object) -> Toolbox:
    if choice is None:
        return Toolbox(declared, ToolChoice())
    if isinstance(choice, str) and choice in MODES:
        return Toolbox(declared, MODES[choice])
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _allowed(declared, choice)
        if (name := _name(choice)) is not None:
            return Toolbox(declared, ToolChoice("required", name))
        if isinstance(kind := choice.get("type"), str):
            raise Unsupported(f"tool_choice asks for {kind!r:.80}, which this server cannot run", param="tool_choice")
    raise InvalidRequest(
        "tool_choice is one of 'none', 'auto', 'required', or names a tool, as in "
        f"{{'type': 'function', 'name': …}}; not {choice!r:.80}",
        param="tool_choice",
    )


def _allowed(declared: tuple[Declared, ...], choice: Mapping[str, object]) -> Toolbox:
    """`{"type": "allowed_tools", "mode": …, "tools": […]}`: these of the declared, and no other."""
    mode, listed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise InvalidRequest("tool_choice has a mode, 'auto' or 'required', and a list of tools", param="tool_choice")
    names = [_allowed_name(tool) for tool in listed]
    for name in filter(None, names):
        check_choice(ToolChoice("auto", name), [each.tool for each in declared], "tool_choice")
    allowed = tuple(each for each in declared if each.tool.name in names)
    return Toolbox(allowed, MODES[str(mode)])


def _allowed_name(tool: object) -> str | None:
    """None for one that this server skips."""
    name = _name(tool) if isinstance(tool, dict) else None
    if name is None and (not isinstance(tool, dict) or tool.get("type") in ("function", "custom", None)):
        raise InvalidRequest(f"tool_choice allows {tool!r:.80}, which names no tool", param="tool_choice")
    return name


def _name(choice: Mapping[str, object]) -> str | None:
    name, namespace = choice.get("name"), choice.get("namespace")
    if choice.get("type") not in ("function", "custom") or not isinstance(name, str):
        return None
    return full_name(name, namespace if isinstance(namespace, str) else None)

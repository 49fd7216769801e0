"""Which functions the assistant may call, and whether it must: `tools`, and `functions` as they were before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import Body
from homeai.server.api.choices import check_names
from homeai.server.api.fields import Name
from homeai.server.conversation import Tool, ToolChoice

MAX_TOOLS: Final = 1024
MODES: Final = {
    "none": ToolChoice("none"),
    "auto": ToolChoice("auto"),
    "required": ToolChoice("required"),
    "any": ToolChoice("required"),  # Mistral's clients say it so
}

TOOL_NAME: Final = r"^[\w.:/-]{1,128}$"
ToolName = Annotated[str, Field(pattern=TOOL_NAME)]


class Function(Body):
    """`strict` is always so: a call's arguments fit their schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, object] | None = None

    def plain(self, path: str) -> Tool:
        description = self.description or ""
        if self.parameters is None:
            return Tool(self.name, description, path=path)
        return Tool(self.name, description, self.parameters, path)


class DeclaredTool(Body):
    type: Name | None = None
    function: Function | None = None

    def plain(self, path: str) -> Tool:
        """A custom tool takes text that no schema describes: refused, as are the services of others."""
        if self.type not in (None, "function"):
            raise Unsupported(f"{path}: tools of type {self.type!r} are not supported; only 'function'", param=path)
        if self.function is None:
            raise InvalidRequest(f"{path}.function: field required", param=f"{path}.function")
        return self.function.plain(path)


Tools = Annotated[list[DeclaredTool], Field(fail_fast=True, max_length=MAX_TOOLS)]
Functions = Annotated[list[Function], Field(fail_fast=True, max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What may be called. `tools` are those allowed."""

    tools: tuple[Tool, ...]
    choice: ToolChoice


def toolbox(declared: Sequence[DeclaredTool | Function], choice: object, *, kind: str, choice_name: str) -> Toolbox:
    """`kind` and `choice_name` are the body's fields. Raises `InvalidRequest`, which names one of them."""
    tools = tuple(tool.plain(f"{kind}[{index}]") for index, tool in enumerate(declared))
    check_names(tools, kind)
    box = Toolbox(tools, _choice(choice, choice_name)) if not _allows_some(choice) else _allowed(tools, choice)
    if box.choice.mode == "required" and not tools:
        raise InvalidRequest(f"{choice_name} asks for a call, but {kind} declares nothing to call", param=choice_name)
    if box.choice.name is not None:
        _check_is_declared(box.choice.name, tools, choice_name)
    return box


def _choice(choice: object, field: str) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str) and choice in MODES:
        return MODES[choice]
    name = _name(choice)
    if name is None:
        raise InvalidRequest(
            f"{field} is one of 'none', 'auto', 'required', or names a function, "
            f"as in {{'type': 'function', 'function': {{'name': …}}}}; not {choice!r:.80}",
            param=field,
        )
    return ToolChoice("required", name)


def _name(choice: object) -> str | None:
    """Of `{"type": "function", "function": {"name": …}}`; of a legacy `{"name": …}` too."""
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _allows_some(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def _allowed(tools: tuple[Tool, ...], choice: object) -> Toolbox:
    """`{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`: these of the declared, and no other."""
    assert isinstance(choice, dict)
    inner = choice.get("allowed_tools", choice)
    mode, listed = (inner.get("mode", "auto"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise InvalidRequest(
            "tool_choice.allowed_tools has a mode, 'auto' or 'required', and a list of tools", param="tool_choice"
        )
    names = [_name(tool) for tool in listed]
    for name in names:
        _check_is_declared(name, tools, "tool_choice")
    return Toolbox(tuple(tool for tool in tools if tool.name in names), MODES[mode if names else "none"])


def _check_is_declared(name: str | None, tools: Sequence[Tool], field: str) -> None:
    if name not in (declared := [tool.name for tool in tools]):
        shown = ", ".join(map(repr, declared[:8])) or "none"
        raise InvalidRequest(f"{field} names {name!r:.80}, which is not declared; declared: {shown}", param=field)

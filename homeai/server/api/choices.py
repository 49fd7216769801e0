"""Whether tools can be told apart, and a choice of them can be kept, whatever the API it came through."""

from __future__ import annotations

from collections.abc import Sequence

from homeai.errors import InvalidRequest
from homeai.server.conversation import Tool, ToolChoice


def check_names(tools: Sequence[Tool], field: str) -> None:
    """Raises `InvalidRequest` for two tools of one name: which of them is called, nobody could say."""
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequest(f"{field} declares {tool.name!r} more than once", param=field)
        seen.add(tool.name)


def check_choice(choice: ToolChoice, tools: Sequence[Tool], field: str) -> None:
    """Raises `InvalidRequest` where `field` asks for a call that nothing declares."""
    names = [tool.name for tool in tools]
    if choice.mode == "required" and not names:
        raise InvalidRequest(f"{field} asks for a call, but no tool is declared", param=field)
    if choice.name is not None and choice.name not in names:
        shown = ", ".join(map(repr, names[:8]))
        raise InvalidRequest(f"{field} names {choice.name!r}, which is not declared; declared: {shown}", param=field)

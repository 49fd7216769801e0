"""Whether a choice of tools can be kept, whatever the API it came through."""

from __future__ import annotations

from collections.abc import Sequence

from homeai.errors import InvalidRequest
from homeai.server.conversation import Tool, ToolChoice


def check_choice(choice: ToolChoice, tools: Sequence[Tool], field: str) -> None:
    """Raises `InvalidRequest` where `field` asks for a call that nothing declares."""
    names = [tool.name for tool in tools]
    if choice.mode == "required" and not names:
        raise InvalidRequest(f"{field} asks for a call, but no tool is declared", param=field)
    if choice.name is not None and choice.name not in names:
        shown = ", ".join(map(repr, names[:8]))
        raise InvalidRequest(f"{field} names {choice.name!r}, which is not declared; declared: {shown}", param=field)

"""Whether the model thinks before it answers, and where its thoughts go, in the many words clients have for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from homeai.errors import InvalidRequest
from homeai.server.api.body import Body, Integer

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ReasoningFormat = Literal["auto", "deepseek", "none"]
"""llama-server's: thoughts in a field of their own, or, with "none", in the text as the model wrote them."""

LEVELS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
SWITCH: Final = "enable_thinking"  # of most templates


class ReasoningWish(Body):
    """OpenRouter's object, which has OpenAI's `effort` in it."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Integer | None = None


def thinking(
    effort: Effort | None, wish: ReasoningWish, template_arguments: Mapping[str, object], budget: int | None
) -> tuple[bool | None, str | None]:
    """Whether to think, None as usual, and how much. Raises `InvalidRequest`.

    1. An effort: "none" is not to think.
    2. The template's own switch.
    3. A budget of 0 tokens, or `enabled`.
    """
    level = effort or wish.effort
    if level is not None:
        return level != "none", LEVELS.get(level)
    switch = template_arguments.get(SWITCH)
    if switch is not None:
        if not isinstance(switch, bool):
            raise InvalidRequest(
                f"chat_template_kwargs.{SWITCH} is true or false, not {switch!r:.80}",
                param=f"chat_template_kwargs.{SWITCH}",
            )
        return switch, None
    return (False if budget == 0 else wish.enabled), None

"""Text of an answer → its parts, while it comes: reasoning, text, calls of tools.

Where the pieces of text are cut makes no difference. Held back is only what may become a mark.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from homeai.server.conversation import Tool
from homeai.server.families.channels import Channels
from homeai.server.families.syntax import ReplyFormat
from homeai.server.families.tagged import Tagged
from homeai.server.parts import Content, Part, Reasoning


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class AnswerParser:
    """Reads one answer. What looks like a call but is none (no such tool, no JSON) comes out as text.

    `tools`: those that may be called; without any no calls are looked for. `begins_in_reasoning`: the prompt ended
    inside it. `hides_reasoning`: nobody wants it, though the model may reason all the same. Never raises, whatever the
    model writes.
    """

    def __init__(
        self,
        format: ReplyFormat,
        tools: Sequence[Tool] = (),
        *,
        begins_in_reasoning: bool = False,
        hides_reasoning: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._machine = (
            Channels(tools, new_call_id)
            if format.text_begin
            else Tagged(format, tools, begins_in_reasoning, new_call_id)
        )
        self._hides_reasoning = hides_reasoning
        self._is_plain = not (format.text_begin or format.reasoning or tools)

    def push(self, text: str) -> list[Part]:
        """The parts that this text completes, adds to or begins."""
        if self._is_plain:
            return [Content(text)] if text else []
        return self._shown(self._machine.push(text))

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The answer is over: what was held back. `is_cut`: by its token limit, so that a call may be unfinished."""
        return [] if self._is_plain else self._shown(self._machine.finish(is_cut))

    def _shown(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not isinstance(part, Reasoning)] if self._hides_reasoning else parts

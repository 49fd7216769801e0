"""A choice as a whole: what all of its pieces come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from homeai.request import FinishReason, SampledToken
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.reply import Piece


@dataclass(slots=True)
class Call:
    """A call of a tool; `arguments` is JSON text, an object once the call is `complete`."""

    call_id: str
    name: str
    arguments: str = ""
    is_complete: bool = False


@dataclass(slots=True)
class Result:
    """`finish_reason` counts once the last piece was added."""

    content: str = ""
    reasoning: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.STOP
    _calls: list[Call] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        for part in piece.parts:
            self._add_part(part)
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason or self.finish_reason

    @property
    def calls(self) -> list[Call]:
        """Those that are whole: half a call is never acted upon."""
        return [call for call in self._calls if call.is_complete]

    def _add_part(self, part: Part) -> None:
        match part:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallStart(_, call_id, name):
                self._calls.append(Call(call_id, name))
            case CallArguments(call, text):
                self._calls[call].arguments += text
            case CallEnd(call):
                self._calls[call].is_complete = True

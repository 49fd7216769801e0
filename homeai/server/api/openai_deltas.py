"""An answer's parts in the words of chat completions: deltas of a stream, the message of a whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from homeai.request import FinishReason
from homeai.server.api.respond import Value
from homeai.server.families.arguments import NO_ARGUMENTS
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.result import Call, Result

REASONS: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}

Thoughts = Literal["apart", "inline", "hidden"]
"""Where reasoning goes: into fields of its own, into the text between two tags, or nowhere."""

BEGIN_THOUGHTS, END_THOUGHTS = "<think>", "</think>"


def finish_reason(reason: FinishReason, *, has_calls: bool, is_legacy: bool) -> str:
    """`has_calls`: whole ones. An answer that was cut is "length", whatever it holds."""
    if reason is not FinishReason.STOP or not has_calls:
        return REASONS[reason]
    return "function_call" if is_legacy else "tool_calls"


def message(result: Result, thoughts: Thoughts, *, is_legacy: bool) -> Value:
    """The assistant's message, whole. `content` is null where there are calls and no text."""
    content = result.content
    if thoughts == "inline" and result.reasoning:
        content = f"{BEGIN_THOUGHTS}{result.reasoning}{END_THOUGHTS}{content}"
    told: Value = {"role": "assistant", "content": content or (None if result.calls else "")}
    if thoughts == "apart" and result.reasoning:
        told |= _thought(result.reasoning)
    if result.calls and is_legacy:
        told["function_call"] = _function(result.calls[0])
    elif result.calls:
        told["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": _function(call)} for call in result.calls
        ]
    return told


def _function(call: Call) -> Value:
    return {"name": call.name, "arguments": call.arguments or NO_ARGUMENTS}


def _thought(text: str) -> Value:
    """llama-server's name and the one that vLLM, Ollama and OpenRouter have."""
    return {"reasoning_content": text, "reasoning": text}


class ChatDeltas:
    """The deltas of one choice, one call in each. The role is part of the first.

    Home Assistant takes the role only from a delta without calls: in front of a call it comes alone.
    """

    def __init__(self, thoughts: Thoughts = "apart", *, is_legacy: bool = False) -> None:
        self._thoughts = thoughts
        self._is_legacy = is_legacy
        self._has_role = False
        self._is_thinking = False
        self._lacks_arguments = False  # the call that is open
        self.has_calls = False  # whole ones

    def of(self, parts: Sequence[Part], *, is_last: bool = False) -> Iterator[Value]:
        """`is_last`: nothing follows, so the role comes now if it never did."""
        for part in parts:
            yield from self._of(part)
        if is_last and self._is_thinking:
            yield from self._text("")
        elif is_last and not self._has_role:
            yield self._with_role({"content": ""})

    def _of(self, part: Part) -> Iterator[Value]:
        match part:
            case Content(text):
                yield from self._text(text)
            case Reasoning(text):
                yield from self._reasoning(text)
            case CallStart(call, call_id, name):
                self._lacks_arguments = True
                if not self._has_role:
                    yield self._with_role({"content": None})
                begun: Value = {"name": name, "arguments": ""}
                yield from self._call({"index": call, "id": call_id, "type": "function", "function": begun})
            case CallArguments(call, text):
                self._lacks_arguments = False
                yield from self._call({"index": call, "function": {"arguments": text}})
            case CallEnd(call):
                self.has_calls = True
                if self._lacks_arguments:
                    yield from self._call({"index": call, "function": {"arguments": NO_ARGUMENTS}})

    def _text(self, text: str) -> Iterator[Value]:
        if self._is_thinking:
            self._is_thinking = False
            text = END_THOUGHTS + text
        yield self._with_role({"content": text})

    def _reasoning(self, text: str) -> Iterator[Value]:
        if self._thoughts == "apart":
            yield self._with_role(_thought(text))
        elif self._thoughts == "inline":
            text = text if self._is_thinking else BEGIN_THOUGHTS + text
            self._is_thinking = True
            yield self._with_role({"content": text})

    def _call(self, call: Value) -> Iterator[Value]:
        if not self._is_legacy:
            yield {"tool_calls": [call]}
        elif call["index"] == 0:  # there is room for one
            yield {"function_call": call["function"]}

    def _with_role(self, delta: Value) -> Value:
        if self._has_role:
            return delta
        self._has_role = True
        return {"role": "assistant"} | delta

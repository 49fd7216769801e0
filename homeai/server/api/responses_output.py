"""The items of an answer of the Responses API as they grow: what each looks like, and the events of its growth.

An event is a name and its fields; whoever sends it adds the places (`output_index`, `sequence_number`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from homeai.server.api.respond import Value
from homeai.server.api.responses_tools import TEXT, Declared

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"


class Event(NamedTuple):
    name: str
    fields: Value


class OutputItem:
    """Begun, grown, and ended once. `item_id` is its own, and in every event about it."""

    prefix: str

    def __init__(self, item_id: str) -> None:
        self.item_id = f"{self.prefix}_{item_id}"

    def value(self, status: str) -> Value:
        """The item as it is now."""
        raise NotImplementedError

    def begin(self) -> Iterator[Event]:
        yield Event("response.output_item.added", {"item": self.value(IN_PROGRESS)})

    def grow(self, text: str) -> Iterator[Event]:
        raise NotImplementedError

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        yield Event("response.output_item.done", {"item": self.value(status)})

    def _event(self, name: str, /, **fields: object) -> Event:
        return Event(name, {"item_id": self.item_id} | fields)


class MessageOutput(OutputItem):
    """The answer's text, in one part."""

    prefix = "msg"

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._text = ""
        self._logprobs: list[Value] = []
        self._has_part = False

    def value(self, status: str) -> Value:
        content = [self._part()] if self._has_part else []
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        self._has_part = True
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def grow(self, text: str, logprobs: Sequence[Value] = ()) -> Iterator[Event]:
        self._text += text
        self._logprobs += logprobs
        yield self._event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        yield self._event("response.output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
        yield self._event("response.content_part.done", content_index=0, part=self._part())
        yield from super().end(status)

    def _part(self) -> Value:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}


class ReasoningOutput(OutputItem):
    """The model's thoughts, as they are."""

    prefix = "rs"

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._text = ""
        self._has_part = False

    def value(self, status: str) -> Value:
        parts = [self._part()] if self._has_part else []
        return self._item(status) | {"content": parts}

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        self._has_part = True
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def grow(self, text: str) -> Iterator[Event]:
        self._text += text
        yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        yield self._event("response.reasoning_text.done", content_index=0, text=self._text)
        yield self._event("response.content_part.done", content_index=0, part=self._part())
        yield from super().end(status)

    def _part(self) -> Value:
        return {"type": "reasoning_text", "text": self._text}

    def _item(self, status: str) -> Value:
        return {"id": self.item_id, "type": "reasoning", "status": status, "summary": [], "encrypted_content": None}


class SummaryOutput(ReasoningOutput):
    """The same thoughts for those who asked for a summary of them, and read nothing else."""

    def value(self, status: str) -> Value:
        parts = [self._part()] if self._has_part else []
        return self._item(status) | {"summary": parts}

    def begin(self) -> Iterator[Event]:
        yield from OutputItem.begin(self)
        self._has_part = True
        yield self._event("response.reasoning_summary_part.added", summary_index=0, part=self._part())

    def grow(self, text: str) -> Iterator[Event]:
        self._text += text
        yield self._event("response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        yield self._event("response.reasoning_summary_text.done", summary_index=0, text=self._text)
        yield self._event("response.reasoning_summary_part.done", summary_index=0, part=self._part())
        yield from OutputItem.end(self, status)

    def _part(self) -> Value:
        return {"type": "summary_text", "text": self._text}


class FunctionOutput(OutputItem):
    """A call of a function. Only a whole one is ended: clients act upon its end."""

    prefix = "fc"

    def __init__(self, item_id: str, call_id: str, declared: Declared) -> None:
        super().__init__(item_id)
        self._arguments = ""
        self._call_id = call_id
        self._declared = declared

    def value(self, status: str) -> Value:
        return self._item("function_call", status) | {"arguments": self._arguments}

    def grow(self, text: str) -> Iterator[Event]:
        self._arguments += text
        yield self._event("response.function_call_arguments.delta", delta=text)

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        name = self._declared.name
        yield self._event("response.function_call_arguments.done", name=name, arguments=self._arguments)
        yield from super().end(status)

    def _item(self, kind: str, status: str) -> Value:
        item: Value = {
            "id": self.item_id,
            "type": kind,
            "status": status,
            "call_id": self._call_id,
            "name": self._declared.name,
        }
        return item if self._declared.namespace is None else item | {"namespace": self._declared.namespace}


class CustomOutput(FunctionOutput):
    """A call of a custom tool: its text comes out of the one argument once that is whole."""

    prefix = "ctc"

    def __init__(self, item_id: str, call_id: str, declared: Declared) -> None:
        super().__init__(item_id, call_id, declared)
        self._input = ""

    def value(self, status: str) -> Value:
        return self._item("custom_tool_call", status) | {"input": self._input}

    def grow(self, text: str) -> Iterator[Event]:
        self._arguments += text
        yield from ()

    def end(self, status: str = COMPLETED) -> Iterator[Event]:
        self._input = str(msgspec.json.decode(self._arguments, type=dict[str, object]).get(TEXT, ""))
        yield self._event("response.custom_tool_call_input.delta", delta=self._input)
        yield self._event("response.custom_tool_call_input.done", input=self._input)
        yield from OutputItem.end(self, status)

"""The calls of one answer: counted, and whole or not."""

from __future__ import annotations

from collections.abc import Callable

from homeai.server.families.arguments import NO_ARGUMENTS, Arguments, is_object
from homeai.server.parts import CallArguments, CallEnd, CallStart, Part


class Calls:
    """Writes the parts of calls, one call after the other, to `out`."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._num_calls = 0
        self._arguments: Arguments | None = None
        self._written: list[str] = []

    def begin(self, name: str, arguments: Arguments, out: list[Part]) -> None:
        """Its arguments follow, to `read`."""
        out.append(CallStart(self._num_calls, self._new_call_id(), name))
        self._num_calls += 1
        self._arguments, self._written = arguments, []

    def read(self, text: str, out: list[Part]) -> tuple[int, bool]:
        """How much of `text` were arguments, and whether they end there."""
        assert self._arguments is not None, "no call has begun"
        json_text, end, is_over = self._arguments.read(text)
        if json_text:
            self._written.append(json_text)
            out.append(CallArguments(self._num_calls - 1, json_text))
        if is_over and is_object("".join(self._written)):
            out.append(CallEnd(self._num_calls - 1))
        return end, is_over

    def whole(self, name: str, arguments: str, out: list[Part]) -> None:
        """A call whose arguments, a JSON object, are known already."""
        call = self._num_calls
        self._num_calls += 1
        out += [
            CallStart(call, self._new_call_id(), name),
            CallArguments(call, arguments or NO_ARGUMENTS),
            CallEnd(call),
        ]

"""What an answer is made of, as it grows. Every family of APIs writes these in its own words."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text for the person who asked."""

    text: str


class Reasoning(NamedTuple):
    """What the model thinks before it answers. Never empty."""

    text: str


class CallStart(NamedTuple):
    """A call of a tool begins. `call` counts the answer's calls from 0; its arguments follow."""

    call: int
    call_id: str
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments: JSON text. All of a call's, joined, are one object once `CallEnd` came."""

    call: int
    text: str


class CallEnd(NamedTuple):
    """The call's arguments are a whole, valid object. A call that never ends must not be acted upon."""

    call: int


Part = Content | Reasoning | CallStart | CallArguments | CallEnd

"""Requests that a program makes for itself (a chat's title, its tags) and that nobody waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from homeai.config import SideRequestsConfig
from homeai.patterns import compiled
from homeai.server.conversation import ChatMessage

MAX_LOOKED_AT: Final = 1024  # characters of a text: its beginning tells


class SideRequests:
    """`lower_to`: the class that they get, or None for their own."""

    def __init__(self, config: SideRequestsConfig) -> None:
        self.lower_to = config.lower_to
        self._headers = {name.lower(): compiled(pattern) for name, pattern in config.headers.items()}
        self._patterns = [compiled(pattern) for pattern in config.patterns]

    def is_side_request(self, texts: Iterable[str], headers: Mapping[str, str]) -> bool:
        """By any of `texts` (those of the system messages, and of the first and the last user message) or `headers`
        (names in lower case, or of any case where the mapping does not care)."""
        if self.lower_to is None:
            return False
        if any(pattern.search(headers.get(name, "")) for name, pattern in self._headers.items()):
            return True
        heads = [text[:MAX_LOOKED_AT] for text in texts]
        return any(pattern.search(head) for pattern in self._patterns for head in heads)


def heads_of(messages: Sequence[ChatMessage]) -> list[str]:
    """Each text of the system messages, and of the first and the last user message."""
    asked = [message for message in messages if message.role == "user"]
    told = [message for message in messages if message.role in ("system", "developer")]
    return [text for message in (*told, *asked[:1], *asked[1:][-1:]) for text in _texts(message)]


def _texts(message: ChatMessage) -> list[str]:
    content = message.content or ""
    if isinstance(content, str):
        return [content]
    return [text for part in content if isinstance(text := part.get("text"), str)]

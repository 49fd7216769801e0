"""A request that has come in: who sent it, and what is known of it before it queues."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from homeai.keys import Key
from homeai.server.sources import Identity, OnBehalf, OpenWebUIUser

if TYPE_CHECKING:
    from homeai.server.text import Text


@dataclass(frozen=True, slots=True)
class Caller:
    """What the connection and its headers say about who is asking, and what this request is called.

    `request_id` is ours and unique; `client_request_id` is the X-Request-Id that came with it.
    """

    address: str | None
    token: str | None
    source_header: str | None
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    client_request_id: str | None = None
    openwebui: OpenWebUIUser | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # all of them, by names in lower case
    on_behalf: OnBehalf | None = None  # said by the daemon itself, never by a client


@dataclass(slots=True)
class Arrival:
    """A request that has come in and is not queued yet; whatever is wrong with it is written down."""

    api: str
    caller: Caller
    key: Key | None
    identity: Identity
    text: Text | None = None  # of the model that was there when it came
    notes: list[str] = field(default_factory=list)  # for the client: what was done that it did not ask for

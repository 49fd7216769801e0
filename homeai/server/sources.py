"""Who is asking → a source and its fairness class. Pure: headers and addresses are arguments.

In this order: API key, `X-HomeAI-Source` (believed from loopback, or with a trusted key), address, the
request's `user` field, else "default". `sources:` of the config gives names their class; an unknown name is
its own source in the default class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from homeai.config import SourceConfig
from homeai.keys import Key

DEFAULT_SOURCE = "default"
MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Identity:
    source: str
    fairness_class: str


class Sources:
    def __init__(self, configured: Iterable[SourceConfig], default_class: str) -> None:
        self._configured = tuple(configured)
        self._default_class = default_class
        self._class_of = {source.name: source.fairness_class for source in self._configured}

    def identify(self, *, key: Key | None, header: str | None, address: str | None, user: str | None) -> Identity:
        """`header` is X-HomeAI-Source; `user` the request body's field; `address` the client's IP."""
        if header and (is_loopback(address) or (key is not None and key.trusted)):
            return self._named(self._find("header", header) or header)
        if key is not None:
            name = self._find("key", key.name) or key.name
            return Identity(name, self._class_of.get(name) or key.fairness_class or self._default_class)
        by_address = self._find_address(address)
        if by_address is not None:
            return self._named(by_address)
        if user:
            return self._named(self._find("user", user) or user)
        return self._named(DEFAULT_SOURCE)

    def _named(self, name: str) -> Identity:
        name = name[:MAX_NAME_LENGTH]
        return Identity(name, self._class_of.get(name, self._default_class))

    def _find(self, kind: str, value: str) -> str | None:
        return next((s.name for s in self._configured if value in getattr(s.match, kind)), None)

    def _find_address(self, address: str | None) -> str | None:
        parsed = _parse(address)
        if parsed is None:
            return None
        return next((s.name for s in self._configured if any(parsed in net for net in s.match.address)), None)


def is_loopback(address: str | None) -> bool:
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


def _parse(address: str | None) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address.split("%")[0]) if address else None
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed

"""Who is asking → a source and its fairness class. Pure: headers and addresses are arguments.

In this order: API key, `X-HomeAI-Source`, address, the request's `user` field, else "default". The header is
believed from loopback when there is no key, and with a trusted key, whose holder asks for others. `sources:`
of the config gives names their class; an unknown name is its own source in the default class.

Anybody can write anything into `user`, so it gives no advantage: it names a configured source only where
`match.user` lists it, and then brings that source's class only if it weighs no more than the default one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from homeai.config import ClassConfig, SourceConfig
from homeai.keys import Key

DEFAULT_SOURCE = "default"
MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Identity:
    source: str
    fairness_class: str


class Sources:
    def __init__(
        self, configured: Iterable[SourceConfig], classes: Mapping[str, ClassConfig], default_class: str
    ) -> None:
        configured = tuple(configured)
        first_wins = configured[::-1]
        self._by_key = {value: source.name for source in first_wins for value in source.match.key}
        self._by_header = {value: source.name for source in first_wins for value in source.match.header}
        self._by_user = {value: source.name for source in first_wins for value in source.match.user}
        self._by_network = [(network, source.name) for source in configured for network in source.match.address]
        self._class_of = {source.name: source.fairness_class for source in configured}
        self._classes = classes
        self._default_class = default_class

    def identify(self, *, key: Key | None, header: str | None, address: str | None, user: str | None) -> Identity:
        """`header` is X-HomeAI-Source; `user` the request body's field; `address` the client's IP."""
        if header and (key.trusted if key else is_loopback(address)):
            return self._named(self._by_header.get(header) or _name(header))
        if key is not None:
            return self._named(self._by_key.get(key.name, key.name), key.fairness_class)
        by_address = self._find_address(address)
        if by_address is not None:
            return self._named(by_address)
        return self._by_user_field(user) if user else self._named(DEFAULT_SOURCE)

    def _by_user_field(self, user: str) -> Identity:
        listed = self._by_user.get(user)
        name = listed or _name(user)
        if listed is None and name in self._class_of:
            return self._named(DEFAULT_SOURCE)  # nobody poses as a source, and uses up its share
        lighter = min(self._named(name).fairness_class, self._default_class, key=lambda c: self._classes[c].weight)
        return Identity(name, lighter)

    def _named(self, name: str, key_class: str | None = None) -> Identity:
        """A key may be older than the classes of today: one that is gone counts as none."""
        fallback = key_class if key_class in self._classes else None
        return Identity(name, self._class_of.get(name) or fallback or self._default_class)

    def _find_address(self, address: str | None) -> str | None:
        parsed = _parse(address)
        if parsed is None:
            return None
        return next((name for network, name in self._by_network if parsed in network), None)


def is_loopback(address: str | None) -> bool:
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


def _name(text: str) -> str:
    """A name from outside ends up in terminals, logs and metrics: printable, and not too long."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:MAX_NAME_LENGTH])


def _parse(address: str | None) -> IPv4Address | IPv6Address | None:
    """An IPv4 client of an IPv6 socket is what it is at home: IPv4."""
    try:
        parsed = ip_address(address.split("%")[0]) if address else None
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed

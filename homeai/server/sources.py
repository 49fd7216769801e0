"""Who is asking → a source and its fairness class. Pure: headers and addresses are arguments.

In this order:

1. the API key;
2. what somebody says who is believed: X-HomeAI-Source, else the user that Open WebUI names. Believed are holders of a
   trusted key and, without a key, programs on this machine and on `server.trusted_proxies`;
3. the address;
4. the request's `user` field;
5. the program, by its User-Agent;
6. else "default".

`sources:` of the config gives names their class; an unknown name is its own source in the class of the key or address
that it comes from, else in the default one.

Anybody can write anything into `user` and User-Agent, so they give no advantage: they name a configured source only
where its `match` lists them, and then bring that source's class only if it weighs no more than the default one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from homeai.config import ClassConfig, ServerConfig, SourceConfig
from homeai.keys import Key
from homeai.patterns import compiled
from homeai.server.products import MAX_AGENT_LENGTH, OPEN_WEBUI, product_of

DEFAULT_SOURCE: Final = "default"
CODING_CLASS: Final = "coding"
MAX_NAME_LENGTH: Final = 64

# Names made by machines (UUID, ULID, hash), which say nothing to people: a conversation, not who has it.
OPAQUE: Final = compiled(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|[0-9a-fA-F]{16}|\b[0-9A-HJKMNP-TV-Z]{26}\b")


@dataclass(frozen=True, slots=True)
class Identity:
    source: str
    fairness_class: str


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """Work that was handed in earlier asks for this source, with the API key of that name, if it had one."""

    identity: Identity
    key: str | None


@dataclass(frozen=True, slots=True)
class OpenWebUIUser:
    """As its headers name it; the id is the one that nobody can choose."""

    id: str | None = None
    email: str | None = None
    name: str | None = None


class Sources:
    def __init__(
        self,
        configured: Iterable[SourceConfig],
        classes: Mapping[str, ClassConfig],
        default_class: str,
        *,
        server: ServerConfig,
    ) -> None:
        """`server` says who is believed and who needs no key."""
        configured = tuple(configured)
        first_wins = configured[::-1]
        self._by_key = {value: source.name for source in first_wins for value in source.match.key}
        self._by_header = {value: source.name for source in first_wins for value in source.match.header}
        self._by_openwebui = {value: source.name for source in first_wins for value in source.match.openwebui}
        self._by_network = [(network, source.name) for source in configured for network in source.match.address]
        self._by_user = {value: source.name for source in first_wins for value in source.match.user}
        self._by_agent = [(compiled(p), source.name) for source in configured for p in source.match.user_agent]
        self._class_of = {source.name: source.fairness_class for source in configured}
        self._configured = configured
        self._classes = classes
        self._default_class = default_class
        self._server = server

    def needs_key(self, address: str | None) -> bool:
        """Whether who asks from there must have an API key. None is an address that is not known."""
        auth = self._server.auth
        if auth == "none" or _is_in(address, self._server.keyless):
            return False
        return auth == "keys" or not is_loopback(address)

    def identify(
        self,
        *,
        key: Key | None,
        header: str | None,
        address: str | None,
        user: str | None,
        openwebui: OpenWebUIUser | None = None,
        user_agent: str | None = None,
    ) -> Identity:
        """`header` is X-HomeAI-Source; `user` the request body's field; `address` the client's IP."""
        if self._believes(key, address) and (header or openwebui):
            fallback = self._class_behind(key, address)
            if header:
                return self._named(self._by_header.get(header) or _name(header), fallback)
            if openwebui:
                return self._person(openwebui, fallback)
        if key is not None:
            return self._named(self._by_key.get(key.name, key.name), key.fairness_class)
        by_address = self._find_address(address)
        if by_address is not None:
            return self._named(by_address)
        return self._by_say_so(user, user_agent or "", is_openwebui=openwebui is not None)

    def lowered(self, identity: Identity, fairness_class: str | None) -> Identity:
        """The same source, in `fairness_class` if that is lighter than its own."""
        if fairness_class is None:
            return identity
        return Identity(identity.source, self._lighter(identity.fairness_class, fairness_class))

    def rules(self) -> list[dict[str, str]]:
        """What `identify` goes by, for people, in the order in which it is looked at."""
        kinds = ("key", "header", "openwebui", "address", "user", "user_agent")
        found = [
            {"by": kind, "match": str(value), "source": source.name, "class": source.fairness_class}
            for kind in kinds
            for source in self._configured
            for value in getattr(source.match, kind)
        ]
        return [
            *found,
            {"by": "else", "match": "", "source": DEFAULT_SOURCE, "class": self._named(DEFAULT_SOURCE).fairness_class},
        ]

    def _believes(self, key: Key | None, address: str | None) -> bool:
        if key is not None:
            return key.trusted
        return is_loopback(address) or _is_in(address, self._server.trusted_proxies)

    def _class_behind(self, key: Key | None, address: str | None) -> str | None:
        """Of whoever speaks for others."""
        if key is not None:
            return self._class_of.get(self._by_key.get(key.name, key.name), key.fairness_class)
        return self._class_of.get(self._find_address(address) or "")

    def _person(self, user: OpenWebUIUser, fallback: str | None) -> Identity:
        """People choose their names: one that a source has is none, unless it is listed there."""
        values = (user.id, user.email, user.name)
        listed = next((self._by_openwebui[value] for value in values if value in self._by_openwebui), None)
        if listed is not None:
            return self._named(listed, fallback)
        names = [_name(value) for value in (user.name, user.email, user.id) if value]
        name = next((name for name in names if name not in self._class_of), DEFAULT_SOURCE)
        return self._named(name, fallback)

    def _by_say_so(self, user: str | None, user_agent: str, *, is_openwebui: bool) -> Identity:
        listed = self._by_user.get(user or "") or self._find_agent(user_agent)
        if listed is not None:
            return Identity(listed, self._lighter(self._class_of[listed], self._default_class))
        product = OPEN_WEBUI if is_openwebui else product_of(user_agent)
        name = _name(user) if user else DEFAULT_SOURCE
        if product is not None and (not user or OPAQUE.search(user)):
            name = product.name
        if name in self._class_of:
            name = DEFAULT_SOURCE  # nobody poses as a source, and uses up its share
        identity = self._named(name)
        is_coding = product is not None and product.is_coding and CODING_CLASS in self._classes
        return self.lowered(identity, CODING_CLASS) if is_coding else identity

    def _named(self, name: str, fallback: str | None = None) -> Identity:
        """`fallback` is for names without a class. A key may be older than the classes of today: one that is gone
        counts as none."""
        known = fallback if fallback in self._classes else None
        return Identity(name, self._class_of.get(name) or known or self._default_class)

    def _lighter(self, one: str, other: str) -> str:
        return min(one, other, key=lambda name: self._classes[name].weight)

    def _find_address(self, address: str | None) -> str | None:
        parsed = _parse(address)
        if parsed is None:
            return None
        return next((name for network, name in self._by_network if parsed in network), None)

    def _find_agent(self, user_agent: str) -> str | None:
        agent = user_agent[:MAX_AGENT_LENGTH]
        return next((name for pattern, name in self._by_agent if pattern.search(agent)), None)


def is_loopback(address: str | None) -> bool:
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


def _is_in(address: str | None, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    parsed = _parse(address)
    return parsed is not None and any(parsed in network for network in networks)


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

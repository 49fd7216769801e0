"""Rules of who is asking."""

from __future__ import annotations

import pytest

from homeai.config import DEFAULT_CLASSES, SourceConfig
from homeai.keys import Key
from homeai.server.sources import MAX_NAME_LENGTH, Identity, Sources, is_loopback

LAN, LOOPBACK = "192.168.1.7", "127.0.0.1"


def make_source(name: str, fairness_class: str, **match: list[str]) -> SourceConfig:
    return SourceConfig.model_validate({"name": name, "class": fairness_class, "match": match})


SOURCES = Sources(
    [
        make_source("speaker", "voice", key=["kitchen"], header=["kitchen-speaker"], user=["kitchen"]),
        make_source("laptop", "coding", address=["192.168.1.20", "fd00:1::/32"]),
        make_source("office", "background", address=["192.168.1.0/24"]),
        make_source("night-job", "background", user=["backup"]),
    ],
    DEFAULT_CLASSES,
    "interactive",
)


def make_key(name: str, fairness_class: str | None = None, *, trusted: bool = False) -> Key:
    return Key(name=name, fairness_class=fairness_class, trusted=trusted, created_at=0.0)


def identify(
    *, key: Key | None = None, header: str | None = None, address: str | None = None, user: str | None = None
) -> Identity:
    return SOURCES.identify(key=key, header=header, address=address, user=user)


# ---- what counts more ----------------------------------------------------------------------------------


def test_key_counts_more_than_all_else() -> None:
    asking = identify(key=make_key("kitchen"), header="other", address="192.168.1.20", user="other")
    assert asking == Identity("speaker", "voice")


def test_key_counts_more_than_the_header_even_from_loopback() -> None:
    """A proxy on this machine passes everybody's headers on."""
    assert identify(key=make_key("kitchen"), header="other", address=LOOPBACK).source == "speaker"


def test_holder_of_a_trusted_key_says_for_whom_it_asks() -> None:
    asking = identify(key=make_key("hub", trusted=True), header="kitchen-speaker", address=LAN)
    assert asking == Identity("speaker", "voice")


def test_trusted_key_without_a_header_is_its_own_source() -> None:
    assert identify(key=make_key("hub", trusted=True), address=LAN).source == "hub"


@pytest.mark.parametrize("address", [LOOPBACK, "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_header_is_believed_from_loopback(address: str) -> None:
    assert identify(header="kitchen-speaker", address=address, user="other") == Identity("speaker", "voice")


@pytest.mark.parametrize("address", [LAN, "10.0.0.1", "fd00:2::1", "::ffff:192.168.9.9", None, "testclient"])
def test_header_from_anywhere_else_is_ignored(address: str | None) -> None:
    assert identify(header="kitchen-speaker", address=address).source != "speaker"


def test_address_counts_more_than_the_user_field() -> None:
    assert identify(address="192.168.1.20", user="kitchen") == Identity("laptop", "coding")


def test_user_field_counts_where_nothing_better_is_known() -> None:
    assert identify(address="10.0.0.1", user="backup") == Identity("night-job", "background")


def test_user_field_brings_no_class_above_the_default_one() -> None:
    """Anybody can write anything into it."""
    assert identify(address="10.0.0.1", user="kitchen") == Identity("speaker", "interactive")


@pytest.mark.parametrize("name", ["speaker", "laptop", "night-job"])
def test_user_field_picks_only_a_source_that_lists_it(name: str) -> None:
    """Else a stranger would use up the share of whoever has that name."""
    assert identify(address="10.0.0.1", user=name) == Identity("default", "interactive")


@pytest.mark.parametrize("nothing", ["", None])
def test_nobody_in_particular_is_the_default_source(nothing: str | None) -> None:
    assert identify(header=nothing, address=LOOPBACK, user=nothing) == Identity("default", "interactive")


# ---- addresses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.168.1.20", "laptop"),
        ("192.168.1.21", "office"),  # in the subnet
        ("::ffff:192.168.1.20", "laptop"),  # as an IPv6 socket sees it
        ("fd00:1::42", "laptop"),
        ("fd00:1::42%eth0", "laptop"),
        ("fd00:2::42", "default"),
        ("192.168.2.20", "default"),
        ("not an address", "default"),
        ("", "default"),
        (None, "default"),
    ],
)
def test_address_is_found_in_either_family(address: str | None, source: str) -> None:
    assert identify(address=address).source == source


def test_first_source_that_matches_wins() -> None:
    sources = Sources(
        [make_source(name, "voice", user=["x"], key=["x"], header=["x"]) for name in ("first", "second")],
        DEFAULT_CLASSES,
        "interactive",
    )
    for asking in ({"user": "x"}, {"key": make_key("x")}, {"header": "x", "address": LOOPBACK}):
        everything = {"key": None, "header": None, "address": None, "user": None} | asking
        assert sources.identify(**everything).source == "first"


@pytest.mark.parametrize("address", ["192.168.1.7", "0.0.0.0", "::", "", None, "localhost"])
def test_only_loopback_is_loopback(address: str | None) -> None:
    assert not is_loopback(address)


# ---- names and classes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stranger", "default", "voice"])
def test_unknown_name_is_its_own_source_in_the_default_class(name: str) -> None:
    assert identify(user=name) == Identity(name, "interactive")
    assert identify(header=name, address=LOOPBACK) == Identity(name, "interactive")


def test_name_of_a_configured_source_gives_its_class() -> None:
    assert identify(header="speaker", address=LOOPBACK) == Identity("speaker", "voice")


def test_key_brings_its_class_unless_the_settings_know_better() -> None:
    assert identify(key=make_key("phone", "background")) == Identity("phone", "background")
    assert identify(key=make_key("kitchen", "background")) == Identity("speaker", "voice")


def test_class_that_is_gone_from_the_settings_counts_as_none() -> None:
    """Keys outlive settings: a request must not fail because of it."""
    assert identify(key=make_key("phone", "retired")) == Identity("phone", "interactive")


def test_name_from_outside_is_bounded() -> None:
    assert identify(user="x" * 1000).source == "x" * MAX_NAME_LENGTH
    assert identify(header="x" * 1000, address=LOOPBACK).source == "x" * MAX_NAME_LENGTH


def test_name_from_outside_is_printable() -> None:
    assert identify(user="a\x1b[31m\nб").source == "a\ufffd[31m\ufffdб"


def test_configured_name_may_be_long() -> None:
    name = "x" * (MAX_NAME_LENGTH + 1)
    sources = Sources([make_source(name, "coding", user=["me"])], DEFAULT_CLASSES, "interactive")
    assert sources.identify(key=None, header=None, address=None, user="me") == Identity(name, "coding")

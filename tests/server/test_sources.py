"""Rules of who is asking."""

from __future__ import annotations

import pytest

from homeai.config import DEFAULT_CLASSES, ServerConfig, SourceConfig
from homeai.keys import Key
from homeai.server.sources import MAX_NAME_LENGTH, Identity, OpenWebUIUser, Sources, is_loopback

LAN, LOOPBACK = "192.168.1.7", "127.0.0.1"


def make_source(name: str, fairness_class: str, **match: list[str]) -> SourceConfig:
    return SourceConfig.model_validate({"name": name, "class": fairness_class, "match": match})


SOURCES = Sources(
    [
        make_source(
            "speaker",
            "voice",
            key=["kitchen"],
            header=["kitchen-speaker"],
            openwebui=["id-ana", "ana@home"],
            user=["kitchen"],
            user_agent=["^Satellite/"],
        ),
        make_source("laptop", "coding", address=["192.168.1.20", "fd00:1::/32"]),
        make_source("office", "background", address=["192.168.1.0/24"]),
        make_source("night-job", "background", user=["backup"], user_agent=["^n8n"]),
    ],
    DEFAULT_CLASSES,
    "interactive",
    server=ServerConfig(),
)


def make_key(name: str, fairness_class: str | None = None, *, trusted: bool = False) -> Key:
    return Key(name=name, fairness_class=fairness_class, trusted=trusted, created_at=0.0)


def identify(
    *,
    key: Key | None = None,
    header: str | None = None,
    address: str | None = None,
    user: str | None = None,
    openwebui: OpenWebUIUser | None = None,
    user_agent: str | None = None,
    sources: Sources = SOURCES,
) -> Identity:
    return sources.identify(
        key=key, header=header, address=address, user=user, openwebui=openwebui, user_agent=user_agent
    )


def with_server(**settings: object) -> Sources:
    """The same sources behind other doors."""
    configured = [make_source("guests", "background", address=["192.168.50.0/24"])]
    server = ServerConfig.model_validate(settings)
    return Sources(configured, DEFAULT_CLASSES, "interactive", server=server)


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


# ---- Open WebUI ----------------------------------------------------------------------------------------

ANA = OpenWebUIUser(id="id-ana", email="ana@elsewhere", name="Ana")
BEN = OpenWebUIUser(id="id-ben", email="ben@home", name="Ben")


@pytest.mark.parametrize("user", [ANA, OpenWebUIUser(email="ana@home"), OpenWebUIUser(name="ana@home")])
def test_user_of_open_webui_is_the_source_that_lists_one_of_its_names(user: OpenWebUIUser) -> None:
    assert identify(openwebui=user, address=LOOPBACK) == Identity("speaker", "voice")


def test_other_users_of_open_webui_are_sources_of_their_own() -> None:
    assert identify(openwebui=BEN, address=LOOPBACK) == Identity("Ben", "interactive")
    assert identify(openwebui=OpenWebUIUser(id="id-ben"), address=LOOPBACK).source == "id-ben"


def test_holder_of_a_trusted_key_names_open_webui_s_users() -> None:
    """In the class of the key, where they have none."""
    hub = make_key("hub", "coding", trusted=True)
    assert identify(key=hub, openwebui=ANA, address=LAN) == Identity("speaker", "voice")
    assert identify(key=hub, openwebui=BEN, address=LAN) == Identity("Ben", "coding")
    assert identify(key=hub, header="Ben", address=LAN) == Identity("Ben", "coding")


def test_source_header_counts_more_than_open_webui_s() -> None:
    assert identify(header="night-job", openwebui=ANA, address=LOOPBACK).source == "night-job"


@pytest.mark.parametrize("name", ["speaker", "laptop"])
def test_people_cannot_call_themselves_like_a_source(name: str) -> None:
    """In Open WebUI everybody chooses a name."""
    asking = identify(openwebui=OpenWebUIUser("id-eve", "laptop", name), address=LOOPBACK)
    assert asking == Identity("id-eve", "interactive")


def test_users_of_open_webui_are_not_believed_from_anywhere_else() -> None:
    assert identify(openwebui=ANA, address="10.0.0.1") == Identity("open-webui", "interactive")
    assert identify(openwebui=ANA, key=make_key("phone"), address=LOOPBACK).source == "phone"


# ---- programs ------------------------------------------------------------------------------------------

CLAUDE_CODE = "claude-cli/2.1.76 (external, cli)"
SESSION = "user_6f1c0d8e2b7a4935_account__session_0b1c2d3e-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("user_agent", "source", "fairness_class"),
    [
        ("HomeAssistant/2026.9.1 aiohttp/3.12 Python/3.13", "home-assistant", "interactive"),
        (CLAUDE_CODE, "claude-code", "coding"),
        ("codex_cli_rs/0.136.0 (Debian 13.0.0; x86_64)", "codex", "coding"),
        ("Continue/1.0.0", "continue", "coding"),
        ("ollama-python/0.6.3 (x86_64 linux) Python/3.13.16", "ollama-python", "interactive"),
        ("AsyncOpenAI/Python 3.57.0", "openai-python", "interactive"),
        ("python-httpx/0.28.1", "default", "interactive"),
        ("curl/8.5.0", "default", "interactive"),
        ("", "default", "interactive"),
        (None, "default", "interactive"),
    ],
)
def test_well_known_program_has_a_name_and_no_advantage(
    user_agent: str | None, source: str, fairness_class: str
) -> None:
    assert identify(user_agent=user_agent, address="10.0.0.1") == Identity(source, fairness_class)


def test_coding_tools_are_in_no_class_above_the_default_one() -> None:
    sources = Sources([], DEFAULT_CLASSES, "background", server=ServerConfig())
    assert identify(user_agent=CLAUDE_CODE, sources=sources) == Identity("claude-code", "background")


def test_program_picks_a_source_that_lists_it_without_a_class_above_the_default_one() -> None:
    assert identify(user_agent="n8n") == Identity("night-job", "background")
    assert identify(user_agent="Satellite/2") == Identity("speaker", "interactive")


def test_program_picks_no_source_that_does_not_list_it() -> None:
    """Anybody can call itself like a program whose name a source has."""
    sources = Sources([make_source("claude-code", "voice", key=["x"])], DEFAULT_CLASSES, "voice", server=ServerConfig())
    assert identify(user_agent=CLAUDE_CODE, sources=sources) == Identity("default", "coding")


def test_user_field_counts_more_than_the_program() -> None:
    assert identify(user="backup", user_agent=CLAUDE_CODE) == Identity("night-job", "background")
    assert identify(user="ben", user_agent=CLAUDE_CODE) == Identity("ben", "coding")


@pytest.mark.parametrize("user", [SESSION, "01JBZ6W0QK8M2N4R6T8V0X1Y3Z", "0b1c2d3e-1111-2222-3333-444455556666"])
def test_name_of_a_conversation_does_not_say_who_has_it(user: str) -> None:
    """Else each conversation would have a share of its own."""
    assert identify(user=user, user_agent=CLAUDE_CODE) == Identity("claude-code", "coding")
    assert identify(user=user).source == user[:MAX_NAME_LENGTH]


def test_everything_else_counts_more_than_the_program() -> None:
    for asking in ({"key": make_key("phone")}, {"header": "phone", "address": LOOPBACK}, {"address": "192.168.1.20"}):
        everything = {"user_agent": "n8n", **asking}
        assert identify(**everything).source in ("phone", "laptop")  # type: ignore[arg-type]


# ---- who needs a key, and who is believed --------------------------------------------------------------


@pytest.mark.parametrize("auth", ["auto", "keys"])
def test_keyless_subnet_needs_no_key(auth: str) -> None:
    """Its source says in what class it is."""
    sources = with_server(auth=auth, keyless=["192.168.50.0/24"])
    assert not sources.needs_key("192.168.50.7")
    assert not sources.needs_key("::ffff:192.168.50.7")
    assert identify(address="192.168.50.7", sources=sources) == Identity("guests", "background")
    for address in ("192.168.51.7", "10.0.0.1", None, "unknown"):
        assert sources.needs_key(address)


def test_only_loopback_needs_no_key_by_default() -> None:
    assert [with_server().needs_key(address) for address in (LOOPBACK, "::1", LAN, None)] == [False, False, True, True]
    assert with_server(auth="keys").needs_key(LOOPBACK)
    assert not with_server(auth="none").needs_key(LAN)


def test_trusted_proxy_is_believed_without_a_key() -> None:
    sources = with_server(trusted_proxies=["10.0.0.0/24"])
    assert identify(header="guests", address="10.0.0.7", sources=sources) == Identity("guests", "background")
    assert identify(openwebui=BEN, address="10.0.0.7", sources=sources).source == "Ben"
    assert identify(openwebui=BEN, address="10.0.1.7", sources=sources).source == "open-webui"
    assert identify(header="guests", key=make_key("phone"), address="10.0.0.7", sources=sources).source == "phone"


# ---- side requests -------------------------------------------------------------------------------------


def test_request_is_lowered_and_never_lifted() -> None:
    asking = Identity("Ben", "interactive")
    assert SOURCES.lowered(asking, "background") == Identity("Ben", "background")
    assert SOURCES.lowered(asking, "voice") == asking
    assert SOURCES.lowered(asking, None) == asking


# ---- the rules, for people -----------------------------------------------------------------------------


def test_rules_are_told_in_the_order_in_which_they_count() -> None:
    rules = SOURCES.rules()
    assert rules[0] == {"by": "key", "match": "kitchen", "source": "speaker", "class": "voice"}
    assert {"by": "address", "match": "192.168.1.0/24", "source": "office", "class": "background"} in rules
    assert rules[-1] == {"by": "else", "match": "", "source": "default", "class": "interactive"}
    kinds = list(dict.fromkeys(rule["by"] for rule in rules))
    assert kinds == ["key", "header", "openwebui", "address", "user", "user_agent", "else"]


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
        server=ServerConfig(),
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
    sources = Sources([make_source(name, "coding", user=["me"])], DEFAULT_CLASSES, "interactive", server=ServerConfig())
    assert sources.identify(key=None, header=None, address=None, user="me") == Identity(name, "coding")

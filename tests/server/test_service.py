"""Who may ask, what is written down of a refusal, and the wait for the model's text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from homeai.errors import InvalidRequest, ModelNotFound, NotAuthenticated, NotReady, QuotaExceeded
from homeai.keys import KeyStore
from homeai.messages import AddRequest
from homeai.request import SamplingParams
from homeai.server.arrival import Arrival, Caller
from homeai.server.ask import Ask
from homeai.server.conversation import Chat, ChatMessage
from homeai.server.embeddings import Embedded
from homeai.server.service import SEEDS, Service
from homeai.server.sources import Identity
from homeai.server.supervisor import State
from tests.server.fakes import READY, FakeLedger, FakeText, make_service, until

LAN, LOOPBACK = "192.168.1.7", "127.0.0.1"


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        yield store


@pytest.fixture
def service(keys: KeyStore) -> Service:
    return make_service(keys)


# ---- who may ask ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "address", "is_let_in"),
    [
        ("auto", LOOPBACK, True),
        ("auto", LAN, False),
        ("auto", None, False),
        ("keys", LOOPBACK, False),
        ("keys", LAN, False),
        ("none", LAN, True),
    ],
)
@pytest.mark.parametrize("token", [None, "hai_wrong"])
def test_who_needs_a_key(auth: str, address: str | None, is_let_in: bool, token: str | None, keys: KeyStore) -> None:
    service = make_service(keys, ("server.auth", auth))
    if is_let_in:
        assert service.authenticate(Caller(address, token, None)) is None
    else:
        with pytest.raises(NotAuthenticated, match="not known" if token else "needed"):
            service.authenticate(Caller(address, token, None))


@pytest.mark.parametrize("auth", ["auto", "keys", "none"])
def test_key_lets_in_from_anywhere(auth: str, keys: KeyStore) -> None:
    token = keys.add("tablet")
    key = make_service(keys, ("server.auth", auth)).authenticate(Caller(LAN, token, None))
    assert key is not None
    assert key.name == "tablet"


@pytest.mark.parametrize("token", [None, "hai_x"])
@pytest.mark.parametrize(("auth", "address"), [("auto", LAN), ("keys", LAN), ("keys", LOOPBACK)])
def test_nobody_gets_in_while_the_keys_cannot_be_read(
    auth: str, address: str, token: str | None, keys: KeyStore, tmp_path: Path
) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database")
    keys.refresh()
    with pytest.raises(NotReady, match="keys cannot be read") as caught:
        make_service(keys, ("server.auth", auth)).authenticate(Caller(address, token, None))
    assert caught.value.retry_after_s
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(("auth", "address"), [("auto", LOOPBACK), ("none", LAN)])
def test_who_needs_no_key_gets_in_though_they_cannot_be_read(
    auth: str, address: str, keys: KeyStore, tmp_path: Path
) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database")
    keys.refresh()
    service = make_service(keys, ("server.auth", auth))
    assert service.authenticate(Caller(address, "hai_x", None)) is None
    assert [note for note in service.notes if "not a database" in note]


# ---- arrivals ------------------------------------------------------------------------------------------


def test_refusal_is_written_down_with_who_asked(keys: KeyStore) -> None:
    ledger = FakeLedger()
    service = make_service(keys, ledger=ledger)
    with pytest.raises(InvalidRequest), service.arriving("/v1/completions", Caller(LOOPBACK, None, "hub")):
        raise InvalidRequest("bad", param="n")
    with pytest.raises(NotAuthenticated), service.arriving("/v1/completions", Caller(LAN, None, "hub")):
        pass
    assert [(row.source, row.status) for row in ledger.rows] == [("hub", 400), ("default", 401)]


def test_refusal_is_written_down_under_the_id_of_its_answer(keys: KeyStore) -> None:
    ledger = FakeLedger()
    caller = Caller(LOOPBACK, None, None, request_id="abc", client_request_id="theirs")
    with pytest.raises(InvalidRequest), make_service(keys, ledger=ledger).arriving("/x", caller):
        raise InvalidRequest("bad")
    assert [(row.request_id, row.client_request_id) for row in ledger.rows] == [("abc", "theirs")]


def test_arrival_that_is_not_refused_is_not_written_down_yet(keys: KeyStore) -> None:
    ledger = FakeLedger()
    with make_service(keys, ledger=ledger).arriving("/v1/completions", Caller(LOOPBACK, None, None)):
        pass
    assert ledger.rows == []


def test_user_field_names_who_nobody_else_names(service: Service) -> None:
    with service.arriving("/x", Caller(LOOPBACK, None, None)) as anonymous:
        service.name_user(anonymous, "anna")
    with service.arriving("/x", Caller(LOOPBACK, None, "hub")) as named:
        service.name_user(named, "anna")
    assert (anonymous.identity.source, named.identity.source) == ("anna", "hub")


async def test_key_whose_class_is_gone_is_served_in_the_default_class(keys: KeyStore) -> None:
    """It was made under other settings."""
    token = keys.add("tablet", "retired")
    service = make_service(keys)
    with service.arriving("/x", Caller(LAN, token, None)) as arrival:
        service.submit(arrival, [[1, 2]], SamplingParams(), make_ask())
    assert arrival.identity == Identity("tablet", "interactive")


# ---- submission ----------------------------------------------------------------------------------------


def make_ask(*, n: int = 1, seed: int | None = None, cache_prompt: bool = True) -> Ask:
    return Ask(sampling=SamplingParams(), n=n, seed=seed, cache_prompt=cache_prompt)


async def seeds(service: Service, *, n: int, seed: int | None) -> list[int]:
    arrival = Arrival("/x", Caller(LOOPBACK, None, None), None, Identity("anna", "voice"))
    stream = service.submit(arrival, [[1, 2]], SamplingParams(), make_ask(n=n, seed=seed))
    return [generation.add.sampling.seed for generation in stream.generations]


async def test_choices_of_a_fixed_seed_are_different_and_repeatable(service: Service) -> None:
    assert await seeds(service, n=3, seed=42) == [42, 43, 44] == await seeds(service, n=3, seed=42)


async def test_seed_is_counted_within_its_range(service: Service) -> None:
    assert await seeds(service, n=2, seed=-1) == [SEEDS - 1, 0]


async def test_seed_is_drawn_where_none_was_given(service: Service) -> None:
    assert await seeds(service, n=1, seed=None) != await seeds(service, n=1, seed=None)


async def test_every_prompt_has_its_choices_in_order(service: Service) -> None:
    arrival = Arrival("/x", Caller(LOOPBACK, None, None), None, Identity("anna", "voice"))
    stream = service.submit(arrival, [[1], [2]], SamplingParams(), make_ask(n=2))
    adds: list[AddRequest] = [generation.add for generation in stream.generations]
    assert [add.prompt_token_ids for add in adds] == [[1], [1], [2], [2]]
    assert len({add.request_id for add in adds}) == 4
    assert {(add.source, add.fairness_class) for add in adds} == {("anna", "voice")}
    assert all(add.cache_prompt for add in adds)


async def test_requests_are_called_as_the_answer_is(service: Service) -> None:
    caller = Caller(LOOPBACK, None, None, request_id="abc", client_request_id="theirs")
    arrival = Arrival("/x", caller, None, Identity("anna", "voice"))
    stream = service.submit(arrival, [[1], [2]], SamplingParams(), make_ask(n=2, cache_prompt=False))
    assert stream.request_ids == ["abc", "abc-1", "abc-2", "abc-3"]
    assert {generation.client_request_id for generation in stream.generations} == {"theirs"}
    assert not any(generation.add.cache_prompt for generation in stream.generations)


# ---- the wait for the text -----------------------------------------------------------------------------


def become_resident(service: Service) -> None:
    service.supervisor._take(READY)
    assert service.supervisor.state is State.RESIDENT


@pytest.mark.parametrize("steps", [(become_resident, "open"), ("open", become_resident)])
async def test_text_is_waited_for_while_the_model_loads(
    steps: tuple[str | Callable[[Service], None], ...], service: Service
) -> None:
    waiting = asyncio.create_task(service.text_for("gemma"))
    await asyncio.sleep(0)
    text = FakeText()
    for take in steps:
        service.open(text) if take == "open" else take(service)
    assert await waiting is text


@pytest.mark.parametrize("is_resident_first", [True, False])
async def test_nobody_waits_for_a_text_that_was_given_up(is_resident_first: bool, service: Service) -> None:
    """The engine may be resident by then: its model file was fine, the chat template was not."""
    waiting = asyncio.create_task(service.text_for(None))
    await asyncio.sleep(0)
    if is_resident_first:
        become_resident(service)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    service.supervisor.give_up("no template")
    service.stay_closed()
    await until(waiting.done)
    with pytest.raises(NotReady, match="no template"):
        await waiting
    with pytest.raises(NotReady, match="no template"):
        await service.text_for(None)


async def test_unknown_model_is_not_found(service: Service) -> None:
    become_resident(service)
    service.open(FakeText())
    with pytest.raises(ModelNotFound, match="'llama' does not exist; resident is 'gemma'"):
        await service.text_for("llama")


# ---- an engine that had to take less -----------------------------------------------------------------------


async def test_prompts_may_be_as_long_as_the_engine_that_runs_can_take(service: Service) -> None:
    service.open(FakeText())
    become_resident(service)
    text = await service.text_for(None)
    assert text.max_model_len == READY.max_model_len


# ---- what a source's settings say -----------------------------------------------------------------------

SOURCES = (
    "sources",
    "[{name: automation, class: interactive, show_text: true}, {name: thinker, class: voice, thinks: true}]",
)


@pytest.mark.parametrize(("source", "shown"), [("automation", ""), ("thinker", None), ("anna", None)])
async def test_text_is_shown_for_sources_that_want_it(keys: KeyStore, source: str, shown: str | None) -> None:
    service = make_service(keys, SOURCES)
    arrival = Arrival("/x", Caller(LOOPBACK, None, None), None, Identity(source, "interactive"))
    (generation,) = service.submit(arrival, [[1]], SamplingParams(), make_ask()).generations
    assert generation.shown_text == shown


@pytest.mark.parametrize(
    ("source", "fairness_class", "thinks"),
    [("thinker", "voice", True), ("speaker", "voice", False), ("automation", "interactive", None)],
)
def test_voice_does_not_think_unless_its_source_does(
    keys: KeyStore, source: str, fairness_class: str, thinks: bool | None
) -> None:
    assert make_service(keys, SOURCES)._thinks(Identity(source, fairness_class)) is thinks


# ---- vectors -------------------------------------------------------------------------------------------


class FakeEmbeddings:
    """Counts a token for each character, and makes no vectors."""

    def __init__(self) -> None:
        self.max_tokens: list[int | None] = []

    async def embed(self, text: object, inputs: list[str], *, max_tokens: int | None, **_: object) -> Embedded:
        self.max_tokens.append(max_tokens)
        return Embedded("small", [], sum(map(len, inputs)), ["a note"])


@pytest.fixture
def embedding(keys: KeyStore) -> Service:
    service = make_service(keys, ledger=FakeLedger())
    service.embeddings = cast(Any, FakeEmbeddings())
    become_resident(service)
    service.open(cast(Any, FakeText()))
    return service


async def test_vectors_use_up_the_tokens_of_a_key(embedding: Service, keys: KeyStore) -> None:
    caller = Caller(LAN, keys.add("tablet", tokens_per_day=10, max_context=8), None)
    for _ in range(2):
        with embedding.arriving("/v1/embeddings", caller) as arrival:
            await embedding.embed(arrival, ["12345"])
    with pytest.raises(QuotaExceeded, match="10 of 10"), embedding.arriving("/v1/embeddings", caller) as arrival:
        await embedding.embed(arrival, ["1"])
    assert cast(Any, embedding.embeddings).max_tokens == [8, 8]


async def test_vectors_are_written_down_with_who_asked(embedding: Service) -> None:
    caller = Caller(LOOPBACK, None, None, request_id="abc", client_request_id="theirs")
    with embedding.arriving("/v1/embeddings", caller) as arrival:
        embedding.name_user(arrival, "anna")
        await embedding.embed(arrival, ["12345", "678"])
    (row,) = cast(Any, embedding.books)._ledger.rows
    assert (row.request_id, row.client_request_id, row.api, row.source) == ("abc", "theirs", "/v1/embeddings", "anna")
    assert (row.model, row.num_prompt_tokens, row.num_output_tokens, row.status) == ("small", 8, 0, 200)
    assert embedding.books.totals.finished == 1


# ---- counting ------------------------------------------------------------------------------------------


class ThinkingText(FakeText):
    """Remembers of what it counted the tokens."""

    can_think = True
    chat: Chat | None = None

    async def encode_chat(self, chat: Chat) -> list[int]:
        self.chat = chat
        return [5]


@pytest.mark.parametrize(("asked", "thinks"), [(None, True), (False, False)])
async def test_prompt_that_is_counted_is_that_of_the_chat(keys: KeyStore, asked: bool | None, thinks: bool) -> None:
    """The settings of its source say whether it reasons."""
    service, text = make_service(keys, SOURCES), ThinkingText()
    become_resident(service)
    service.open(cast(Any, text))
    with service.arriving("/v1/messages/count_tokens", Caller(LOOPBACK, None, "thinker")) as arrival:
        await service.count_tokens(arrival, Chat(messages=[ChatMessage("user", "a")], thinks=asked), None)
    assert text.chat is not None
    assert text.chat.thinks is thinks

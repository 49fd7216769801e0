"""What every API family calls: who is asking, is it too long, may it queue, here is its stream.

One object per daemon. It connects the parts; each decision is made by the part it belongs to.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import msgspec

from homeai.config import Config
from homeai.errors import InvalidRequest, ModelNotFound, NotAuthenticated, NotReady, RequestError
from homeai.hardware import Probe
from homeai.keys import Key, KeyStore
from homeai.messages import AddRequest
from homeai.request import SamplingParams
from homeai.server.ask import Ask
from homeai.server.books import Books
from homeai.server.client import EngineClient, Stream
from homeai.server.conversation import Chat
from homeai.server.reply import Reply
from homeai.server.sources import Identity, Sources, is_loopback
from homeai.server.supervisor import Supervisor
from homeai.server.text import Text
from homeai.server.volatile import Rule, rules_by_source, steadied

SEEDS = 2**64


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


@dataclass(slots=True)
class Arrival:
    """A request that has come in and is not queued yet; whatever is wrong with it is written down."""

    api: str
    caller: Caller
    key: Key | None
    identity: Identity
    notes: list[str] = field(default_factory=list)  # for the client: what was done that it did not ask for


@dataclass(eq=False, slots=True)
class Service:
    config: Config
    model_file: str
    supervisor: Supervisor
    client: EngineClient
    sources: Sources
    keys: KeyStore
    books: Books
    probe: Probe
    text: Text | None = None  # until the vocabulary is loaded
    is_closing: bool = False
    _text_settled: asyncio.Event = field(default_factory=asyncio.Event)
    _volatile: dict[str, tuple[Rule, ...]] = field(init=False)  # by source

    def __post_init__(self) -> None:
        self._volatile = rules_by_source(self.config.sources)
        self.client.on_finished = self.books.finished
        self.client.on_token_gap = self.books.metrics.observe_token_gap
        self.client.on_step = self.books.stepped

    def open(self, text: Text) -> None:
        self.text = text
        self.books.model_name = text.name
        self._text_settled.set()

    def stay_closed(self) -> None:
        """There will be no text: whoever waits for it is told why."""
        self._text_settled.set()

    def authenticate(self, caller: Caller) -> Key | None:
        """The caller's key. Raises `NotAuthenticated` where one is needed and none, or a wrong one, was given,
        and `NotReady` where the keys cannot be read: nobody gets in who would need one."""
        key = self.keys.find(caller.token) if caller.token else None
        auth = self.config.server.auth
        if key is None and (auth == "keys" or (auth == "auto" and not is_loopback(caller.address))):
            if self.keys.failure is not None:
                raise NotReady("the API keys cannot be read at the moment; the log says why", retry_after_s=30.0)
            reason = "this API key is not known" if caller.token else "an API key is needed"
            raise NotAuthenticated(f"{reason}; `homeai keys add NAME` makes one")
        return key

    @property
    def notes(self) -> list[str]:
        """What the owner should know, although everything goes on."""
        keys = [self.keys.failure] if self.keys.failure else []
        return [*(self.text.notes if self.text else ()), *self.supervisor.warm_up.notes, *keys]

    @contextmanager
    def arriving(self, api: str, caller: Caller) -> Iterator[Arrival]:
        """From the first byte to the queue: what is refused in here gets its row in the ledger."""
        arrived = time.time()
        arrival = Arrival(api, caller, None, self._identify(None, caller, None))
        try:
            arrival.key = self.authenticate(caller)
            arrival.identity = self._identify(arrival.key, caller, None)
            yield arrival
        except RequestError as error:
            self.books.rejected(
                caller.request_id, api, arrival.identity, arrived, error, client_request_id=caller.client_request_id
            )
            raise

    def name_user(self, arrival: Arrival, user: str | None) -> None:
        """The body's `user` field counts where nothing better says who is asking."""
        arrival.identity = self._identify(arrival.key, arrival.caller, user)

    async def chat(self, arrival: Arrival, chat: Chat, ask: Ask) -> Reply:
        """The answer to a conversation, from here on under way. Raises `RequestError`, with nothing queued."""
        self.name_user(arrival, ask.user)
        text = await self.text_for(ask.model)
        self._check_count(ask.n)
        prompt = await text.encode_chat(self._steady(arrival, chat))
        stream = self.submit(arrival, [prompt], text.sampling(ask, len(prompt)), ask)
        return Reply(self.client, stream, text, lambda: text.chat_output(ask.stop), max_predict_s=ask.max_predict_s)

    async def complete(self, arrival: Arrival, prompts: Sequence[str | list[int]], ask: Ask) -> Reply:
        """What follows each prompt, `ask.n` times. Raises `RequestError`, with nothing queued."""
        self.name_user(arrival, ask.user)
        text = await self.text_for(ask.model)
        self._check_count(ask.n * len(prompts))
        token_ids = [await text.token_ids(prompt) for prompt in prompts]
        shortest = min(map(len, token_ids))  # the scheduler ends a longer one at the model's length
        stream = self.submit(arrival, token_ids, text.sampling(ask, shortest), ask)
        output = partial(text.completion_output, ask.stop)
        return Reply(self.client, stream, text, output, max_predict_s=ask.max_predict_s)

    def _steady(self, arrival: Arrival, chat: Chat) -> Chat:
        """The messages with what changes in them at each request where its source's rules want it."""
        rules = self._volatile.get(arrival.identity.source)
        if not rules:
            return chat
        result = steadied(chat.messages, rules)
        if result.note is not None:
            arrival.notes.append(result.note)
        return replace(chat, messages=result.messages)

    def _check_count(self, count: int) -> None:
        limit = self.config.scheduler.max_num_seqs
        if count > limit:
            raise InvalidRequest(
                f"too many choices at once: {count} > {limit} maximum (scheduler.max_num_seqs)", param="n"
            )

    async def text_for(self, model: str | None) -> Text:
        """Tokenizer and template, as soon as they are read; the weights may still load. Raises `ModelNotFound`."""
        if self.text is None and self.supervisor.takes_requests:
            await self._text_settled.wait()
        if self.text is None:
            raise self.supervisor.not_ready()
        if not self.text.knows(model):
            raise ModelNotFound(f"model {model!r} does not exist; resident is {self.text.name!r}", param="model")
        return self.text

    def submit(self, arrival: Arrival, prompts: Sequence[list[int]], sampling: SamplingParams, ask: Ask) -> Stream:
        """Queue `ask.n` generations of each prompt, all or none. Raises `TooManyRequests`, `NotReady`.

        The first has the request's own id, the others add their number to it.
        """
        first_seed = secrets.randbits(64) if ask.seed is None else ask.seed
        now = time.monotonic()
        numbers = count()
        adds = [
            AddRequest(
                request_id=_numbered(arrival.caller.request_id, next(numbers)),
                prompt_token_ids=prompt,
                sampling=msgspec.structs.replace(sampling, seed=(first_seed + choice) % SEEDS),
                source=arrival.identity.source,
                fairness_class=arrival.identity.fairness_class,
                arrival_at=now,
                cache_prompt=ask.cache_prompt,
            )
            for prompt in prompts
            for choice in range(ask.n)
        ]
        return self.client.submit(adds, api=arrival.api, client_request_id=arrival.caller.client_request_id)

    def _identify(self, key: Key | None, caller: Caller, user: str | None) -> Identity:
        return self.sources.identify(key=key, header=caller.source_header, address=caller.address, user=user)


def _numbered(request_id: str, number: int) -> str:
    return f"{request_id}-{number}" if number else request_id

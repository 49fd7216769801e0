"""What every API family calls: who is asking, is it too long, may it queue, here is its stream.

One object per daemon. It connects the parts; each decision is made by the part it belongs to.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from homeai.config import Config
from homeai.errors import (
    InvalidRequest,
    ModelNotFound,
    NotAuthenticated,
    NotReady,
    NotSupported,
    PromptTooLong,
    RequestError,
)
from homeai.hardware import Probe
from homeai.keys import Key, KeyStore
from homeai.messages import AddRequest, StepStats
from homeai.request import SamplingParams
from homeai.server.arrival import Arrival, Caller
from homeai.server.ask import Ask
from homeai.server.batches.batches import Batches
from homeai.server.beginnings import Beginnings
from homeai.server.books import Books, status_of
from homeai.server.client import EngineClient
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage
from homeai.server.embeddings import Embedded, Embeddings, Input
from homeai.server.generation import Record
from homeai.server.keeper import Keeper
from homeai.server.limits import KeyLimits
from homeai.server.lookback import Lookback
from homeai.server.outputs import OutputText
from homeai.server.page_cache import keep_warm
from homeai.server.reply import Parser, PlainText, Reply
from homeai.server.side_requests import SideRequests, heads_of
from homeai.server.sources import Identity, OnBehalf, Sources
from homeai.server.stream import Stream
from homeai.server.supervisor import Supervisor
from homeai.server.text import Text
from homeai.server.vitals import Recorder
from homeai.server.volatile import Rule, rules_by_source, steadied
from homeai.vitals import BARE

SEEDS = 2**64
STAYS = "the model stays as long as this server's own settings say"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in the tokens of one model, and how its answers become text."""

    prompts: Sequence[list[int]]
    sampling: SamplingParams
    output: Callable[[], OutputText]
    parser: Callable[[], Parser] = PlainText


Prepare = Callable[[Text], Awaitable[Prepared]]


@dataclass(eq=False, slots=True)
class Service:
    config: Config
    model_path: Path
    supervisor: Supervisor
    client: EngineClient
    sources: Sources
    keys: KeyStore
    books: Books
    probe: Probe
    embeddings: Embeddings | None = None
    batches: Batches | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)
    lookback: Lookback = field(default_factory=Lookback)
    text: Text | None = None  # until the vocabulary is loaded
    is_closing: bool = False
    recorder: Recorder = field(default_factory=Recorder)
    beginnings: Beginnings = field(default_factory=Beginnings)
    _text_settled: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: Keeper = field(init=False)
    _volatile: dict[str, tuple[Rule, ...]] = field(init=False)  # by source
    _side_requests: SideRequests = field(init=False)

    def __post_init__(self) -> None:
        self.keeper = Keeper(self.supervisor, self.client, self.config.residency, self.config.classes, self.probe)
        self.keeper.keep_warm = lambda: keep_warm(self.model_path)
        self._volatile = rules_by_source(self.config.sources)
        self._side_requests = SideRequests(self.config.side_requests)
        self.client.on_finished = self._finished
        self.client.on_token_gap = self._token_gap
        self.client.on_first_token = self.lookback.first_token
        self.client.on_crash = partial(self.happened, "crash")
        self.client.on_step = self._stepped

    @property
    def model_file(self) -> str:
        return self.model_path.name

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
        if caller.on_behalf is not None:
            return self._key_of(caller.on_behalf)
        key = self.keys.find(caller.token) if caller.token else None
        if key is None and self.sources.needs_key(caller.address):
            if self.keys.failure is not None:
                raise NotReady("the API keys cannot be read at the moment; the log says why", retry_after_s=30.0)
            reason = "this API key is not known" if caller.token else "an API key is needed"
            raise NotAuthenticated(f"{reason}; `homeai keys add NAME` makes one")
        return key

    def _key_of(self, on_behalf: OnBehalf) -> Key | None:
        if on_behalf.key is None:
            return None
        key = self.keys.named(on_behalf.key)
        if key is None and self.keys.failure is not None:
            raise NotReady("the API keys cannot be read at the moment; the log says why", retry_after_s=30.0)
        if key is None:
            raise NotAuthenticated(f"the API key {on_behalf.key!r} is not known any more")
        return key

    @property
    def notes(self) -> list[str]:
        """What the owner should know, although everything goes on."""
        keys = [self.keys.failure] if self.keys.failure else []
        ready = self.supervisor.ready
        of_engine = ready.notes if ready else ()
        batches = [self.batches.failure] if self.batches and self.batches.failure else []
        return [
            *(self.text.notes if self.text else ()),
            *of_engine,
            *self.supervisor.warm_up.notes,
            *self.keeper.notes,
            *keys,
            *batches,
        ]

    @contextmanager
    def arriving(self, api: str, caller: Caller) -> Iterator[Arrival]:
        """From the first byte to the queue: what is refused in here gets its row in the ledger."""
        arrived = time.time()
        arrival = Arrival(api, caller, None, self._identify(None, caller, None), self.text)
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
        self._lower_side_request(arrival, heads_of(chat.messages))
        self.check_limits(arrival)
        await self.text_for(ask.model)
        self._check_count(ask.n)
        chat = self._steady(arrival, chat)
        self._see_beginning(arrival, chat.messages, ask)
        return await self._answer(arrival, partial(self._prepare_chat, arrival, chat, ask), ask)

    async def _prepare_chat(self, arrival: Arrival, chat: Chat, ask: Ask, text: Text) -> Prepared:
        chat = self._with_own_thinking(arrival, chat, text)
        prompt = await text.prompt_for(chat)
        begins_in_reasoning = prompt.begins_in_reasoning
        grammar = await text.grammar_for(chat, arrival.notes, begins_in_reasoning=begins_in_reasoning)
        return Prepared(
            [prompt.token_ids],
            text.sampling(ask, len(prompt.token_ids), grammar),
            partial(text.chat_output, ask.stop, chat, ignores_end=ask.sampling.ignore_eos),
            partial(text.parser, chat, begins_in_reasoning=begins_in_reasoning),
        )

    async def complete(
        self,
        arrival: Arrival,
        prompts: Sequence[str | list[int]],
        ask: Ask,
        *,
        answer_format: AnswerFormat | None = None,
    ) -> Reply:
        """What follows each prompt, `ask.n` times. Raises `RequestError`, with nothing queued."""
        self.name_user(arrival, ask.user)
        self._lower_side_request(arrival, [prompt for prompt in prompts if isinstance(prompt, str)])
        self.check_limits(arrival)
        await self.text_for(ask.model)
        self._check_count(ask.n * len(prompts))
        for prompt in prompts:
            if isinstance(prompt, str):
                self._see_beginning(arrival, [ChatMessage(BARE, prompt)], ask)
        return await self._answer(arrival, partial(self._prepare_prompts, arrival, prompts, ask, answer_format), ask)

    async def _prepare_prompts(
        self,
        arrival: Arrival,
        prompts: Sequence[str | list[int]],
        ask: Ask,
        answer_format: AnswerFormat | None,
        text: Text,
    ) -> Prepared:
        if arrival.text not in (text, None) and any(not isinstance(prompt, str) for prompt in prompts):
            raise NotReady("another model was loaded meanwhile, and the prompt is in tokens of the one before it")
        token_ids = [await text.token_ids(prompt) for prompt in prompts]
        shortest = min(map(len, token_ids))  # the scheduler ends a longer one at the model's length
        grammar = await text.grammar_of_answer(answer_format, arrival.notes) if answer_format else None
        output = partial(text.completion_output, ask.stop, ask.min_indent)
        return Prepared(token_ids, text.sampling(ask, shortest, grammar), output)

    async def _answer(self, arrival: Arrival, prepare: Prepare, ask: Ask) -> Reply:
        text = await self.text_for(ask.model)
        prepared = await prepare(text)
        while text is not self.text:  # another model came while the tokens of the one before it were made
            text = await self.text_for(ask.model)
            prepared = await prepare(text)
        stream = self.submit(arrival, prepared.prompts, prepared.sampling, ask)
        reply = Reply(self.client, stream, text, prepared.output, prepared.parser, max_predict_s=ask.max_predict_s)
        stream.again = partial(self._again, arrival, reply, prepare, ask)
        return reply

    async def _again(self, arrival: Arrival, reply: Reply, prepare: Prepare, ask: Ask, text: Text) -> list[AddRequest]:
        """For another model, what still waits. Raises `RequestError` when that cannot serve it."""
        self._check_model(text, ask.model)
        prepared = await prepare(text)
        reply.become(text, prepared.output, prepared.parser)
        adds = []
        for generation, prompt in zip(reply.generations, _each(prepared.prompts, ask.n), strict=True):
            sampling = self._sampling_of(arrival, prompt, prepared.sampling, generation.add.sampling.seed)
            adds.append(msgspec.structs.replace(generation.add, prompt_token_ids=prompt, sampling=sampling))
        return adds

    async def count_tokens(self, arrival: Arrival, chat: Chat, model: str | None) -> int:
        """How long the prompt of a conversation is, even if it is too long. Nothing queues for it."""
        text = await self.text_for(model)
        try:
            return len(await text.encode_chat(self._with_own_thinking(arrival, self._steady(arrival, chat), text)))
        except PromptTooLong as error:
            if error.at_least:
                raise
            return error.num_prompt_tokens

    async def embed(
        self, arrival: Arrival, inputs: Sequence[Input], *, model: str | None = None, dimensions: int | None = None
    ) -> Embedded:
        """A vector for each text, or list of token ids. Raises `RequestError`."""
        arrived = time.time()
        self.check_limits(arrival)
        text = await self.text_for(None)
        if self.embeddings is None:
            raise NotSupported("this server makes no embeddings")
        if not self.supervisor.takes_requests:
            raise self.supervisor.not_ready()
        embedded = await self.embeddings.embed(
            text,
            inputs,
            model=model,
            dimensions=dimensions,
            max_tokens=arrival.key.max_context if arrival.key else None,
        )
        arrival.notes += embedded.notes
        now, key, caller = time.time(), arrival.key.name if arrival.key else None, arrival.caller
        self.limits.charge(key, embedded.num_tokens, now)
        self.books.embedded(
            caller.request_id,
            arrival.api,
            arrival.identity,
            arrived,
            now - arrived,
            embedded.num_tokens,
            model=embedded.model,
            client_request_id=caller.client_request_id,
            key=key,
        )
        return embedded

    def check_limits(self, arrival: Arrival) -> None:
        """Counts one more request of its key. Raises `TooManyRequests`, `QuotaExceeded`.

        Work that was handed in earlier uses up its key's tokens, but nobody's requests of this minute."""
        is_earlier = arrival.caller.on_behalf is not None
        self.limits.check(arrival.key, time.time(), counts_requests=not is_earlier)

    def _lower_side_request(self, arrival: Arrival, texts: Sequence[str]) -> None:
        if self._side_requests.is_side_request(texts, arrival.caller.headers):
            arrival.identity = self.sources.lowered(arrival.identity, self._side_requests.lower_to)

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
        self._check_model(self.text, model)
        if (ready := self.supervisor.ready) is not None:
            self.text.max_model_len = ready.max_model_len  # the engine may have had to take less
        return self.text

    async def ensure_ready(self, arrival: Arrival, keep_alive_s: float | None) -> None:
        """The model is resident, or `NotReady` says why it is not."""
        identity = arrival.identity
        self._note_keep_alive(arrival, keep_alive_s)
        wait_s = self.config.classes[identity.fairness_class].queue_timeout_s
        await self.keeper.ensure_ready(identity.source, identity.fairness_class, keep_alive_s, wait_s)

    def release(self, arrival: Arrival) -> None:
        """Who asks does not need the model any more."""
        if self.keeper.honours_keep_alive:
            self.keeper.may_leave(arrival.identity.source)
            arrival.notes.append("the model leaves as soon as nobody else needs it")
        else:
            arrival.notes.append("the model stays: it is not unloaded on request")

    def _note_keep_alive(self, arrival: Arrival, keep_alive_s: float | None) -> None:
        if keep_alive_s is not None and not self.keeper.honours_keep_alive:
            arrival.notes.append(f"keep_alive has no effect: {STAYS}")

    def _check_model(self, text: Text, model: str | None) -> None:
        if not text.knows(model):
            raise ModelNotFound(f"model {model!r} does not exist; resident is {text.name!r}", param="model")

    def _sampling_of(self, arrival: Arrival, prompt: list[int], sampling: SamplingParams, seed: int) -> SamplingParams:
        """Of one choice."""
        max_tokens = self.limits.room(arrival.key, len(prompt), sampling.max_tokens)
        return msgspec.structs.replace(sampling, seed=seed, max_tokens=max_tokens)

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
                sampling=self._sampling_of(arrival, prompt, sampling, (first_seed + choice) % SEEDS),
                source=arrival.identity.source,
                fairness_class=arrival.identity.fairness_class,
                arrival_at=now,
                cache_prompt=ask.cache_prompt,
            )
            for prompt in prompts
            for choice in range(ask.n)
        ]
        key = arrival.key.name if arrival.key else None
        self.keeper.arrive(arrival.identity.source, arrival.identity.fairness_class, ask.keep_alive_s)
        self._note_keep_alive(arrival, ask.keep_alive_s)
        stream = self.client.submit(adds, api=arrival.api, client_request_id=arrival.caller.client_request_id, key=key)
        if self._is_shown(arrival.identity.source):
            for generation in stream.generations:
                generation.shown_text = ""
        return stream

    def _is_shown(self, source: str) -> bool:
        return any(configured.show_text for configured in self.config.sources if configured.name == source)

    def _with_own_thinking(self, arrival: Arrival, chat: Chat, text: Text) -> Chat:
        """A chat that does not say whether to reason does as the settings say."""
        if chat.thinks is not None or not text.can_think:
            return chat
        return replace(chat, thinks=self._thinks(arrival.identity))

    def _thinks(self, identity: Identity) -> bool | None:
        """What the settings say about reasoning where the request says nothing."""
        own = (source.thinks for source in self.config.sources if source.name == identity.source)
        by_class = self.config.classes[identity.fairness_class].thinks
        return next((thinks for thinks in own if thinks is not None), by_class)

    def _see_beginning(self, arrival: Arrival, messages: Sequence[ChatMessage], ask: Ask) -> None:
        source = arrival.identity.source
        is_private = any(each.private for each in self.config.sources if each.name == source)
        self.beginnings.see(source, messages, is_private=is_private, may_use_cache=ask.cache_prompt)

    def _stepped(self, stats: StepStats) -> None:
        self.books.stepped(stats)
        self.recorder.stepped(stats)
        self.lookback.stepped(stats)

    def _token_gap(self, fairness_class: str, seconds: float) -> None:
        self.books.metrics.observe_token_gap(fairness_class, seconds)
        self.lookback.gap(fairness_class, seconds)

    def happened(self, kind: str, detail: str) -> None:
        """For whoever looks later."""
        self.books.event(kind, detail)
        self.lookback.event(kind, detail)

    def _finished(self, record: Record) -> None:
        generation = record.generation
        num_tokens = len(generation.add.prompt_token_ids) + generation.num_output_tokens
        self.limits.charge(generation.key, num_tokens, time.time())
        self.books.finished(record)
        self.lookback.ended(record, self.client.live, status_of(record))
        self.keeper.ended(generation.add.source)

    def _identify(self, key: Key | None, caller: Caller, user: str | None) -> Identity:
        if caller.on_behalf is not None:
            return caller.on_behalf.identity
        return self.sources.identify(
            key=key,
            header=caller.source_header,
            address=caller.address,
            user=user,
            openwebui=caller.openwebui,
            user_agent=caller.headers.get("user-agent"),
        )


def _each(prompts: Sequence[list[int]], n: int) -> list[list[int]]:
    """A prompt for each choice, in the order of the choices."""
    return [prompt for prompt in prompts for _ in range(n)]


def _numbered(request_id: str, number: int) -> str:
    return f"{request_id}-{number}" if number else request_id

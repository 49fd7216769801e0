"""Between text and token ids for one model: its name, its template, its vocabulary, its length."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec

from homeai.backends.choice import backend_of, load_vocabulary, model_name, unused
from homeai.config import Config
from homeai.errors import ConfigError, InvalidRequest, PromptTooLong
from homeai.model_card import ModelCard
from homeai.request import Grammar, SamplingParams, longest_request
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage
from homeai.server.families.parser import AnswerParser
from homeai.server.families.syntax import ReplyFormat
from homeai.server.grammars import grammar_for, grammar_of_answer
from homeai.server.infill import Gap, InfillPrompt, infill_prompt
from homeai.server.outputs import OutputText
from homeai.server.prompts import EncodedPrompt, PromptRenderer
from homeai.server.tokenising import Tokenising
from homeai.server.volatile import Rule, steadied
from homeai.vocabulary import BREAK, Vocabulary

T = TypeVar("T")

INLINE_CHARS = 2048  # tokenised in less time than a thread takes to answer
LONG_CHARS = 131_072  # more than that waits for its like, and nobody else for it
MAX_CHARS = 1_000_000  # of what is only tokenised or rendered, however long a prompt may be
TWO_QUESTIONS = ("Hello", "7")  # that begin differently


class Text:
    """Shared by all API families. Long texts are tokenised in threads: 1 MB takes a second or two."""

    def __init__(self, name: str, vocabulary: Vocabulary, renderer: PromptRenderer, config: Config) -> None:
        self._vocabulary = vocabulary
        self._renderer = renderer
        self._threads = ThreadPoolExecutor(2, "tokenize")
        self._long_texts = ThreadPoolExecutor(1, "tokenize-long")
        self._chat_piece = vocabulary.piece_with(renderer.reply_format.markers)
        self.name = config.model.name or name
        self.aliases = config.model.aliases
        scheduler = config.scheduler
        self.max_model_len = longest_request(
            scheduler.max_model_len, vocabulary.n_ctx_train, scheduler.cells_per_request
        )
        self.unused: list[str] = []  # settings without effect, a sentence each
        self.load_s = 0.0  # what reading it took
        self.tokenising = Tokenising()
        self.n_ctx_train = vocabulary.n_ctx_train
        self.num_vocab_tokens = vocabulary.num_tokens

    @classmethod
    def load(cls, path: Path, config: Config) -> Text:
        """Reads the vocabulary of the model at `path`. Takes some 0.4 s; raises `ModelLoadError`, `ConfigError`."""
        started_at = time.monotonic()
        vocabulary = load_vocabulary(path, config.model.backend)
        template = config.model.chat_template
        source = _read_template(template) if template else vocabulary.chat_template
        text = cls(model_name(path), vocabulary, PromptRenderer(vocabulary, source), config)
        text.unused = unused(config, backend_of(path, config.model.backend))
        text.load_s = time.monotonic() - started_at
        return text

    @property
    def notes(self) -> list[str]:
        """What the owner should know about these settings and this model."""
        if self.n_ctx_train == 0 or self.max_model_len <= self.n_ctx_train:
            return self.unused
        return [
            *self.unused,
            f"scheduler.max_model_len is {self.max_model_len}, but the model was trained for {self.n_ctx_train} "
            "tokens: answers to longer texts may make no sense",
        ]

    @property
    def template(self) -> str:
        """The source of what makes prompts of chats."""
        return self._renderer.template

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def bos_text(self) -> str:
        return self._vocabulary.bos_text

    @property
    def eos_text(self) -> str:
        return self._vocabulary.eos_text

    @property
    def card(self) -> ModelCard:
        return self._vocabulary.card

    @property
    def fills_gaps(self) -> bool:
        return self._vocabulary.infill_tokens is not None

    @property
    def can_think(self) -> bool:
        return self._renderer.can_think

    @property
    def takes_tools(self) -> bool:
        """The template describes tools itself; else they are told in words."""
        return self._renderer.takes_tools

    @property
    def reply_format(self) -> ReplyFormat:
        return self._renderer.reply_format

    @property
    def default_stop(self) -> tuple[str, ...]:
        """Stop strings that every chat has beside its own."""
        return self._renderer.default_stop

    @property
    def template_kind(self) -> str:
        return "plain transcript" if self._renderer.default_stop else "chat template"

    def knows(self, name: str | None) -> bool:
        """Whether a request that asks for `name` means the resident model."""
        return not name or name == self.name or name in self.aliases or "*" in self.aliases

    async def encode_chat(self, chat: Chat) -> list[int]:
        return (await self.prompt_for(chat)).token_ids

    async def prompt_for(self, chat: Chat) -> EncodedPrompt:
        """The tokens of a chat, and whether the answer begins in the midst of reasoning."""
        size = sum(message.num_chars for message in chat.messages) + sum(tool.num_chars for tool in chat.tools)
        check = partial(self._check_size, param="messages")
        prompt = await self.run(size, lambda: self._renderer.encode(chat, check))
        self.check_token_ids(prompt.token_ids, param="messages")
        return prompt

    async def encode_prompt(self, prompt: str) -> list[int]:
        return await self._fitting(len(prompt), lambda: self._encode_prompt(prompt), param="prompt")

    async def token_ids(self, prompt: str | list[int]) -> list[int]:
        """Of a prompt that is a text, or ids from outside."""
        if isinstance(prompt, str):
            return await self.encode_prompt(prompt)
        self.check_token_ids(prompt, param="prompt")
        return prompt

    async def encode_infill(self, prefix: str, suffix: str, *, param: str = "prompt") -> list[int]:
        """What stands between two texts is to be written. Raises `NotSupported` where the model cannot do that."""
        gap = Gap(prefix, suffix)

        def encode() -> list[int]:
            self._check_size(prefix, param=param)
            self._check_size(suffix, param="suffix")
            return infill_prompt(self._vocabulary, gap, sys.maxsize).token_ids

        return await self._fitting(gap.num_chars, encode, param=param)

    async def encode_gap(self, gap: Gap, num_reserved: int) -> InfillPrompt:
        """Of a gap in a text, what fits beside an answer of `num_reserved` tokens. Raises `NotSupported`."""
        room = self.max_model_len - max(1, min(num_reserved, self.max_model_len // 2))
        return await self.run(gap.num_chars, lambda: infill_prompt(self._vocabulary, gap, room))

    async def encode_mixed(self, parts: Sequence[str | int]) -> list[int]:
        """Of a prompt that a client put together from texts, in which control tokens count, and token ids."""

        def encode() -> list[int]:
            for part in parts:
                if isinstance(part, str):
                    self._check_size(part, param="prompt")
            return self._vocabulary.encode_parts(parts, add_special=True, parse_special=True)

        return await self._fitting(_num_chars(parts), encode, param="prompt")

    async def tokenize(
        self, parts: Sequence[str | int], *, add_special: bool, parse_special: bool = True, param: str
    ) -> list[int]:
        """Texts and token ids put together, longer than a prompt too.

        Raises `InvalidRequest` for more than `MAX_CHARS`, and for a token that does not exist.
        """
        _check_chars(_num_chars(parts), param=param)
        self._check_vocabulary([part for part in parts if isinstance(part, int)], param=param)
        encode = partial(self._vocabulary.encode_parts, parts, add_special=add_special, parse_special=parse_special)
        return await self.run(_num_chars(parts), encode)

    async def tokenize_each(self, texts: Sequence[str], *, param: str) -> list[list[int]]:
        """Texts, each by itself. Raises `InvalidRequest` for more than `MAX_CHARS`."""
        _check_chars(_num_chars(texts), param=param)
        encode = partial(self._vocabulary.encode_parts, add_special=False, parse_special=False)
        return await self.run(_num_chars(texts), lambda: [encode([text]) for text in texts])

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """Their text, control tokens and all. Raises `InvalidRequest` for a token that does not exist."""
        token_ids = list(token_ids)
        self._check_vocabulary(token_ids, param="tokens")
        return b"".join(map(self._vocabulary.shown, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A token by itself, control tokens too; maybe half a character."""
        return self._vocabulary.shown(token_id)

    async def render_chat(self, chat: Chat) -> str:
        """The prompt of a chat as text. Raises `InvalidRequest` for more than `MAX_CHARS`."""
        size = sum(message.num_chars for message in chat.messages) + sum(tool.num_chars for tool in chat.tools)
        _check_chars(size, param="messages")
        return await self.run(size, lambda: self._renderer.render(chat).text.replace(BREAK, ""))

    def encode_system(self, system: str, rules: Sequence[Rule]) -> list[int]:
        """What every chat with this system prompt begins with, whatever the user asks.

        Raises `PromptTooLong`, and `InvalidRequest` where the template does not take it.
        """
        one, other = (self._encode_question(system, question, rules) for question in TWO_QUESTIONS)
        common = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return _settled([token_id for token_id, _ in common])

    def encode_beginning(self, prompt: str) -> list[int]:
        """What every prompt begins with that begins with this text. Raises `PromptTooLong`."""
        token_ids = self._encode_prompt(prompt)
        self.check_length(len(token_ids), param="prompt")
        return _settled(token_ids)

    def _encode_question(self, system: str, question: str, rules: Sequence[Rule]) -> list[int]:
        messages = steadied([ChatMessage("system", system), ChatMessage("user", question)], rules).messages
        check = partial(self._check_size, param="system")
        token_ids = self._renderer.encode(Chat(messages=messages), check).token_ids
        self.check_length(len(token_ids), param="system")
        return token_ids

    def completion_output(self, stop: Sequence[str], min_indent: int = 0) -> OutputText:
        return OutputText(self._vocabulary.piece, stop, min_indent=min_indent)

    def chat_output(self, stop: Sequence[str], chat: Chat, *, ignores_end: bool = False) -> OutputText:
        """A model without a template of its own needs our transcript's stop strings beside the client's. They stand for
        its end token: who ignores that goes on behind them."""
        stops = [*stop, *(() if ignores_end else self._renderer.stop_for(chat))]
        return OutputText(self._chat_piece, stops, skip_space=bool(self._renderer.default_stop))

    def parser(self, chat: Chat, *, begins_in_reasoning: bool) -> AnswerParser:
        """Of one answer to `chat`."""
        tools = chat.tools if chat.tool_choice.mode != "none" else ()
        return AnswerParser(
            self.reply_format,
            tools,
            begins_in_reasoning=begins_in_reasoning,
            hides_reasoning=chat.thinks is False,
        )

    async def grammar_for(self, chat: Chat, notes: list[str], *, begins_in_reasoning: bool) -> Grammar | None:
        """What an answer to `chat` must follow. Raises `InvalidRequest`; `notes` gets what was relaxed."""
        return await self.run(
            sum(tool.num_chars for tool in chat.tools) + (chat.answer_format.num_chars if chat.answer_format else 0),
            lambda: grammar_for(
                chat,
                self.reply_format,
                begins_in_reasoning=begins_in_reasoning,
                marker_id=self._vocabulary.control_id,
                notes=notes,
            ),
        )

    async def grammar_of_answer(self, answer: AnswerFormat, notes: list[str]) -> Grammar:
        """What a completion must follow. Raises `InvalidRequest`."""
        return await self.run(answer.num_chars, lambda: grammar_of_answer(answer, notes))

    def is_end(self, token_id: int) -> bool:
        return token_id in self._vocabulary.end_token_ids

    def token_text(self, token_id: int) -> str:
        """A token by itself, control tokens too, for log-probabilities."""
        return self._vocabulary.text(token_id)

    def piece(self, token_id: int) -> bytes:
        return self._vocabulary.piece(token_id)

    def check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        """Ids from outside: each must exist, and they must fit."""
        if not token_ids:
            raise InvalidRequest("the prompt is empty: at least one token is needed", param=param)
        self.check_length(len(token_ids), param=param)
        self._check_vocabulary(token_ids, param=param)

    def _check_vocabulary(self, token_ids: Iterable[int], *, param: str) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.num_vocab_tokens:
                raise InvalidRequest(
                    f"token {token_id} does not exist; the vocabulary is 0 to {self.num_vocab_tokens - 1}", param=param
                )

    def sampling(self, ask: Ask, num_prompt_tokens: int, grammar: Grammar | None = None) -> SamplingParams:
        """How to draw, within what there is room for. Raises `InvalidRequest`."""
        wanted = ask.sampling
        for token_id in wanted.logit_bias:
            if not 0 <= token_id < self.num_vocab_tokens:
                raise InvalidRequest(
                    f"logit_bias names token {token_id}; the vocabulary is 0 to {self.num_vocab_tokens - 1}",
                    param="logit_bias",
                )
        room = self.max_model_len - num_prompt_tokens
        max_tokens = room if ask.max_tokens is None else min(room, ask.max_tokens)
        min_tokens = min(wanted.min_tokens, max_tokens)
        return msgspec.structs.replace(wanted, max_tokens=max_tokens, min_tokens=min_tokens, grammar=grammar)

    def _encode_prompt(self, prompt: str) -> list[int]:
        self._check_size(prompt, param="prompt")
        return self._vocabulary.encode_prompt(prompt)

    def _check_size(self, text: str, *, param: str) -> None:
        """What cannot fit whatever its tokens are is not tokenised: that takes a second for each megabyte or two."""
        if (num_tokens := self._vocabulary.min_tokens(text)) >= self.max_model_len:
            raise PromptTooLong(num_tokens, self.max_model_len - 1, at_least=True, param=param)

    def check_length(self, num_prompt_tokens: int, *, param: str) -> None:
        """A prompt needs room for at least one token after it."""
        if num_prompt_tokens >= self.max_model_len:
            raise PromptTooLong(num_prompt_tokens, self.max_model_len - 1, param=param)

    async def _fitting(self, size: int, encode: Callable[[], list[int]], *, param: str) -> list[int]:
        token_ids = await self.run(size, encode)
        self.check_token_ids(token_ids, param=param)
        return token_ids

    async def run(self, size: int, encode: Callable[[], T]) -> T:
        """What takes long for `size` characters in a thread; what takes very long in one of its own."""
        if size <= INLINE_CHARS:
            return self.tokenising.here(encode)
        threads = self._threads if size <= LONG_CHARS else self._long_texts
        return await self.tokenising.in_thread(threads, size, encode)


def _num_chars(parts: Iterable[str | int]) -> int:
    return sum(len(part) if isinstance(part, str) else 1 for part in parts)


def _check_chars(num_chars: int, *, param: str) -> None:
    if num_chars > MAX_CHARS:
        raise InvalidRequest(f"{param} has {num_chars} characters > {MAX_CHARS} maximum", param=param)


def _settled(token_ids: list[int]) -> list[int]:
    """Without the last token, which may become another one with what follows."""
    return token_ids[:-1]


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: {str(path)!r} cannot be read: {error}") from None

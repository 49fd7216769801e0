"""Between text and token ids for one model: its name, its template, its vocabulary, its length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec

from homeai.backends.llamacpp.vocab import Vocabulary
from homeai.config import Config
from homeai.errors import ConfigError, InvalidRequest, PromptTooLong
from homeai.request import SamplingParams, longest_request
from homeai.server.ask import Ask
from homeai.server.conversation import Chat, ChatMessage
from homeai.server.outputs import OutputText
from homeai.server.prompts import PromptRenderer
from homeai.server.volatile import Rule, steadied

T = TypeVar("T")

INLINE_CHARS = 2048  # tokenised in less time than a thread takes to answer
TWO_QUESTIONS = ("Hello", "7")  # that begin differently


class Text:
    """Shared by all API families. Long texts are tokenised in threads: 1 MB takes a second or two."""

    def __init__(self, name: str, vocabulary: Vocabulary, renderer: PromptRenderer, config: Config) -> None:
        self._vocabulary = vocabulary
        self._renderer = renderer
        self._threads = ThreadPoolExecutor(2, "tokenize")
        self.name = config.model.name or name
        self.aliases = config.model.aliases
        scheduler = config.scheduler
        self.max_model_len = longest_request(
            scheduler.max_model_len, vocabulary.n_ctx_train, scheduler.cells_per_request
        )
        self.n_ctx_train = vocabulary.n_ctx_train
        self.num_vocab_tokens = vocabulary.num_tokens

    @classmethod
    def load(cls, path: Path, config: Config) -> Text:
        """Reads the vocabulary of the model at `path`. Takes some 0.4 s; raises `ModelLoadError`, `ConfigError`."""
        vocabulary = Vocabulary.load(path)
        template = config.model.chat_template
        source = _read_template(template) if template else vocabulary.chat_template
        return cls(path.stem, vocabulary, PromptRenderer(vocabulary, source), config)

    @property
    def notes(self) -> list[str]:
        """What the owner should know about these settings and this model."""
        if self.n_ctx_train == 0 or self.max_model_len <= self.n_ctx_train:
            return []
        return [
            f"scheduler.max_model_len is {self.max_model_len}, but the model was trained for {self.n_ctx_train} "
            "tokens: answers to longer texts may make no sense"
        ]

    @property
    def template_kind(self) -> str:
        return "plain transcript" if self._renderer.default_stop else "chat template"

    def knows(self, name: str | None) -> bool:
        """Whether a request that asks for `name` means the resident model."""
        return not name or name == self.name or name in self.aliases or "*" in self.aliases

    async def encode_chat(self, chat: Chat) -> list[int]:
        size = sum(message.num_chars for message in chat.messages)
        check = partial(self._check_size, param="messages")
        return await self._fitting(size, lambda: self._renderer.encode(chat.messages, check), param="messages")

    async def encode_prompt(self, prompt: str) -> list[int]:
        return await self._fitting(len(prompt), lambda: self._encode_prompt(prompt), param="prompt")

    async def token_ids(self, prompt: str | list[int]) -> list[int]:
        """Of a prompt that is a text, or ids from outside."""
        if isinstance(prompt, str):
            return await self.encode_prompt(prompt)
        self.check_token_ids(prompt, param="prompt")
        return prompt

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
        token_ids = self._renderer.encode(messages, partial(self._check_size, param="system"))
        self.check_length(len(token_ids), param="system")
        return token_ids

    def completion_output(self, stop: Sequence[str]) -> OutputText:
        return OutputText(self._vocabulary.piece, stop)

    def chat_output(self, stop: Sequence[str]) -> OutputText:
        """A model without a template of its own needs our transcript's stop strings beside the client's."""
        transcript_stop = self._renderer.default_stop
        return OutputText(self._vocabulary.piece, [*stop, *transcript_stop], skip_space=bool(transcript_stop))

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
        for token_id in token_ids:
            if not 0 <= token_id < self.num_vocab_tokens:
                raise InvalidRequest(
                    f"token {token_id} does not exist; the vocabulary is 0 to {self.num_vocab_tokens - 1}", param=param
                )

    def sampling(self, ask: Ask, num_prompt_tokens: int) -> SamplingParams:
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
        return msgspec.structs.replace(wanted, max_tokens=max_tokens, min_tokens=min(wanted.min_tokens, max_tokens))

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
        if size <= INLINE_CHARS:
            token_ids = encode()
        else:
            token_ids = await asyncio.get_running_loop().run_in_executor(self._threads, encode)
        self.check_token_ids(token_ids, param=param)
        return token_ids


def _settled(token_ids: list[int]) -> list[int]:
    """Without the last token, which may become another one with what follows."""
    return token_ids[:-1]


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: {str(path)!r} cannot be read: {error}") from None

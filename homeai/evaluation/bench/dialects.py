"""How a call is put to a server, and what a line of its answer says. Pure: bytes in, bytes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from homeai.evaluation.bench.trace import Call, text_of

TEMPERATURE: Final = 0.8
DATA: Final = b"data:"
DONE: Final = b"[DONE]"


class Event(NamedTuple):
    """Of one line. `has_text`: a token was drawn. Counts are None where the line has none."""

    has_text: bool = False
    is_end: bool = False
    error: str | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Wording:
    """`forces_length`: answers end at `max_tokens` and not before, where the server can do that."""

    model: str
    salt: str
    forces_length: bool


class Dialect(Protocol):
    name: str
    path: str

    def body(self, call: Call, index: int, wording: Wording) -> bytes: ...

    def read(self, line: bytes) -> Event | None:
        """None for a line without news. Raises `msgspec.MsgspecError` for one that cannot be understood."""
        ...


# ---- OpenAI's ------------------------------------------------------------------------------------------


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_chunk = msgspec.json.Decoder(_Chunk)


def _read_openai(line: bytes) -> Event | None:
    if not line.startswith(DATA):
        return None
    data = line[len(DATA) :].strip()
    if data == DONE:
        return Event(is_end=True)
    chunk = _chunk.decode(data)
    if chunk.error is not None:
        return Event(error=message_of(data))
    usage = chunk.usage
    return Event(
        has_text=any(_has_text(choice) for choice in chunk.choices),
        num_prompt_tokens=usage.prompt_tokens if usage else None,
        num_cached_tokens=usage.prompt_tokens_details.cached_tokens if usage and usage.prompt_tokens_details else None,
        num_output_tokens=usage.completion_tokens if usage else None,
    )


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


def _fields(call: Call, index: int, wording: Wording) -> dict[str, object]:
    fields: dict[str, object] = {
        "model": wording.model,
        "max_tokens": call.max_tokens,
        "temperature": TEMPERATURE,
        "seed": index,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return fields | {"ignore_eos": True} if wording.forces_length else fields


class Chat:
    name = "chat"
    path = "/v1/chat/completions"

    def body(self, call: Call, index: int, wording: Wording) -> bytes:
        return msgspec.json.encode(_fields(call, index, wording) | {"messages": _messages(call, wording.salt)})

    def read(self, line: bytes) -> Event | None:
        return _read_openai(line)


class Completions:
    name = "completions"
    path = "/v1/completions"

    def body(self, call: Call, index: int, wording: Wording) -> bytes:
        prompt = text_of([*call.system, *call.prompt], wording.salt)
        return msgspec.json.encode(_fields(call, index, wording) | {"prompt": prompt})

    def read(self, line: bytes) -> Event | None:
        return _read_openai(line)


# ---- Ollama's ------------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: str = ""
    thinking: str | None = None


class _OllamaLine(msgspec.Struct):
    message: _Message | None = None
    done: bool = False
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: str | None = None


_ollama_line = msgspec.json.Decoder(_OllamaLine)


class Ollama:
    """Its answers end where the model ends them."""

    name = "ollama"
    path = "/api/chat"

    def body(self, call: Call, index: int, wording: Wording) -> bytes:
        options = {"num_predict": call.max_tokens, "temperature": TEMPERATURE, "seed": index}
        body = {"model": wording.model, "messages": _messages(call, wording.salt), "stream": True, "options": options}
        return msgspec.json.encode(body)

    def read(self, line: bytes) -> Event | None:
        if not line.strip():
            return None
        found = _ollama_line.decode(line)
        message = found.message
        return Event(
            has_text=bool(message and (message.content or message.thinking)),
            is_end=found.done,
            error=found.error,
            num_prompt_tokens=found.prompt_eval_count,
            num_output_tokens=found.eval_count,
        )


DIALECTS: Final[dict[str, Dialect]] = {each.name: each for each in (Chat(), Completions(), Ollama())}


def _messages(call: Call, salt: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": text_of(call.system, salt)}] if call.system else []
    return [*system, {"role": "user", "content": text_of(call.prompt, salt)}]


def message_of(body: bytes) -> str:
    """What an error's body says, whichever family's it is; at most a line."""
    try:
        error = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:200].decode("utf-8", "replace").strip()
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or error.get("detail") or str(error)
    return str(error)[:200]

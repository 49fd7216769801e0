"""Messages → token ids: the model's chat template, run in a sandbox, or a plain transcript for base models.

What people wrote enters the template escaped (`backends/llamacpp/vocab.py`), so only the template itself can
write control tokens. A template that refuses messages is a client's mistake (400), never a server error.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from homeai.errors import ConfigError, InvalidRequest, Unsupported
from homeai.server.conversation import ChatMessage

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
ALIASES: Final = {"developer": "system", "function": "tool"}
PARAGRAPH: Final = "\n\n"  # between messages that become one

END: Final = "\ufdd1"  # a noncharacter that `escape` lets nobody send: where an unfinished answer ends

TRANSCRIPT: Final = """
{%- for message in messages %}
{{- "" if loop.first else "\\n\\n" if loop.previtem.role == "system" else "\\n" }}
{{- message.content if message.role == "system" else message.role | capitalize ~ ": " ~ message.content }}
{%- endfor %}
{{- "\\nAssistant:" if add_generation_prompt }}"""
TRANSCRIPT_STOP: Final = ("\nUser:",)  # a base model goes on to write the person's next line


class Tokenizer(Protocol):
    """What a prompt needs of the vocabulary."""

    bos_text: str
    eos_text: str

    def escape(self, text: str) -> str: ...

    def encode(self, rendered: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message made plain: a known role and escaped text."""

    role: str
    content: str
    name: str | None = None


class PromptRenderer:
    """Renders one model's prompts. `template` None means a plain transcript; thread-safe once built.

    Raises `ConfigError` for a template that does not compile.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        *,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self._tokenizer = tokenizer
        self.default_stop: tuple[str, ...] = TRANSCRIPT_STOP if template is None else ()
        self._template = _compile(TRANSCRIPT if template is None else template, now)
        self._takes_system = self._shows_system_text(_Turn("user", "hello"))
        self._takes_system_to_continue = self._shows_system_text(_Turn("user", "hello"), _Turn("assistant", "hi"))

    def encode(
        self, messages: Sequence[ChatMessage], check: Callable[[str], None] = lambda rendered: None
    ) -> list[int]:
        """The prompt of a chat; `check` may refuse its text before it is tokenised.

        Raises `InvalidRequest` for messages that the template cannot take.
        """
        rendered = self.render(messages)
        check(rendered)
        return self._tokenizer.encode(rendered)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt as text, escaped. Ends where the assistant's next word belongs.

        1. All system text comes first, in one message; folded into the first user message for templates
           that do not take a system message.
        2. A template that insists on alternating roles gets neighbours of one role as one message.
        3. A last message of the assistant is continued, not answered; an empty one asks for an answer.
        """
        turns = _without_empty_answer(_system_first(self._plain(messages)))
        is_continued = turns[-1].role == "assistant"
        if not (self._takes_system_to_continue if is_continued else self._takes_system):
            turns = _without_system(turns)
        try:
            return self._prompt(turns)
        except InvalidRequest:
            merged = _alternating(turns)
            if merged == turns:
                raise
            return self._prompt(merged)

    def _plain(self, messages: Sequence[ChatMessage]) -> list[_Turn]:
        if not messages:
            raise InvalidRequest("messages is empty; at least one message is needed", param="messages")
        escape = self._tokenizer.escape
        return [
            _Turn(
                role=_role(message.role, f"messages[{index}].role"),
                content=escape(_text(message, f"messages[{index}].content")),
                name=None if message.name is None else escape(message.name),
            )
            for index, message in enumerate(messages)
        ]

    def _prompt(self, turns: list[_Turn]) -> str:
        """Render; an unfinished answer at the end is marked first, and the prompt is cut at the mark."""
        *earlier, last = turns
        if last.role != "assistant":
            return self._render(turns, add_generation_prompt=True)
        marked = self._render([*earlier, replace(last, content=last.content + END)], add_generation_prompt=False)
        prompt, mark, _end_of_turn = marked.rpartition(END)
        if not mark:
            raise InvalidRequest("the chat template leaves the last message out; it cannot go on", param="messages")
        return prompt.replace(END, "")

    def _render(self, turns: Sequence[_Turn], *, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=[_as_dict(turn) for turn in turns],
                bos_token=self._tokenizer.bos_text,
                eos_token=self._tokenizer.eos_text,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is somebody else's program: it may raise anything
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error

    def _shows_system_text(self, *turns: _Turn) -> bool:
        """Some templates refuse a system message, others drop it without a word, some only in front of an
        unfinished answer: try one."""
        try:
            return "system text" in self._prompt([_Turn("system", "system text"), *turns])
        except InvalidRequest:
            return False


# ---- messages, made plain --------------------------------------------------------------------------


def _role(role: str, param: str) -> str:
    if role not in ROLES:
        raise InvalidRequest(f"role {role!r} is not known; allowed are {', '.join(ROLES)}", param=param)
    return ALIASES.get(role, role)


def _text(message: ChatMessage, param: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        return "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(message.content))
    if message.role == "assistant":  # as after a tool call
        return ""
    raise InvalidRequest(f"a {message.role} message needs content", param=param)


def _part_text(part: Mapping[str, object], param: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise Unsupported(f"content of type {kind!r} is not supported; this model reads text", param=param)
    if not isinstance(text, str):
        raise InvalidRequest(f"text is {type(text).__name__}, not a string", param=f"{param}.text")
    return text


def _system_first(turns: Sequence[_Turn]) -> list[_Turn]:
    system = [turn for turn in turns if turn.role == "system"]
    others = [turn for turn in turns if turn.role != "system"]
    return [_joined(system), *others] if system else others


def _without_empty_answer(turns: list[_Turn]) -> list[_Turn]:
    is_empty = turns[-1].role == "assistant" and not turns[-1].content
    return turns[:-1] if is_empty and len(turns) > 1 else turns


def _without_system(turns: Sequence[_Turn]) -> list[_Turn]:
    """The system text as the beginning of the first user message."""
    if turns[0].role != "system":
        return list(turns)
    system, *others = turns
    if others and others[0].role == "user":
        return [replace(_joined([system, others[0]]), role="user", name=others[0].name), *others[1:]]
    return [replace(system, role="user"), *others]


def _alternating(turns: Sequence[_Turn]) -> list[_Turn]:
    return [_joined(list(group)) for _role, group in groupby(turns, key=lambda turn: turn.role)]


def _joined(turns: Sequence[_Turn]) -> _Turn:
    return replace(turns[0], content=PARAGRAPH.join(turn.content for turn in turns if turn.content))


def _as_dict(turn: _Turn) -> dict[str, str]:
    message = {"role": turn.role, "content": turn.content}
    return message if turn.name is None else {**message, "name": turn.name}


# ---- the template language, as transformers defines it ---------------------------------------------


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own way to say it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(source: str, now: Callable[[], datetime.datetime]) -> jinja2.Template:
    """The sandbox has no way to Python's internals, changes no argument, and bounds `range`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from error


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter this one escapes nothing for HTML; templates pass its options by name."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

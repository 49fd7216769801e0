"""A chat → token ids: the model's chat template, run in a sandbox, or a plain transcript for base models.

What people wrote enters the template escaped (`vocabulary.py`), so only the template itself can
write control tokens. A template that refuses messages is a client's mistake (400), never a server error. What a
template knows (system text, tools, calls, reasoning) is found out by trying it, once; what it does not know is told
in words.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from homeai.errors import InvalidRequest
from homeai.server import turns as shapes
from homeai.server.conversation import Chat, Tool, ToolCall
from homeai.server.families.known import THINK, detect
from homeai.server.families.writing import write_calls
from homeai.server.templates import compile_template
from homeai.server.turns import Turn, escaped, plain_turns

END: Final = "\ufdd1"  # a noncharacter that `escape` lets nobody send: where an unfinished answer ends

TRANSCRIPT: Final = """
{%- for message in messages %}
{{- "" if loop.first else "\\n\\n" if loop.previtem.role == "system" else "\\n" }}
{{- message.content if message.role == "system" else message.role | capitalize ~ ": " ~ message.content }}
{%- endfor %}
{{- "\\nAssistant:" if add_generation_prompt }}"""
TRANSCRIPT_STOP: Final = ("\nUser:",)  # a base model goes on to write the person's next line

OWN_ARGUMENTS: Final = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")

TOOLS_IN_WORDS: Final = """\
You can call these functions, each described by a JSON schema:
<tools>
{tools}
</tools>
To call one, answer with its name and its arguments in this form, and nothing after it:
{example}
What it returned then comes {where}. Where no function is needed, answer in words."""

_PROBE: Final = Tool("probe_tool", "probe description", {"type": "object", "properties": {}})
_PROBE_IDS: Final = {"any": "call_{}", "nine": "00000000{}", "numbered": "functions.probe_tool:{}"}
_SYSTEM: Final = Turn("system", "system text")
_USER: Final = Turn("user", "hello")


_TOOL_ROLE: Final = re.compile(r"""role['"\])]*\s*[=!]=\s*['"]tool['"]""")


class Tokenizer(Protocol):
    """What a prompt needs of the vocabulary."""

    bos_text: str
    eos_text: str

    def escape(self, text: str) -> str: ...

    def encode(self, rendered: str) -> list[int]: ...


class Prompt(NamedTuple):
    """A prompt as text, escaped. `begins_in_reasoning`: the template has begun the model's reasoning already."""

    text: str
    begins_in_reasoning: bool = False


class EncodedPrompt(NamedTuple):
    """A prompt as token ids."""

    token_ids: list[int]
    begins_in_reasoning: bool = False


class PromptRenderer:
    """Renders one model's prompts. `template` None means a plain transcript; thread-safe once built.

    `reply_format` is how the model writes its answers. `takes_tools`: the template describes tools itself.
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
        self._is_transcript = template is None
        self.default_stop: tuple[str, ...] = TRANSCRIPT_STOP if template is None else ()
        self.reply_format = detect(template)
        self.template = TRANSCRIPT if template is None else template
        self._template = compile_template(self.template, now)
        self._writes_arguments_as_text = False
        self._keeps_results_with_calls = _keeps_results_with_calls(template or "")
        self.takes_tools = False
        self.takes_tools = self._shows(_PROBE.name, _USER, tools=[_PROBE])
        self._takes_calls = self._finds_how_to_write_calls()
        self._takes_several_calls = self._takes_calls and self._shows("value 1", *self._called(2))
        self._takes_text_beside_calls = self._shows("said", *self._called(said="said"))
        self._takes_results = self._is_transcript or (self._takes_calls and self._shows("result 0", *self._called()))
        called = self._called() if self._takes_results else [_USER]
        self._takes_system = {
            "user": self._shows("system text", _SYSTEM, _USER),
            "assistant": self._shows("system text", _SYSTEM, _USER, Turn("assistant", "hi")),
            "tool": self._shows("system text", _SYSTEM, *called),
        }
        self._has_switch = self._thinks_by_switch()

    def stop_for(self, chat: Chat) -> tuple[str, ...]:
        """Stop strings of this chat beside the client's: a model that was told of tools in words may go on to write
        their results itself."""
        if not _tools(chat) or self.takes_tools:
            return self.default_stop
        return (*self.default_stop, "\nTool:" if self._is_transcript else "<tool_response>")

    @property
    def can_think(self) -> bool:
        return self.reply_format.reasoning is not None

    def encode(self, chat: Chat, check: Callable[[str], None] = lambda rendered: None) -> EncodedPrompt:
        """The prompt of a chat; `check` may refuse its text before it is tokenised.

        Raises `InvalidRequest` for messages that the template cannot take.
        """
        prompt = self.render(chat)
        check(prompt.text)
        return EncodedPrompt(self._tokenizer.encode(prompt.text), prompt.begins_in_reasoning)

    def render(self, chat: Chat) -> Prompt:
        """Ends where the assistant's next word belongs.

        1. All system text comes first, in one message; folded into the first user message for templates
           that do not take a system message.
        2. Tools, calls and results that a template does not know are told in words.
        3. What a template insists on (one message for each role, one call in a message) is tried when it refuses.
        4. A last message of the assistant is continued, not answered, unless the chat says otherwise; an empty one
           asks for an answer, as calls do.
        """
        try:
            return self._rendered(chat)
        except RecursionError:
            raise InvalidRequest("the messages or the tools are nested too deeply", param="messages") from None

    def _rendered(self, chat: Chat) -> Prompt:
        variables = self._variables(chat)
        tools = _tools(chat)
        turns = shapes.without_empty_answer(plain_turns(chat.messages, self._tokenizer.escape, self.reply_format))
        is_continued = turns[-1].is_answer and chat.continues is not False
        refusal: InvalidRequest | None = None
        for attempt, own_tools in self._attempts(turns, tools, is_continued):
            try:
                text = self._prompt(attempt, own_tools, variables, is_continued)
            except InvalidRequest as error:
                refusal = refusal or error
            else:
                return self._thinking(text, variables, is_continued)
        assert refusal is not None, "there is one attempt at least"
        raise refusal

    # ---- what the template is given ------------------------------------------------------------------

    def _variables(self, chat: Chat) -> dict[str, object]:
        """`enable_thinking` is the name of most families; DeepSeek and Granite say `thinking`."""
        for name in chat.template_arguments:
            if name in OWN_ARGUMENTS:
                raise InvalidRequest(
                    f"{name} is given by the request itself, not to the template", param=f"chat_template_kwargs.{name}"
                )
        variables: dict[str, object] = {}
        if chat.thinks is not None:
            variables = {"enable_thinking": chat.thinks, "thinking": chat.thinks}
        if chat.reasoning_effort is not None:
            variables["reasoning_effort"] = self._tokenizer.escape(chat.reasoning_effort)
        elif chat.thinks is False and self.reply_format.text_begin:
            variables["reasoning_effort"] = "low"  # gpt-oss always thinks
        for name, value in chat.template_arguments.items():
            variables[name] = escaped(value, self._tokenizer.escape)
        return variables

    def _attempts(
        self, turns: list[Turn], tools: Sequence[Tool], is_continued: bool
    ) -> Iterator[tuple[list[Turn], Sequence[Tool]]]:
        """The chat in the shapes that the template may take, the most faithful first; with the tools it describes."""
        own_tools = tools if self.takes_tools else ()
        tried: list[list[Turn]] = []
        for shaped in self._shaped(turns):
            ordered = self._ordered(shaped, tools, own_tools, is_continued)
            for attempt in (ordered, shapes.alternating(ordered)):
                if attempt not in tried:
                    tried.append(attempt)
                    yield attempt, own_tools

    def _shaped(self, turns: list[Turn]) -> Iterator[list[Turn]]:
        syntax = self.reply_format.calls
        if not self._takes_calls:
            turns = shapes.calls_as_text(turns, syntax)
        elif not self._takes_several_calls:
            turns = shapes.one_call_each(turns)
        if not self._takes_text_beside_calls:
            yield shapes.text_before_calls(turns if self._takes_results else shapes.results_as_text(turns))
        if not self._takes_results:
            turns = shapes.results_as_text(turns)
        yield turns
        yield shapes.without_reasoning(turns)
        yield shapes.results_as_text(shapes.calls_as_text(shapes.without_reasoning(turns), syntax))

    def _ordered(
        self, turns: Sequence[Turn], tools: Sequence[Tool], own_tools: Sequence[Tool], is_continued: bool
    ) -> list[Turn]:
        ordered = shapes.system_first(turns, self._in_words(tools) if tools and not own_tools else "")
        role = ordered[-1].role
        end = role if role == "tool" or is_continued else "user"
        return ordered if self._takes_system[end] else shapes.without_system(ordered)

    def _in_words(self, tools: Sequence[Tool]) -> str:
        example = ToolCall("NAME", {"ARGUMENT": "VALUE"})
        return TOOLS_IN_WORDS.format(
            tools="\n".join(json.dumps(self._described(tool)["function"], ensure_ascii=False) for tool in tools),
            example=write_calls(self.reply_format.calls, [example]),
            where="on a line that begins with Tool:" if self._is_transcript else "between <tool_response> marks",
        )

    def _described(self, tool: Tool) -> dict[str, object]:
        escape = self._tokenizer.escape
        parameters = tool.parameters if isinstance(tool.parameters, Mapping) else {}
        schema = escaped({"type": "object", "properties": {}, **parameters}, escape)
        function = {"name": escape(tool.name), "description": escape(tool.description), "parameters": schema}
        return {"type": "function", "function": function}

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, object]]:
        if not self._keeps_results_with_calls:
            return [self._as_dict(turn) for turn in turns]
        messages: list[dict[str, object]] = []
        for turn in turns:
            results = messages[-1].setdefault("tool_responses", []) if messages and turn.role == "tool" else None
            if isinstance(results, list):
                results.append({"name": turn.name or "", "response": turn.content})
            else:
                messages.append(self._as_dict(turn))
        return messages

    def _as_dict(self, turn: Turn) -> dict[str, object]:
        message: dict[str, object] = {"role": turn.role, "content": turn.content}
        if turn.name is not None:
            message["name"] = turn.name
        if turn.call_id is not None:
            message["tool_call_id"] = turn.call_id
        if turn.reasoning:  # each family has a name of its own for it
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), turn.reasoning)
        if turn.calls:
            message["tool_calls"] = [self._call(call) for call in turn.calls]
        return message

    def _call(self, call: ToolCall) -> dict[str, object]:
        as_text = self._writes_arguments_as_text
        arguments = json.dumps(call.arguments, ensure_ascii=False) if as_text else dict(call.arguments)
        return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    # ---- what it makes of that -----------------------------------------------------------------------

    def _prompt(
        self, turns: list[Turn], tools: Sequence[Tool], variables: Mapping[str, object], is_continued: bool
    ) -> str:
        """Render; an unfinished answer at the end is marked first, and the prompt is cut at the mark."""
        *earlier, last = turns
        if not is_continued:
            return self._render(turns, tools, variables, add_generation_prompt=True)
        unfinished = [*earlier, replace(last, content=last.content + END)]
        marked = self._render(unfinished, tools, variables, add_generation_prompt=False)
        prompt, mark, _end_of_turn = marked.rpartition(END)
        if not mark:
            raise InvalidRequest("the chat template leaves the last message out; it cannot go on", param="messages")
        return prompt.replace(END, "")

    def _render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        variables: Mapping[str, object],
        *,
        add_generation_prompt: bool,
    ) -> str:
        messages = self._messages(turns)
        described = [self._described(tool) for tool in tools] or None
        try:
            return self._template.render(
                **variables,
                messages=messages,
                tools=described,
                documents=None,
                bos_token=self._tokenizer.bos_text,
                eos_token=self._tokenizer.eos_text,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is somebody else's program: it may raise anything
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error

    def _thinking(self, text: str, variables: Mapping[str, object], is_continued: bool) -> Prompt:
        """Whether the prompt ends inside reasoning. Where none is wanted and the template has no switch for it, it is
        closed again, or an empty one written."""
        if self.reply_format.reasoning is None or is_continued or self.reply_format.text_begin:
            return Prompt(text)
        begin, end = (mark.strip() for mark in self.reply_format.reasoning)
        begins = text.rstrip().endswith(begin)
        if variables.get("enable_thinking", variables.get("thinking")) is not False:
            return Prompt(text, begins)
        if begins:
            return Prompt(f"{text.rstrip()}\n\n{end}\n\n")
        if self._has_switch or self.reply_format.reasoning != THINK:
            return Prompt(text)
        return Prompt(f"{text}{begin}\n\n{end}\n\n")

    # ---- what it knows -------------------------------------------------------------------------------

    def _shows(self, text: str, *turns: Turn, tools: Sequence[Tool] = ()) -> bool:
        """Some templates refuse a message, others drop it without a word: try one. Calls come with their tool."""
        if self.takes_tools and any(turn.calls for turn in turns):
            tools = [_PROBE]
        try:
            return text in self._prompt(list(turns), tools, {}, turns[-1].is_answer)
        except InvalidRequest:
            return False

    def _finds_how_to_write_calls(self) -> bool:
        """Arguments as an object, else as JSON text, for templates that join them to other text."""
        for self._writes_arguments_as_text in (False, True):
            if self._shows("probe_key", *self._called()) and not self._shows("{'probe_key'", *self._called()):
                return True
        return False

    def _called(self, num_calls: int = 1, said: str = "") -> list[Turn]:
        calls, results = [], []
        for index in range(num_calls):
            call_id = _PROBE_IDS[self.reply_format.call_ids].format(index)
            calls.append(ToolCall(_PROBE.name, {"probe_key": f"value {index}"}, call_id))
            results.append(Turn("tool", f"result {index}", _PROBE.name, call_id=call_id))
        return [_USER, Turn("assistant", said, calls=tuple(calls)), *results]

    def _thinks_by_switch(self) -> bool:
        try:
            off, on = (
                self._prompt([_USER], (), {"enable_thinking": value, "thinking": value}, False)
                for value in (False, True)
            )
        except InvalidRequest:
            return False
        return off != on


def _tools(chat: Chat) -> tuple[Tool, ...]:
    return () if chat.tool_choice.mode == "none" else chat.tools


def _keeps_results_with_calls(template: str) -> bool:
    """Early templates of Gemma 4: results are a part of the message that called."""
    return "tool_responses" in template and not _TOOL_ROLE.search(template)

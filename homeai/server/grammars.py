"""The grammar of an answer: what a client asked of its text, in the way in which the model's family writes it.

A grammar is Lark, as llguidance reads it. What only some families have is left out where it is not there:

    start: reasoning? gap (calls | text_begin answer)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from llguidance.gbnf_to_lark import gbnf_to_lark

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import Grammar
from homeai.server.call_arguments import arguments_rule
from homeai.server.conversation import AnswerFormat, Chat, Tool
from homeai.server.families.syntax import ReplyFormat
from homeai.server.lark import MarkerId, Rules
from homeai.server.schema_reader import Node
from homeai.server.schemas import enforceable, grammar_error, grammar_of

MAX_CALLS: Final = 16  # in one answer: small models call and call
MAX_GRAMMAR_CHARS: Final = 200_000
MAX_GBNF_CHARS: Final = 20_000  # the time to read it grows with the square of its length and of its rules
MAX_GBNF_RULES: Final = 500
GAP: Final = r"/\n{0,2}/"  # between reasoning and answer
TURN: Final = "<|start|>"  # harmony: each part of an answer is a message of its own
GBNF_RULE: Final = re.compile(r"^[ \t]*+[\w-]++[ \t]*+::=", re.MULTILINE)


def grammar_of_answer(answer: AnswerFormat, notes: list[str]) -> Grammar:
    """For a raw completion. Raises `InvalidRequest`."""
    if answer.grammar is not None:
        return Grammar(_own_grammar(answer.grammar, answer.path))
    return Grammar(grammar_of(_answer_schema(answer, notes)))


def grammar_for(
    chat: Chat, format: ReplyFormat, *, begins_in_reasoning: bool, marker_id: MarkerId, notes: list[str]
) -> Grammar | None:
    """What the answer to `chat` must follow; None where the model may write what it likes.

    `begins_in_reasoning`: the prompt ends in the reasoning's begin. `marker_id` gives the id of a text that is a
    control token of the vocabulary, None for any other. Raises `InvalidRequest`; `notes` gets what was relaxed.
    """
    tools = _offered(chat)
    must_call = bool(tools) and chat.tool_choice.mode == "required"
    answer = None if must_call else chat.answer_format
    if not tools and answer is None:
        return None
    writer = _Writer(format, marker_id, notes)
    if tools:
        writer.write_calls(tools, is_parallel=chat.parallel_tool_calls and chat.tool_choice.name is None)
    if not must_call and answer is None:
        return Grammar(_checked(writer.source("calls")), writer.triggers(tools))
    if answer is not None:
        writer.write_answer(answer)
    kinds = " | ".join(name for name, is_there in (("calls", tools), ("answer", answer)) if is_there)
    thinks = format.reasoning is not None and chat.thinks is not False
    return Grammar(_checked(writer.source(f"{writer.reasoning(thinks, begins_in_reasoning)} ({kinds})")))


def _offered(chat: Chat) -> tuple[Tool, ...]:
    """The tools that may be called. Raises `InvalidRequest` for a choice of one that is not there."""
    choice = chat.tool_choice
    if choice.mode == "none":
        return ()
    if choice.name is not None:
        named = tuple(tool for tool in chat.tools if tool.name == choice.name)
        if not named:
            names = ", ".join(repr(tool.name) for tool in chat.tools) or "none"
            raise InvalidRequest(
                f"tool_choice: there is no tool {choice.name!r}; there are {names}", param="tool_choice"
            )
        return named[:1]
    if choice.mode == "required" and not chat.tools:
        raise InvalidRequest("tool_choice: a call is required, but there are no tools", param="tool_choice")
    return chat.tools


def _checked(source: str) -> str:
    if error := grammar_error(source):
        raise Unsupported(f"what the answer must be cannot be enforced as a whole: {error}")
    return source


def _answer_schema(answer: AnswerFormat, notes: list[str]) -> Node | bool:
    assert answer.schema is not None, "an answer's format is a schema or a grammar"
    schema = answer.schema if answer.schema != {} else {"type": "object"}
    return enforceable(schema, param=answer.path, notes=notes)


class _Writer:
    """The rules of one answer."""

    def __init__(self, format: ReplyFormat, marker_id: MarkerId, notes: list[str]) -> None:
        self._format = format
        self._syntax = format.calls
        self._notes = notes
        markers = (*format.markers, *(format.reasoning or ()), TURN)
        self._rules = Rules({marker: number for marker in markers if (number := marker_id(marker)) is not None})

    def source(self, start: str) -> str:
        return self._rules.source(start)

    # ---- calls -----------------------------------------------------------------------------------

    def write_calls(self, tools: Iterable[Tool], *, is_parallel: bool) -> None:
        rules, syntax = self._rules, self._syntax
        calls = []
        for number, tool in enumerate(tools):
            schema = enforceable(
                tool.parameters, param=tool.path, what=f"tool {tool.name!r}", is_object=True, notes=self._notes
            )
            head = rules.text(syntax.before_name + tool.name + syntax.before_arguments)
            arguments = arguments_rule(rules, schema, tool, syntax, self._notes)
            calls.append(rules.add(f"call_{number}", f"{head} {arguments} {rules.text(syntax.after_arguments)}"))
        rules.add("call", " | ".join(calls))
        more = f" ({rules.text(syntax.separator)} call){{0,{MAX_CALLS - 1}}}" if is_parallel else ""
        rules.add("calls", f"{rules.text(syntax.begin)} call{more} {rules.text(syntax.end)}")

    def triggers(self, tools: Iterable[Tool]) -> tuple[str, ...]:
        """Texts that begin a call and nothing else. They stand where the grammar begins."""
        syntax = self._syntax
        beginning = syntax.begin + syntax.before_name
        if syntax.trigger:
            assert beginning.startswith(syntax.trigger), f"a call begins with {beginning!r}, not {syntax.trigger!r}"
            return (syntax.trigger,)
        return tuple(beginning + tool.name + syntax.before_arguments for tool in tools)

    # ---- what stands around them -----------------------------------------------------------------

    def write_answer(self, answer: AnswerFormat) -> None:
        begin = self._rules.text(self._format.text_begin)
        if answer.grammar is not None:
            source = _own_grammar(answer.grammar, answer.path)
            self._rules.add("answer", f"{begin} {self._rules.include(source)}")
        else:
            self._rules.add("answer", f"{begin} {self._rules.json(_answer_schema(answer, self._notes))}")

    def reasoning(self, thinks: bool, has_begun: bool) -> str:
        """What the answer may begin with: reasoning is free until its end."""
        if self._format.reasoning is None or not (thinks or has_begun):
            return ""
        begin, end = self._format.reasoning
        rules = self._rules
        turn = rules.text(f"{TURN}assistant") if TURN in self._format.markers else GAP
        thought = rules.until(end)
        if has_begun:
            return f"{thought} {turn}"
        return f"({rules.text(begin)} {thought} {turn})?"


# ---- a grammar that the client wrote -------------------------------------------------------------------


def _own_grammar(text: str, path: str) -> str:
    """Lark from GBNF, or Lark as it is. Raises `InvalidRequest`."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(f"{path}: a grammar of {len(text)} characters, more than {MAX_GRAMMAR_CHARS}", param=path)
    num_rules = len(GBNF_RULE.findall(text))
    if num_rules > MAX_GBNF_RULES:
        raise InvalidRequest(f"{path}: {num_rules} rules of GBNF, more than {MAX_GBNF_RULES}", param=path)
    if num_rules and len(text) > MAX_GBNF_CHARS:
        raise InvalidRequest(f"{path}: {len(text)} characters of GBNF, more than {MAX_GBNF_CHARS}", param=path)
    try:
        lark: str = gbnf_to_lark(text) if num_rules else text
    except RecursionError:
        raise InvalidRequest(f"{path}: the grammar is nested too deep", param=path) from None
    except Exception as error:  # the converter has no exception of its own for rules that are not there
        raise InvalidRequest(f"{path}: {error}", param=path) from None
    if mistake := grammar_error(lark):
        raise InvalidRequest(f"{path}: {mistake}", param=path)
    return lark

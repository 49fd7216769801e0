"""How a family of models writes its answers: reasoning, then text, then calls of tools. Data only.

A call is written `before_name NAME before_arguments ARGUMENTS after_arguments`; several calls stand between
`begin` and `end`, with `separator` between them. Hermes:

    <tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>

The same data drives the parser (`parser.py`) and the grammar that forces a call (`server/grammars.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ANY: Final = "\x00"  # in a text that is only read, never written: whatever the model puts there


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """`trigger` is the text that only ever begins a call: from there on an answer with tool_choice auto is forced.
    Where no such text exists it is empty: only `begin before_name NAME before_arguments` with a tool's name is one.

    `arguments` says how they are written: "json" is one JSON object; "xml" is a block for each argument, `before_key
    KEY before_value VALUE after_value`, Qwen3-Coder's by default: strings as they are, all else as JSON; "gemma" is
    Gemma 4's `{key:<|"|>text<|"|>,n:3}`, whose strings stand between two `quote`s.
    """

    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    end: str = ""
    separator: str = ""
    trigger: str = ""
    arguments: Literal["json", "xml", "gemma"] = "json"
    before_key: str = "<parameter="
    before_value: str = ">\n"
    after_value: str = "\n</parameter>\n"
    quote: str = '<|"|>'


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a family's answers look like.

    `also` are other ways in which its models write calls: read, never forced. `reasoning` is the pair of texts around
    it, None for models that do not think. `markers` are the control tokens whose text the parser must see (a control
    token has no text of its own in an answer). `text_begin` is what stands before an answer's text where a format marks
    it (gpt-oss's final channel). `call_ids` says which ids the family's template takes: Mistral's have nine letters or
    digits, Kimi's are `functions.NAME:0`, counted through the conversation.
    """

    name: str
    calls: CallSyntax
    reasoning: tuple[str, str] | None = None
    markers: tuple[str, ...] = ()
    text_begin: str = ""
    also: tuple[CallSyntax, ...] = ()
    call_ids: Literal["any", "nine", "numbered"] = "any"

"""The families of models, and which of them a chat template belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from homeai.server.families.syntax import ANY, CallSyntax, ReplyFormat

THINK: Final = ("<think>", "</think>")

# ---- how calls are written -------------------------------------------------------------------------

HERMES_CALLS: Final = CallSyntax(
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
BARE_CALLS: Final = CallSyntax(
    before_name='{"name": "', before_arguments='", "arguments": ', after_arguments="}", separator="\n"
)
FENCED_CALLS: Final = CallSyntax(
    before_name='```json\n{"name": "', before_arguments='", "arguments": ', after_arguments="}\n```", separator="\n"
)
LLAMA_CALLS: Final = CallSyntax(
    before_name='{"name": "', before_arguments='", "parameters": ', after_arguments="}", separator="; "
)
TAGGED_LLAMA_CALLS: Final = replace(LLAMA_CALLS, begin="<|python_tag|>")
LLAMA_TAG_CALLS: Final = CallSyntax(before_name="<function=", before_arguments=">", after_arguments="</function>")
XML_CALLS: Final = CallSyntax(
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    after_arguments="</function>\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
    arguments="xml",
)
UNWRAPPED_XML_CALLS: Final = replace(XML_CALLS, before_name="<function=")
MISTRAL_LIST: Final = CallSyntax(
    begin="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    end="]",
    separator=", ",
    trigger="[TOOL_CALLS]",
)
MISTRAL_SPACED_LIST: Final = replace(MISTRAL_LIST, begin="[TOOL_CALLS] [")
MISTRAL_CALLS: Final = CallSyntax(
    before_name="[TOOL_CALLS]", before_arguments="[ARGS]", after_arguments="", trigger="[TOOL_CALLS]"
)
MISTRAL_CALLS_WITH_ID: Final = replace(MISTRAL_CALLS, before_arguments=f"[CALL_ID]{ANY}[ARGS]")
MISTRAL_CALLS_WITHOUT_MARK: Final = replace(MISTRAL_CALLS, before_arguments="")
DEEPSEEK_CALLS: Final = CallSyntax(
    begin="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>",
    before_arguments="<｜tool▁sep｜>",
    after_arguments="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)
DEEPSEEK_R1_CALLS: Final = CallSyntax(
    begin="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
    separator="\n",
    trigger="<｜tool▁calls▁begin｜>",
)
KIMI_CALLS: Final = CallSyntax(
    begin="<|tool_calls_section_begin|>",
    before_name="<|tool_call_begin|>functions.",
    before_arguments=":0<|tool_call_argument_begin|>",
    after_arguments="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    trigger="<|tool_calls_section_begin|>",
)
GLM_CALLS: Final = CallSyntax(
    before_name="<tool_call>",
    before_arguments="\n",
    after_arguments="</tool_call>",
    separator="\n",
    trigger="<tool_call>",
    arguments="xml",
    before_key="<arg_key>",
    before_value="</arg_key>\n<arg_value>",
    after_value="</arg_value>\n",
)
GEMMA_CALLS: Final = CallSyntax(
    before_name="<|tool_call>call:",
    before_arguments="",
    after_arguments="<tool_call|>",
    trigger="<|tool_call>",
    arguments="gemma",
)
FUNCTION_GEMMA_CALLS: Final = CallSyntax(
    before_name="<start_function_call>call:",
    before_arguments="",
    after_arguments="<end_function_call>",
    trigger="<start_function_call>",
    arguments="gemma",
    quote="<escape>",
)
PHI_CALLS: Final = CallSyntax(
    begin="<|tool_call|>[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    end="]<|/tool_call|>",
    separator=", ",
    trigger="<|tool_call|>",
)
GRANITE_CALLS: Final = replace(PHI_CALLS, end="]")
HARMONY_CALLS: Final = CallSyntax(
    before_name="<|channel|>commentary to=functions.",
    before_arguments=" <|constrain|>json<|message|>",
    after_arguments="<|call|>",
    trigger="<|channel|>commentary to=functions.",
)

# ---- the families ----------------------------------------------------------------------------------

GENERIC: Final = ReplyFormat("generic", HERMES_CALLS, also=(BARE_CALLS, FENCED_CALLS))
HERMES: Final = ReplyFormat("hermes", HERMES_CALLS, also=(BARE_CALLS, FENCED_CALLS))
QWEN_CODER: Final = ReplyFormat("qwen-coder", XML_CALLS, also=(UNWRAPPED_XML_CALLS, HERMES_CALLS))
LLAMA: Final = ReplyFormat(
    "llama", LLAMA_CALLS, markers=("<|python_tag|>",), also=(TAGGED_LLAMA_CALLS, LLAMA_TAG_CALLS, HERMES_CALLS)
)
MISTRAL: Final = ReplyFormat(
    "mistral",
    MISTRAL_CALLS,
    markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    also=(MISTRAL_CALLS_WITH_ID, MISTRAL_CALLS_WITHOUT_MARK, MISTRAL_SPACED_LIST),
    call_ids="nine",
)
MISTRAL_OLD: Final = replace(
    MISTRAL,
    name="mistral-list",
    calls=MISTRAL_LIST,
    also=(MISTRAL_SPACED_LIST, MISTRAL_CALLS, MISTRAL_CALLS_WITH_ID, MISTRAL_CALLS_WITHOUT_MARK),
)
DEEPSEEK: Final = ReplyFormat(
    "deepseek",
    DEEPSEEK_CALLS,
    markers=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    also=(DEEPSEEK_R1_CALLS,),
)
DEEPSEEK_R1: Final = replace(DEEPSEEK, name="deepseek-r1", calls=DEEPSEEK_R1_CALLS, also=(DEEPSEEK_CALLS,))
KIMI: Final = ReplyFormat(
    "kimi",
    KIMI_CALLS,
    markers=(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    call_ids="numbered",
)
GLM: Final = ReplyFormat("glm", GLM_CALLS, markers=("<tool_call>", "</tool_call>"), also=(HERMES_CALLS,))
GEMMA: Final = ReplyFormat(
    "gemma",
    GEMMA_CALLS,
    reasoning=("<|channel>thought\n", "<channel|>"),
    markers=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
)
FUNCTION_GEMMA: Final = ReplyFormat(
    "function-gemma",
    FUNCTION_GEMMA_CALLS,
    markers=("<start_function_call>", "<end_function_call>", "<escape>"),
)
PHI: Final = ReplyFormat(
    "phi", PHI_CALLS, markers=("<|tool_call|>", "<|/tool_call|>"), also=(GRANITE_CALLS, BARE_CALLS)
)
GRANITE: Final = ReplyFormat(
    "granite", GRANITE_CALLS, markers=("<|tool_call|>", "<tool_call>"), also=(HERMES_CALLS, BARE_CALLS)
)
GPT_OSS: Final = ReplyFormat(
    "gpt-oss",
    HARMONY_CALLS,
    reasoning=("<|channel|>analysis<|message|>", "<|end|>"),
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    text_begin="<|channel|>final<|message|>",
)


def detect(template: str | None) -> ReplyFormat:
    """The family whose marks the template writes; the generic one for templates without any, and for none."""
    if template is None:
        return GENERIC
    family = next((family for marks, family in _MARKS if all(mark in template for mark in marks)), GENERIC)
    if family.reasoning is None and "[THINK]" in template:
        return replace(family, reasoning=("[THINK]", "[/THINK]"))
    if family.reasoning is None and any(mark in template for mark in THINK):
        return replace(family, reasoning=THINK)
    return family


_MARKS: Final[tuple[tuple[tuple[str, ...], ReplyFormat], ...]] = (
    (("<|channel|>", "<|message|>"), GPT_OSS),
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_R1),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("<|im_system|>tool_declare",), KIMI),
    (("<arg_key>",), GLM),
    (("<function=", "<parameter="), QWEN_CODER),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_OLD),
    (("<|tool_call>",), GEMMA),
    (("<start_function_call>",), FUNCTION_GEMMA),
    (("<|tool|>", "<|/tool|>"), PHI),
    (("<|/tool_call|>",), PHI),
    (("<|tool_call|>",), GRANITE),
    (("<tool_call>",), HERMES),
    (("<|python_tag|>",), LLAMA),
    (("<|start_header_id|>", '"parameters"'), LLAMA),
)

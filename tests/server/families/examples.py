"""Answers as the templates of the families document them, and what they say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from homeai.server.families import known
from homeai.server.families.syntax import ReplyFormat

PARIS: Final = ("get_weather", {"city": "Paris", "days": 2})
ROME: Final = ("get_weather", {"city": "Rome"})
NOW: Final = ("get_time", {})


@dataclass(frozen=True)
class Example:
    family: ReplyFormat
    text: str
    calls: tuple[tuple[str, object], ...] = ()
    content: str = ""
    reasoning: str = ""
    begins_in_reasoning: bool = False


def thinking(family: ReplyFormat) -> ReplyFormat:
    return replace(family, reasoning=known.THINK)


HERMES_PARIS: Final = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
HERMES_ROME: Final = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
XML_PARIS: Final = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
GLM_PARIS: Final = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
DEEPSEEK_PARIS: Final = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "days": 2}<｜tool▁call▁end｜>'
R1_PARIS: Final = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>'
)
R1_ROME: Final = (
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜>'
)
ANALYSIS: Final = "<|channel|>analysis<|message|>The user wants weather.<|end|>"
HARMONY_PARIS: Final = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}'
)
QWEN3: Final = thinking(known.HERMES)
MAGISTRAL: Final = replace(known.MISTRAL, reasoning=("[THINK]", "[/THINK]"))
DEEPSEEK: Final = thinking(known.DEEPSEEK)
R1: Final = thinking(known.DEEPSEEK_R1)
GLM: Final = thinking(known.GLM)

EXAMPLES: Final = {
    # Hermes, Qwen 2.5, Qwen 3
    "hermes-text": Example(known.HERMES, "Paris is < 3 hours away.\n", content="Paris is < 3 hours away.\n"),
    "hermes-call": Example(known.HERMES, HERMES_PARIS, (PARIS,)),
    "hermes-two-calls": Example(known.HERMES, f"{HERMES_PARIS}\n{HERMES_ROME}\n", (PARIS, ROME)),
    "hermes-text-then-call": Example(known.HERMES, f"Let me look.\n\n{HERMES_PARIS}", (PARIS,), "Let me look."),
    "hermes-call-then-text": Example(known.HERMES, f"{HERMES_PARIS}\nDone.", (PARIS,), "Done."),
    "hermes-on-one-line": Example(
        known.HERMES, '<tool_call>{"name":"get_weather","arguments":{"city":"Paris","days":2}}</tool_call>', (PARIS,)
    ),
    "hermes-arguments-first": Example(
        known.HERMES, '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get_weather"}\n</tool_call>', (ROME,)
    ),
    "hermes-more-keys": Example(
        known.HERMES,
        '<tool_call>\n{"id": 7, "name": "get_weather", "arguments": {"city": "Rome"}, "why": [{"}": 1}]}\n</tool_call>',
        (ROME,),
    ),
    "hermes-without-arguments": Example(known.HERMES, '<tool_call>\n{"name": "get_time"}\n</tool_call>', (NOW,)),
    "hermes-null-arguments": Example(
        known.HERMES, '<tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>', (NOW,)
    ),
    "hermes-empty-arguments": Example(
        known.HERMES, '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>', (NOW,)
    ),
    "hermes-arguments-as-text": Example(
        known.HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}\n</tool_call>',
        (ROME,),
    ),
    "hermes-strange-strings": Example(
        known.HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a}]\\"\\\\ </tool_call> ö\\u00e4"}}\n</tool_call>',
        (("get_weather", {"city": 'a}]"\\ </tool_call> öä'}),),
    ),
    "hermes-line-end-in-string": Example(
        known.HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "New\nYork\t"}}\n</tool_call>',
        (("get_weather", {"city": "New\nYork\t"}),),
    ),
    "hermes-brace-forgotten": Example(
        known.HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}\n</tool_call>\nOk',
        (ROME,),
        "Ok",
    ),
    "hermes-openai-shape": Example(
        known.HERMES,
        '<tool_call>\n{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}\n'
        "</tool_call>",
        (ROME,),
    ),
    "hermes-bare": Example(known.HERMES, '{"name": "get_weather", "arguments": {"city": "Rome"}}', (ROME,)),
    "qwen3-thinks": Example(
        QWEN3,
        f"<think>\nThe user wants\n\nweather.\n</think>\n\n{HERMES_ROME}",
        (ROME,),
        "",
        "The user wants\n\nweather.",
    ),
    "qwen3-thinks-and-answers": Example(QWEN3, "<think>\nHm.\n</think>\n\nIt rains.", (), "It rains.", "Hm."),
    "qwen3-does-not-think": Example(QWEN3, "<think>\n\n</think>\n\nIt rains.", (), "It rains."),
    "qwen3-begins-in-reasoning": Example(
        QWEN3, "Okay, < </thin\n</think>\n\nIt rains.", (), "It rains.", "Okay, < </thin", True
    ),
    "qwen3-says-it-twice": Example(QWEN3, "\n<think>\nOkay</think>It rains.", (), "It rains.", "Okay", True),
    "qwen3-orphan-mark": Example(QWEN3, "</think>\n\nIt rains.", (), "It rains."),
    "qwen3-speaks-of-marks": Example(QWEN3, "Write <think> and </think>.", (), "Write <think> and </think>."),
    "qwen3-cut-in-reasoning": Example(QWEN3, "<think>\nThe user </thi", (), "", "The user </thi"),
    # Qwen 3 Coder
    "coder-call": Example(known.QWEN_CODER, XML_PARIS, (PARIS,)),
    "coder-two-calls": Example(known.QWEN_CODER, f"So:\n{XML_PARIS}\n{XML_PARIS}", (PARIS, PARIS), "So:"),
    "coder-unwrapped": Example(known.QWEN_CODER, XML_PARIS.removeprefix("<tool_call>\n"), (PARIS,)),
    "coder-without-arguments": Example(
        known.QWEN_CODER, "<tool_call>\n<function=get_time>\n</function>\n</tool_call>", (NOW,)
    ),
    "coder-types": Example(
        known.QWEN_CODER,
        "<tool_call>\n<function=get_weather>\n"
        '<parameter=city>\n  42 "\\ </para\n\n</parameter>\n<parameter=days>\nmany\n</parameter>\n'
        "<parameter=hourly>\nTrue\n</parameter>\n<parameter=units>\nnull\n</parameter>\n"
        '<parameter=where>\n{"x": [1]}\n</parameter>\n<parameter=tags>["a"]</parameter>\n'
        "<parameter=new>\n1\n</parameter>\n"
        "</function>\n</tool_call>",
        (
            (
                "get_weather",
                {
                    "city": '  42 "\\ </para\n',
                    "days": "many",
                    "hourly": True,
                    "units": None,
                    "where": {"x": [1]},
                    "tags": ["a"],
                    "new": "1",
                },
            ),
        ),
    ),
    "coder-type-by-reference": Example(
        known.QWEN_CODER,
        "<tool_call>\n<function=turn_on>\n<parameter=lamp>\n7\n</parameter>\n</function>\n</tool_call>",
        (("turn_on", {"lamp": "7"}),),
    ),
    # Llama 3
    "llama-call": Example(known.LLAMA, '{"name": "get_weather", "parameters": {"city": "Rome"}}', (ROME,)),
    "llama-tagged": Example(
        known.LLAMA, '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}', (ROME,)
    ),
    "llama-typed": Example(
        known.LLAMA, '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}', (ROME,)
    ),
    "llama-two-calls": Example(
        known.LLAMA,
        '{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "get_time", "parameters": {}}',
        (ROME, NOW),
    ),
    "llama-tag-style": Example(known.LLAMA, '<function=get_weather>{"city": "Rome"}</function>', (ROME,)),
    "llama-other-json": Example(known.LLAMA, '{"city": "Rome"}\n{"name": 1}', (), '{"city": "Rome"}\n{"name": 1}'),
    # Mistral
    "mistral-list": Example(
        known.MISTRAL_OLD,
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "get_time", "arguments": {}, "id": "123456789"}]',
        (PARIS, NOW),
    ),
    "mistral-list-with-space": Example(
        known.MISTRAL_OLD, '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}]', (ROME,)
    ),
    "mistral-calls": Example(
        known.MISTRAL,
        'Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]get_time[ARGS]{}',
        (PARIS, NOW),
        "Sure.",
    ),
    "mistral-call-with-id": Example(
        known.MISTRAL, '[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Rome"}', (ROME,)
    ),
    "mistral-call-without-mark": Example(known.MISTRAL, '[TOOL_CALLS]get_weather{"city": "Rome"}', (ROME,)),
    "magistral-thinks": Example(
        MAGISTRAL, "[THINK]Hm [1].[/THINK]Look: [TOOL_CALLS]get_time[ARGS]{}", (NOW,), "Look:", "Hm [1]."
    ),
    # DeepSeek
    "deepseek-calls": Example(
        DEEPSEEK,
        f"Let me see.<｜tool▁calls▁begin｜>{DEEPSEEK_PARIS}{DEEPSEEK_PARIS}<｜tool▁calls▁end｜>",
        (PARIS, PARIS),
        "Let me see.",
    ),
    "deepseek-thinks": Example(
        DEEPSEEK,
        f"Hm.</think><｜tool▁calls▁begin｜>{DEEPSEEK_PARIS}<｜tool▁calls▁end｜>",
        (PARIS,),
        "",
        "Hm.",
        True,
    ),
    "r1-calls": Example(
        R1,
        f"<think>\nHm.\n</think>\n\n<｜tool▁calls▁begin｜>{R1_PARIS}\n{R1_ROME}<｜tool▁calls▁end｜>",
        (PARIS, ROME),
        "",
        "Hm.",
    ),
    # Kimi, GLM
    "kimi-calls": Example(
        known.KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_call_begin|>functions.get_time:11<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        (ROME, NOW),
    ),
    "glm-calls": Example(
        GLM, f"\n<think>Hm.</think>\nSo.\n{GLM_PARIS}\n<tool_call>get_time\n</tool_call>", (PARIS, NOW), "So.", "Hm."
    ),
    "glm-on-one-line": Example(GLM, GLM_PARIS.replace("\n", ""), (PARIS,)),
    # Gemma
    "gemma-call": Example(
        known.GEMMA, '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>', (PARIS,)
    ),
    "gemma-values": Example(
        known.GEMMA,
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>a "b", {c}<|d<|"|>,hourly:true,'
        'where:{x:-1.5,<|"|>y z<|"|>:null},tags:[<|"|>p<|"|>,<|"|><|"|>]}<tool_call|>'
        "<|tool_call>call:get_time{}<tool_call|>",
        (
            (
                "get_weather",
                {"city": 'a "b", {c}<|d', "hourly": True, "where": {"x": -1.5, "y z": None}, "tags": ["p", ""]},
            ),
            NOW,
        ),
        "",
        "Hm.",
    ),
    "gemma-bare-word": Example(
        known.GEMMA, "<|tool_call>call:get_weather{city: Rome}<tool_call|>It rains.", (ROME,), "It rains."
    ),
    "function-gemma-call": Example(
        known.FUNCTION_GEMMA,
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>",
        (PARIS,),
    ),
    # Phi, Granite
    "phi-calls": Example(
        known.PHI,
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "get_time", "arguments": {}}]'
        "<|/tool_call|>",
        (ROME, NOW),
    ),
    "granite-call": Example(
        known.GRANITE, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]', (ROME,)
    ),
    # gpt-oss
    "harmony-final": Example(
        known.GPT_OSS,
        f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>It < rains.\n<|return|>",
        (),
        "It < rains.\n",
        "The user wants weather.",
    ),
    "harmony-call": Example(
        known.GPT_OSS,
        f"{ANALYSIS}<|start|>assistant{HARMONY_PARIS}<|call|>",
        (PARIS,),
        "",
        "The user wants weather.",
    ),
    "harmony-call-without-its-end": Example(known.GPT_OSS, HARMONY_PARIS, (PARIS,)),
    "harmony-recipient-first": Example(
        known.GPT_OSS,
        ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        (ROME,),
    ),
    "harmony-preamble": Example(
        known.GPT_OSS,
        f"<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant{HARMONY_PARIS}<|call|>",
        (PARIS,),
        "Let me look.",
    ),
    "harmony-no-arguments": Example(
        known.GPT_OSS, "<|channel|>commentary to=functions.get_time<|message|><|call|>", (NOW,)
    ),
    "harmony-continued": Example(known.GPT_OSS, "and it rains.<|return|>", (), "and it rains."),
    "harmony-unknown-tool": Example(
        known.GPT_OSS, '<|channel|>commentary to=browser.open<|message|>{"id": 1}<|call|>', (), '{"id": 1}'
    ),
    # models without a family
    "generic-bare": Example(known.GENERIC, '{"name": "get_weather", "arguments": {"city": "Rome"}}', (ROME,)),
    "generic-bare-on-its-line": Example(
        known.GENERIC,
        'I call a tool:\n {"name": "get_weather", "parameters": {"city": "Rome"}}\n{"name": "get_time"}',
        (ROME, NOW),
        "I call a tool:",
    ),
    "generic-fenced": Example(
        known.GENERIC,
        'Let me see:\n```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Rome"\n  }\n}\n```\nDone.',
        (ROME,),
        "Let me see:Done.",
    ),
    "generic-fence-of-something-else": Example(
        known.GENERIC, '```json\n{"name": "Ann"}\n```\n', (), '```json\n{"name": "Ann"}\n```\n'
    ),
    "generic-in-the-midst-of-a-line": Example(
        known.GENERIC, 'As {"name": "get_time"} says', (), 'As {"name": "get_time"} says'
    ),
}

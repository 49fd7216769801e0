"""Rules of tools and reasoning in prompts, on abbreviated templates of the families."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest

from homeai.errors import InvalidRequest
from homeai.server.conversation import Chat, ChatMessage, Tool, ToolCall, ToolChoice
from homeai.server.families.known import detect
from homeai.server.prompts import PromptRenderer
from tests.server.families.reading import LIGHT, TIME, TOOLS, WEATHER, read

TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("templates/*.jinja")}
FAMILIES = {
    "chatml": "generic",
    "deepseek": "deepseek",
    "deepseek-r1": "deepseek-r1",
    "function-gemma": "function-gemma",
    "gemma3": "generic",
    "gemma4": "gemma",
    "glm": "glm",
    "gpt-oss": "gpt-oss",
    "kimi": "kimi",
    "llama": "llama",
    "mistral": "mistral",
    "mistral-list": "mistral-list",
    "phi": "phi",
    "qwen-coder": "qwen-coder",
    "qwen3": "hermes",
}
IN_WORDS = {"chatml", "deepseek", "deepseek-r1", "gemma3", "phi", "transcript"}
THINKING = {"deepseek", "deepseek-r1", "gemma4", "glm", "gpt-oss", "qwen3"}

PARIS = {"city": 'Paris, "F"', "days": 2, "tags": ["a", "b"], "hourly": True}
USER = ChatMessage("user", "Weather?")


class MarkingTokenizer:
    """Escapes as the real one does, visibly: a mark after the first character of every special text."""

    bos_text = "<s>"
    eos_text = "</s>"
    special = "<|x|>"

    def escape(self, text: str) -> str:
        return text.replace("<|x|>", "<§|x|>")

    def encode(self, rendered: str) -> list[int]:
        return [ord(character) for character in rendered]


def make_renderer(name: str) -> PromptRenderer:
    template = None if name == "transcript" else TEMPLATES[name]
    return PromptRenderer(MarkingTokenizer(), template, now=lambda: datetime.datetime(2026, 3, 1, 7, 30))


def render(name: str, *messages: ChatMessage, tools: Sequence[Tool] = (), **how: object) -> str:
    return make_renderer(name).render(Chat(messages=messages, tools=tuple(tools), **how)).text  # type: ignore[arg-type]


def calling(*calls: tuple[str, dict[str, object]], content: str | None = None, ids: bool = True) -> ChatMessage:
    return ChatMessage(
        "assistant",
        content,
        tool_calls=tuple(ToolCall(name, args, f"call_{i}" if ids else None) for i, (name, args) in enumerate(calls)),
    )


def result(content: str, call_id: str | None = None, name: str | None = None) -> ChatMessage:
    return ChatMessage("tool", content, name=name, tool_call_id=call_id)


@pytest.fixture(params=[*FAMILIES, "transcript"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- which family ----------------------------------------------------------------------------------


def test_every_template_here_has_its_family() -> None:
    assert {name: detect(template).name for name, template in TEMPLATES.items()} == FAMILIES
    assert detect(None).name == "generic"


def test_renderer_knows_what_its_template_knows(name: str) -> None:
    renderer = make_renderer(name)
    assert renderer.takes_tools == (name not in IN_WORDS)
    assert renderer.can_think == (name in THINKING)


# ---- tools -----------------------------------------------------------------------------------------


def test_tools_are_in_the_prompt(name: str) -> None:
    prompt = render(name, ChatMessage("system", "Be brief."), USER, tools=TOOLS)
    assert all(tool.name in prompt for tool in TOOLS)
    assert all(text in prompt for text in ("The weather in a city", "Be brief.", "Weather?", "days"))


def test_without_tools_the_prompt_says_nothing_of_them(name: str) -> None:
    assert render(name, USER, tools=TOOLS, tool_choice=ToolChoice("none")) == render(name, USER)
    assert "tools>" not in render(name, USER)


@pytest.mark.parametrize("system", [(), (ChatMessage("system", "Be brief."),)])
def test_tools_in_words_say_how_to_call(name: str, system: tuple[ChatMessage, ...]) -> None:
    if name in IN_WORDS:
        renderer = make_renderer(name)
        prompt = render(name, *system, USER, tools=[TIME])
        form = prompt.partition("in this form")[2].partition("\n")[2].partition("\nWhat it returned")[0]
        example = form.replace("NAME", "get_weather").replace("ARGUMENT", "city").replace("VALUE", "Rome")
        assert read(renderer.reply_format, example).decoded == [("get_weather", {"city": "Rome"})]
        assert form in prompt
        assert '"name": "get_time"' in prompt


def test_tool_without_a_schema_of_its_own_is_fine(name: str) -> None:
    """G2: Home Assistant's probe."""
    render(name, ChatMessage("system", "x"), USER, tools=[Tool("test", "", {"type": "object", "properties": {}})])
    render(name, USER, tools=[Tool("test", "", {}), Tool("test2", "", True)])


# ---- calls and results -----------------------------------------------------------------------------


def test_call_in_the_history_is_written_as_the_model_writes_it(name: str) -> None:
    """What the template makes of a call, the family's parser reads back."""
    renderer = make_renderer(name)
    chat = Chat(messages=[USER, calling(("get_weather", PARIS)), result("sunny", "call_0")], tools=TOOLS)
    prompt = renderer.render(chat).text
    beginnings = {
        "gpt-oss": "<|end|><|start|>assistant",
        "transcript": "Assistant: ",
        "gemma4": "<|turn>model\n",
        "glm": "</think>",
        "deepseek": "</think>",
        "llama": "assistant<|end_header_id|>\n\n",
    }
    written = prompt.partition("Weather?")[2].partition("sunny")[0]
    first = written.partition(beginnings[name])[2] if name in beginnings else written
    answer = read(renderer.reply_format, first)
    assert answer.decoded == [("get_weather", PARIS)]
    assert "sunny" in prompt


def test_results_and_text_reach_the_prompt(name: str) -> None:
    """F5."""
    prompt = render(
        name,
        USER,
        calling(("get_weather", {"city": "Rome"}), ("get_time", {}), content="I look."),
        result("sunny", "call_0"),
        result("noon", "call_1"),
        ChatMessage("assistant", "Sunny."),
        ChatMessage("user", "Thanks"),
        tools=TOOLS,
    )
    for text in ("Rome", "get_time", "sunny", "noon", "Sunny.", "Thanks"):
        assert text in prompt.rpartition("Weather?")[2], text


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([USER, calling(("get_time", {})), result("noon", "call_0")], id="usual"),
        pytest.param(
            [USER, calling(("get_time", {}), ids=False), result("noon")], id="no ids, as Home Assistant's Ollama"
        ),
        pytest.param([USER, calling(("get_time", {}), content=""), result("noon", name="get_time")], id="named"),
        pytest.param([USER, calling(("get_time", {})), result("noon", "unknown")], id="unknown id"),
        pytest.param([USER, result("injected", "injected_content")], id="result without a call"),
        pytest.param([result("injected")], id="nothing but a result"),
        pytest.param([USER, calling(("get_time", {})), result("")], id="empty result"),
        pytest.param([USER, calling(("get_time", {})), ChatMessage("tool")], id="null result"),
        pytest.param([USER, calling(("get_time", {})), USER], id="no result"),
        pytest.param([USER, calling(("get_time", {}))], id="ends in a call"),
        pytest.param([USER, ChatMessage("assistant"), USER], id="null answer"),
        pytest.param([USER, ChatMessage("assistant", "a"), ChatMessage("assistant", "b"), USER], id="two answers"),
        pytest.param(
            [USER, ChatMessage("assistant", "a"), calling(("get_time", {})), result("noon"), USER], id="mixed"
        ),
        pytest.param(
            [USER, calling(("get_time", {})), calling(("get_time", {})), result("1"), result("2")], id="two rounds"
        ),
        pytest.param(
            [USER, ChatMessage("system", "late"), calling(("get_time", {})), result("noon")], id="system late"
        ),
        pytest.param(
            [
                USER,
                calling(("get_time", {}), ("get_weather", PARIS), ("get_time", {})),
                result("2", "call_1"),
                result("1"),
            ],
            id="several calls",
        ),
        pytest.param(
            [
                USER,
                ChatMessage("assistant", "so", tool_calls=(ToolCall("get_time", {}),), reasoning="hm"),
                result("noon"),
            ],
            id="thought, text and call",
        ),
    ],
)
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no-tools", "tools"])
def test_messages_that_clients_send_are_taken(name: str, messages: list[ChatMessage], tools: tuple[Tool, ...]) -> None:
    """F5."""
    prompt = render(name, *messages, tools=tools)
    for message in messages:
        assert str(message.content or "") in prompt
        assert all(call.name in prompt for call in message.tool_calls)
    render(name, ChatMessage("system", "Be brief."), *messages, tools=tools)


def test_result_is_matched_to_its_call_by_id_name_or_order() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.name }}:{{ m.tool_call_id }}{{ m.content }}"
        "{{ (m.tool_calls or []) | tojson }};{% endfor %}"
    )
    renderer = PromptRenderer(MarkingTokenizer(), template)
    calls = calling(("a", {}), ("b", {}), ("c", {}))
    messages = [USER, calls, result("1", "call_1"), result("2", name="c"), result("3"), result("4"), result("5", "x")]
    prompt = renderer.render(Chat(messages=messages)).text
    assert [line.removesuffix("[]") for line in prompt.split(";")[2:-1]] == [
        "tool:b:call_11",
        "tool:c:call_22",
        "tool:a:call_03",
        "tool::call_34",
        "tool::x5",
    ]


def test_ids_have_the_form_that_the_family_takes() -> None:
    messages = [
        USER,
        calling(("get_time", {}), ("get_weather", {})),
        result("noon", "call_0"),
        result("rain", "call_1"),
    ]
    kimi = render("kimi", *messages)
    assert "Return of functions.get_time:0\nnoon" in kimi
    assert "Return of functions.get_weather:1\nrain" in kimi
    assert '"call_id": "000000001"' in render("mistral-list", *messages)
    kept = [USER, ChatMessage("assistant", tool_calls=(ToolCall("a", {}, "abcDEF123"),)), result("noon", "abcDEF123")]
    assert '"call_id": "abcDEF123"' in render("mistral-list", *kept)


def test_several_calls_are_told_one_by_one_where_a_template_takes_one() -> None:
    messages = [
        USER,
        calling(("get_time", {}), ("get_weather", {})),
        result("noon", "call_0"),
        result("rain", "call_1"),
    ]
    prompt = render("gpt-oss", *messages)
    assert prompt.index("functions.get_time") < prompt.index("noon") < prompt.index("functions.get_weather")
    assert prompt.index("functions.get_weather") < prompt.index("rain")


def test_results_are_kept_with_their_calls_where_a_template_wants_that() -> None:
    prompt = render("gemma4", USER, calling(("get_time", {})), result("noon", "call_0"), tools=TOOLS)
    assert '<|tool_call>call:get_time{}<tool_call|><|tool_response>response:get_time{value:<|"|>noon<|"|>}' in prompt


def test_base_model_gets_calls_and_results_in_its_transcript() -> None:
    prompt = render("transcript", USER, calling(("get_time", {})), result("noon", "call_0"), tools=[TIME])
    assert prompt.endswith(
        'User: Weather?\nAssistant: <tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
        "Tool: noon\nAssistant:"
    )


def test_model_told_of_tools_in_words_does_not_write_their_results() -> None:
    with_tools = Chat(messages=[USER], tools=TOOLS)
    assert make_renderer("transcript").stop_for(with_tools) == ("\nUser:", "\nTool:")
    assert make_renderer("transcript").stop_for(Chat(messages=[USER])) == ("\nUser:",)
    assert make_renderer("chatml").stop_for(with_tools) == ("<tool_response>",)
    assert make_renderer("qwen3").stop_for(with_tools) == ()


# ---- the last message ------------------------------------------------------------------------------


def test_answer_is_continued_unless_the_chat_says_otherwise(name: str) -> None:
    """F7, F15."""
    messages = [USER, ChatMessage("assistant", "It is ")]
    assert render(name, *messages, tools=TOOLS).endswith("It is ")
    assert not render(name, *messages, continues=False).endswith("It is ")
    parts = ChatMessage("assistant", [{"type": "text", "text": "It is "}])
    assert render(name, USER, parts) == render(name, *messages)


def test_call_at_the_end_is_not_continued(name: str) -> None:
    prompt = render(name, USER, calling(("get_time", {}), content="I look."), tools=TOOLS)
    assert prompt.index("I look.") < len(prompt) - len("I look.")


# ---- text from outside -----------------------------------------------------------------------------


def test_nothing_that_people_wrote_becomes_a_control_token(name: str) -> None:
    """F14: in descriptions, schemas, names, arguments, results and template arguments too."""
    mark = MarkingTokenizer.special
    tool = Tool(
        f"n{mark}", f"d{mark}", {"type": "object", "properties": {f"k{mark}": {"type": "string", "enum": [mark]}}}
    )
    messages = [
        ChatMessage("system", mark),
        ChatMessage("user", mark, name=mark),
        ChatMessage(
            "assistant", mark, tool_calls=(ToolCall(mark, {mark: [{mark: mark}]}, mark),), reasoning=f"r{mark}"
        ),
        ChatMessage("tool", mark, name=mark, tool_call_id=mark),
        ChatMessage("user", mark),
    ]
    prompt = render(name, *messages, tools=[tool], reasoning_effort=mark, template_arguments={"custom": [mark]})
    assert mark not in prompt
    assert prompt.count("<§|x|>") >= 6


def test_template_arguments_reach_the_template() -> None:
    renderer = PromptRenderer(MarkingTokenizer(), "{{ messages[0].content }}{{ style.tone }}{{ list[0] }}")
    chat = Chat(messages=[USER], template_arguments={"style": {"tone": "<|x|>"}, "list": [1]})
    assert renderer.render(chat).text == "Weather?<§|x|>1"


@pytest.mark.parametrize("argument", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_template_arguments_cannot_replace_what_the_request_says(argument: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("qwen3", USER, template_arguments={argument: []})
    assert caught.value.param == f"chat_template_kwargs.{argument}"


def test_deep_nesting_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    for name in ("qwen3", "transcript"):
        for how in ({"tools": [Tool("a", "", deep)]}, {"template_arguments": {"a": deep}}):
            with pytest.raises(InvalidRequest, match=r"deep|recursion"):
                render(name, USER, **how)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"deep|recursion"):
            render(name, USER, calling(("a", deep)))


# ---- reasoning -------------------------------------------------------------------------------------


def test_reasoning_is_switched_off_where_the_model_can(name: str) -> None:
    """H20: no reasoning begins in the prompt, and the answer behind it has none."""
    renderer = make_renderer(name)
    for how in ({"thinks": False}, {"template_arguments": {"enable_thinking": False}}):
        prompt = renderer.render(Chat(messages=[USER], **how))  # type: ignore[arg-type]
        assert not prompt.begins_in_reasoning
        if renderer.can_think and name != "gpt-oss":
            assert renderer.reply_format.reasoning is not None
            assert prompt.text.rstrip().endswith(renderer.reply_format.reasoning[1])


def test_reasoning_that_the_template_begins_is_told() -> None:
    assert make_renderer("deepseek-r1").render(Chat(messages=[USER])) == (
        "<s><｜User｜>Weather?<｜Assistant｜><think>\n",
        True,
    )
    assert make_renderer("deepseek").render(Chat(messages=[USER], thinks=True)).begins_in_reasoning
    assert not make_renderer("deepseek").render(Chat(messages=[USER])).begins_in_reasoning
    assert not make_renderer("qwen3").render(Chat(messages=[USER], thinks=True)).begins_in_reasoning


def test_model_without_a_switch_gets_an_empty_thought() -> None:
    template = TEMPLATES["chatml"].replace("message.content", "message.content.split('</think>')[-1]")
    renderer = PromptRenderer(MarkingTokenizer(), template)
    answered = renderer.render(Chat(messages=[USER], thinks=False)).text
    assert answered == renderer.render(Chat(messages=[USER])).text + "<think>\n\n</think>\n\n"


def test_continued_answer_is_not_in_reasoning() -> None:
    prompt = make_renderer("deepseek-r1").render(Chat(messages=[USER, ChatMessage("assistant", "It")], thinks=False))
    assert prompt == ("<s><｜User｜>Weather?<｜Assistant｜>It", False)


def test_effort_reaches_the_template_and_is_low_where_no_reasoning_is_wanted() -> None:
    assert "Reasoning: high" in render("gpt-oss", USER, reasoning_effort="high")
    assert "Reasoning: low" in render("gpt-oss", USER, thinks=False)
    assert "Reasoning: medium" in render("gpt-oss", USER, thinks=True)


def test_earlier_reasoning_reaches_the_template() -> None:
    asked = [USER, ChatMessage("assistant", "Sunny.", reasoning="Let me see."), USER]
    assert "<think>\nLet me see.\n</think>\n\nSunny." in render("qwen3", *asked)
    inline = [USER, ChatMessage("assistant", "<think>\nLet me see.\n</think>\n\nSunny."), USER]
    assert render("qwen3", *inline) == render("qwen3", *asked)


def test_tools_are_described_as_openai_does() -> None:
    renderer = PromptRenderer(MarkingTokenizer(), "{{ messages[0].content }}{{ tools | tojson }}")
    prompt = renderer.render(Chat(messages=[USER], tools=(LIGHT,))).text
    assert prompt.startswith(
        'Weather?[{"type": "function", "function": {"name": "turn_on", "description": "", "parameters": {'
    )
    assert WEATHER.name not in prompt

"""`langchain-openai` works against the daemon as it is: answers, streams, tools, structured output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from tests.daemon import Daemon


class Light(BaseModel):
    """Switch a light."""

    room: Literal["kitchen", "hall"]
    on: bool


Make = Callable[..., ChatOpenAI]


@pytest.fixture
async def chat_model(daemon: Daemon) -> AsyncIterator[Make]:
    with httpx.Client(timeout=120) as client:
        async with httpx.AsyncClient(timeout=120) as async_client:

            def make(**options: Any) -> ChatOpenAI:
                options = {"max_tokens": 64, "temperature": 0, "max_retries": 0} | options
                clients = {"http_client": client, "http_async_client": async_client}
                return ChatOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", model="default", **clients, **options)

            yield make


def test_chat_is_answered_and_counted(chat_model: Make) -> None:
    answer = chat_model(max_tokens=8).invoke("Say hello.")
    assert answer.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_stream_is_the_whole_answer(chat_model: Make) -> None:
    model = chat_model(max_tokens=8, stream_usage=True)
    chunks = list(model.stream("Say hello."))
    assert "".join(str(chunk.content) for chunk in chunks) == model.invoke("Say hello.").content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


async def test_asynchronous_stream_is_the_whole_answer(chat_model: Make) -> None:
    model = chat_model(max_tokens=8)
    text = "".join([str(chunk.content) async for chunk in model.astream("Say hello.")])
    assert text == (await model.ainvoke("Say hello.")).content


@pytest.mark.parametrize("choice", ["Light", "any"])
def test_tool_is_called_and_its_result_told(chat_model: Make, choice: str) -> None:
    model = chat_model().bind_tools([Light], tool_choice=choice, parallel_tool_calls=False)
    asked = HumanMessage("Light in the kitchen, please.")
    answer = model.invoke([asked])
    (call,) = answer.tool_calls
    assert call["name"] == "Light"
    Light(**call["args"])
    told = chat_model(max_tokens=4).invoke([asked, answer, ToolMessage("done", tool_call_id=call["id"])])
    assert isinstance(told, AIMessage)


def test_streamed_calls_add_up(chat_model: Make) -> None:
    model = chat_model().bind_tools([Light], tool_choice="Light", parallel_tool_calls=False)
    first, *rest = model.stream("Light in the kitchen, please.")
    for chunk in rest:
        first = first + chunk
    (call,) = first.tool_calls
    Light(**call["args"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_what_was_declared(chat_model: Make, method: Any) -> None:
    light = chat_model().with_structured_output(Light, method=method).invoke("Light in the kitchen, please.")
    assert isinstance(light, Light)


def test_completion_is_continued(daemon: Daemon) -> None:
    with httpx.Client(timeout=120) as client:
        options: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "max_retries": 0, "http_client": client}
        model = OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", model="default", **options)
        text = model.invoke("1 2 3 4 5 6")
        assert text
        assert "".join(model.stream("1 2 3 4 5 6")) == text


def test_mistake_is_raised(chat_model: Make) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        chat_model(top_p=5).invoke("Hello")


def test_prompt_that_is_too_long_is_recognised(chat_model: Make) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        chat_model().invoke("word " * 40_000)
    assert raised.value.code == "context_length_exceeded"

"""`langchain-ollama` works against the daemon as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, TypeVar, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

from tests.daemon import Daemon

T = TypeVar("T", ChatOllama, OllamaLLM, OllamaEmbeddings)


class Make(Protocol):
    def __call__(self, kind: type[T], **options: Any) -> T: ...


@pytest.fixture
async def make(daemon: Daemon) -> AsyncIterator[Make]:
    """Makes what is asked for, and closes its connections, which it does not do itself."""
    made: list[Any] = []

    def make(kind: type[T], **options: Any) -> T:
        made.append(kind(**{"model": "default", "base_url": daemon.url} | options))
        return cast(T, made[-1])

    yield make
    for one in made:
        one._client.close()
        await one._async_client.close()


@pytest.fixture
def model(make: Make) -> ChatOllama:
    return make(ChatOllama, temperature=0, num_predict=12, num_ctx=4096, keep_alive=300)


def test_chat_is_answered_and_counted(model: ChatOllama) -> None:
    answer = model.invoke([SystemMessage("Be brief."), HumanMessage("Say hello.")])
    assert isinstance(answer, AIMessage)
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["done_reason"] in ("stop", "length")


def test_stream_is_the_same_as_the_whole_answer(model: ChatOllama) -> None:
    chunks = list(model.stream("Say hello."))
    assert "".join(chunk.text for chunk in chunks) == model.invoke("Say hello.").text


async def test_asynchronous_stream_ends(model: ChatOllama) -> None:
    chunks = [chunk async for chunk in model.astream("Say hello.")]
    assert chunks[-1].response_metadata.get("done_reason") or chunks[-2].response_metadata["done_reason"]


def test_results_of_tools_are_taken(model: ChatOllama) -> None:
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "call_1", "type": "tool_call"}
    answer = model.invoke(
        [
            HumanMessage("Weather in Rome?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage("sunny", tool_call_id="call_1", name="weather"),
        ]
    )
    assert answer.response_metadata["done"]


class Light(BaseModel):
    room: Literal["kitchen", "hall"]
    on: bool


def test_answer_is_structured(make: Make) -> None:
    chooser = make(ChatOllama, temperature=0, num_predict=96).with_structured_output(Light)
    assert isinstance(chooser.invoke("Light in the kitchen, please."), Light)


def test_text_is_completed(make: Make) -> None:
    completion = make(OllamaLLM, temperature=0, num_predict=8)
    assert completion.invoke("Say hello.") == "".join(completion.stream("Say hello."))


def test_texts_become_vectors(make: Make) -> None:
    embeddings = make(OllamaEmbeddings)
    first, second = embeddings.embed_documents(["A cat sleeps.", "A dog barks."])
    assert len(first) == len(second) == 640
    assert embeddings.embed_query("A cat sleeps.") == pytest.approx(first, abs=1e-2)


def test_presence_of_the_model_is_seen(make: Make, daemon: Daemon) -> None:
    make(ChatOllama, model=daemon.status()["model"]["name"], validate_model_on_init=True)

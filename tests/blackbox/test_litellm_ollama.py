"""`litellm`'s `ollama_chat`, and so aider, works against the daemon as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.daemon import Daemon

pytestmark = pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")  # of its own types

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def litellm() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it looks for prices on the web otherwise
        return pytest.importorskip("litellm")


@pytest.fixture
def ask(litellm: Any, daemon: Daemon) -> Any:
    def ask(**fields: Any) -> Any:
        options = {"max_tokens": 8, "temperature": 0, "messages": HELLO, "num_retries": 0, "max_retries": 0} | fields
        return litellm.completion(model="ollama_chat/default", api_base=daemon.url, **options)

    return ask


def test_chat_is_answered_and_counted(ask: Any) -> None:
    answer = ask(num_ctx=9131)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer.usage.prompt_tokens > 0


def test_stream_is_the_whole_answer(ask: Any) -> None:
    text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True))
    assert text == ask().choices[0].message.content


def test_answer_fits_its_schema(ask: Any) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    form = {"type": "json_schema", "json_schema": {"name": "light", "schema": schema | {"additionalProperties": False}}}
    assert json.loads(ask(response_format=form, max_tokens=64).choices[0].message.content).keys() == {"on"}


def test_prompt_that_is_too_long_is_a_mistake_with_the_words_that_aider_knows(litellm: Any, ask: Any) -> None:
    with pytest.raises(litellm.BadRequestError, match="exceeds the available context size"):
        ask(messages=[{"role": "user", "content": "word " * 40_000}])

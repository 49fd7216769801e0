"""`litellm`, and so aider, works against the daemon's /v1 as it is."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.blackbox.test_openai_tools import LIGHT, TOOLS, named
from tests.daemon import Daemon

pytestmark = pytest.mark.filterwarnings("ignore")  # of its own making

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it looks for prices on the web otherwise
        warnings.simplefilter("ignore")
        yield importlib.import_module("litellm")
        with contextlib.suppress(RuntimeError):  # there is none where another test has closed it
            asyncio.get_event_loop_policy().get_event_loop().close()  # it made one, and leaves it open
        asyncio.set_event_loop(None)


@pytest.fixture
def ask(litellm: Any, daemon: Daemon) -> Iterator[Callable[..., Any]]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:

        def ask(**fields: Any) -> Any:
            options = {"max_tokens": 64, "temperature": 0, "messages": HELLO, "num_retries": 0} | fields
            return litellm.completion(model="openai/default", client=client, api_key="unused", **options)

        yield ask


def test_chat_is_answered(ask: Callable[..., Any]) -> None:
    answer = ask(max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_stream_is_the_whole_answer(ask: Callable[..., Any]) -> None:
    chunks = list(ask(max_tokens=8, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask(max_tokens=8).choices[0].message.content


def test_named_tool_is_called_as_aider_wants_it(ask: Callable[..., Any]) -> None:
    message = ask(tools=TOOLS[:1], tool_choice=named("set_light")).choices[0].message
    assert message.tool_calls[0].function.name == "set_light"
    assert json.loads(message.tool_calls[0].function.arguments).keys() == {"room", "on"}


def test_answer_fits_its_schema(ask: Callable[..., Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "light", "strict": True, "schema": LIGHT}}
    assert json.loads(ask(response_format=form).choices[0].message.content).keys() == {"room", "on"}


def test_prompt_that_is_too_long_is_recognised(litellm: Any, ask: Callable[..., Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": "word " * 40_000}])


def test_mistake_is_a_bad_request(litellm: Any, ask: Callable[..., Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        ask(top_p=5)

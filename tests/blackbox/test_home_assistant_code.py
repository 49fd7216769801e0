"""Home Assistant's own code asks the daemon: its integrations set themselves up, converse, call tools, make data.

It comes from a wheel of Home Assistant, which has a newer Python than homeai needs and is too large to be a test's
requirement. `pip download homeassistant --no-deps --python-version 3.14 --only-binary=:all:` fetches one; its path goes
into HOMEASSISTANT_WHEEL. What it sends is kept in tests/home_assistant/exchanges, and replayed in every run.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.daemon import Daemon
from tests.home_assistant.exchanges import recorded
from tests.home_assistant.house import CONTEXT, PROMPT, House
from tests.home_assistant.relay import Relay, Request, passing_on
from tests.home_assistant.standins import HomeAssistantError
from tests.home_assistant.wheel import Wheel

WHEEL = os.environ.get("HOMEASSISTANT_WHEEL", "")
INTEGRATIONS = {"ollama": "/api/chat", "openai_conversation": "/v1/responses"}
SENTENCES = ["It is warm.", "You are welcome."]

pytestmark = [
    pytest.mark.skipif(not WHEEL, reason="HOMEASSISTANT_WHEEL names no wheel of Home Assistant (see this module)"),
    pytest.mark.parametrize("integration", INTEGRATIONS),
]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House(Path(WHEEL))
    yield house
    await house.close()


def address(integration: str, url: str, monkeypatch: pytest.MonkeyPatch, key: str = "unused") -> dict[str, Any]:
    """What a person enters when setting it up."""
    if integration == "ollama":
        return {"url": url}
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    return {"api_key": key}


def forcing(integration: str, tool: str) -> Callable[[Request], Any]:
    """The default model says what it likes, at any length: what it does instead, by its grammar.

    It calls in the first round of a conversation, and speaks one of two sentences in the others.
    """
    saying = {"type": "string", "enum": SENTENCES}

    def change(request: Request) -> Any:
        if request.path != INTEGRATIONS[integration]:
            return None
        is_first = len(messages_of(request)) == 2
        if integration == "ollama":
            choice = {"type": "function", "function": {"name": tool}} if is_first else "none"
            form = {} if is_first else {"format": saying}
        else:
            choice = {"type": "function", "name": tool} if is_first else "none"
            form = {} if is_first else {"text": {"format": {"type": "json_schema", "name": "s", "schema": saying}}}
        return request.json | form | {"tool_choice": choice, "parallel_tool_calls": False}

    return change


def messages_of(request: Request) -> Any:
    body = request.json
    return body["messages"] if "messages" in body else body["input"]


async def test_tool_is_called_its_result_told_and_the_answer_spoken(
    integration: str, house: House, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: two rounds through the integration's own reading, tools and history, and a second sentence after them."""
    with Relay(passing_on(daemon.url, forcing(integration, "GetLiveContext"))) as relay:
        entry = await house.set_up(integration, address(integration, relay.url, monkeypatch))
        talk = await house.say(integration, entry, "How warm is the kitchen?", "Thank you.")
    asked = [request for request in relay.seen if request.path == INTEGRATIONS[integration]]
    ((name, arguments),) = house.called
    assert (name, arguments.keys()) == ("GetLiveContext", {"area"})
    assert talk.roles == ["user", "assistant", "tool_result", "assistant", "user", "assistant"]
    called, told = talk.log.content[2:4]
    assert (called.content, [call.tool_name for call in called.tool_calls]) == (None, ["GetLiveContext"])
    assert told.tool_result["success"] is True
    assert all(json.loads(answer) in SENTENCES for answer in talk.answers)
    assert len(asked) == 3
    assert PROMPT in str(messages_of(asked[0])[0]["content"])
    assert CONTEXT in str(messages_of(asked[0])[0]["content"])


async def test_task_makes_data_of_its_structure(
    integration: str, house: House, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await house.set_up(integration, address(integration, daemon.url, monkeypatch))
    task = house.task()
    data = (await house.make(integration, entry, task)).data
    task.structure({name: value for name, value in data.items() if value is not None})
    assert data["room"] in ("kitchen", "hall")
    assert type(data["lit"]) is bool


async def test_refusal_is_told_as_such(
    integration: str, house: House, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a failure of its reading. `ollama` lets its library's error through: it comes with the first piece."""
    entry = await house.set_up(integration, address(integration, daemon.url, monkeypatch))
    if integration == "ollama":
        with pytest.raises(ollama.ResponseError, match="does not support thinking"):
            await house.say(integration, entry, "Hello", think=True)
    else:
        with pytest.raises(HomeAssistantError, match="Error talking to OpenAI"):
            await house.say(integration, entry, "Hello", temperature=9.0)


def test_wheel_is_of_the_recorded_version(integration: str) -> None:
    versions = {exchange.home_assistant for exchange in recorded(integration.removesuffix("_conversation")).values()}
    with Wheel(Path(WHEEL)) as wheel:
        version = wheel.version
    assert versions == {version}, "scripts/record-home-assistant makes them again"

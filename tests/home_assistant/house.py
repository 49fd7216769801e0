"""A house with two tools and one AI task, as Home Assistant's integrations see it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.home_assistant.standins import ConfigEntry, ConfigSubentry, ConversationInput, GenDataTask, GenDataTaskResult
from tests.home_assistant.wheel import Finder, Wheel

PROMPT = "You look after the house. Answer in one short sentence, with no markup."
CONTEXT = "Known here: lamp (light, kitchen), radio (media_player, hall)."
MODEL = "default"


@dataclass
class ConfigEntries:
    forwarded: list[Any] = field(default_factory=list)

    async def async_forward_entry_setups(self, entry: Any, platforms: Any) -> None:
        self.forwarded.append(entry)


@dataclass
class Hass:
    """As much of Home Assistant's core as the integrations touch."""

    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=60))
    config_entries: ConfigEntries = field(default_factory=ConfigEntries)

    class config:
        location_name = "House"

    data: dict[Any, Any] = field(default_factory=dict)

    def async_create_task(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, name=name)

    async def async_add_executor_job(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)


class House:
    """The integrations of one wheel, each set up by its own code and asked through its own entities."""

    def __init__(self, wheel: Path) -> None:
        self._finder: Finder = Wheel(wheel).load()
        self.hass = Hass()
        self.called: list[tuple[str, dict[str, Any]]] = []  # tools, in order

    async def close(self) -> None:
        for entry in self.hass.config_entries.forwarded:
            await entry.runtime_data._client.aclose()
        await self.hass.http.aclose()
        self._finder.unload()

    async def set_up(self, integration: str, data: dict[str, Any]) -> ConfigEntry:
        entry = ConfigEntry(data)
        package = self._finder.module(f"components.{integration}")
        assert await package.async_setup_entry(self.hass, entry)
        assert self.hass.config_entries.forwarded[-1] is entry
        return entry

    async def say(self, integration: str, entry: ConfigEntry, *sentences: str, **settings: Any) -> Conversation:
        """One conversation, sentence by sentence, with the tools at hand."""
        kind = {"ollama": "OllamaConversationEntity", "openai_conversation": "OpenAIConversationEntity"}[integration]
        options = {"llm_hass_api": self._tools(), "prompt": PROMPT} | settings
        entity = self._entity(integration, "conversation", kind, entry, options)
        log = self._log()
        answers = []
        for sentence in sentences:
            log.async_add_user_content(self._finder.module("components.conversation").UserContent(content=sentence))
            result = await entity._async_handle_message(ConversationInput(sentence), log)
            answers.append(result.response.speech)
        return Conversation(answers, log)

    async def make(self, integration: str, entry: ConfigEntry, task: GenDataTask, **settings: Any) -> GenDataTaskResult:
        """Data of the task's structure."""
        kind = {"ollama": "OllamaTaskEntity", "openai_conversation": "OpenAITaskEntity"}[integration]
        entity = self._entity(integration, "ai_task", kind, entry, settings)
        conversation = self._finder.module("components.conversation")
        log = self._log()
        log.content[0] = conversation.SystemContent(content=PROMPT)
        log.async_add_user_content(conversation.UserContent(content=task.instructions))
        result: GenDataTaskResult = await entity._async_generate_data(task, log)
        return result

    def task(self) -> GenDataTask:
        import voluptuous as vol

        selector = self._finder.module("helpers.selector")
        rooms = selector.SelectSelector({"options": ["kitchen", {"value": "hall", "label": "Hall"}]})
        structure = {
            vol.Required("room", description="Where it is"): rooms,
            vol.Required("lit"): selector.BooleanSelector(),
            vol.Optional("light"): selector.SelectSelector({"options": ["full", "half"]}),
        }
        return GenDataTask("Lamp's state", "The lamp in the hall is on. Say so as data.", vol.Schema(structure))

    def _log(self) -> Any:
        return self._finder.module("components.conversation").ChatLog(self.hass, "01JCONVERSATION")

    def _entity(self, integration: str, module: str, kind: str, entry: ConfigEntry, options: dict[str, Any]) -> Any:
        named = {"model" if integration == "ollama" else "chat_model": MODEL}
        subentry = ConfigSubentry(named | options)
        entity = getattr(self._finder.module(f"components.{integration}.{module}"), kind)(entry, subentry)
        entity.hass, entity.entity_id = self.hass, f"{module}.house"
        return entity

    def _tools(self) -> Any:
        import voluptuous as vol

        llm = self._finder.module("helpers.llm")
        house = self

        class HouseTool(llm.Tool):  # type: ignore[misc, name-defined]
            def __init__(self, name: str, description: str | None, parameters: dict[Any, Any]) -> None:
                self.name, self.description, self.parameters = name, description, vol.Schema(parameters)

            async def async_call(self, hass: Any, tool_input: Any, llm_context: Any) -> dict[str, Any]:
                house.called.append((self.name, tool_input.tool_args))
                self.parameters(tool_input.tool_args)
                return {"success": True, "where": "kitchen", "degrees": 21.5}

        switch = {
            vol.Optional("name", description="Which one"): str,
            vol.Optional("area"): vol.In(["kitchen", "hall"]),
            vol.Optional("domain"): [vol.In(["light", "switch"])],
            vol.Optional("brightness"): vol.All(vol.Coerce(int), vol.Range(min=0, max=100)),
        }
        look = {vol.Required("area"): vol.In(["kitchen", "hall"])}  # a call of it cannot become long
        tools = [
            HouseTool("HassTurnOn", "Switches something on.", switch),
            HouseTool("GetLiveContext", None, look),
            HouseTool("HassNevermind", None, {}),
        ]

        class HouseAPI(llm.API):  # type: ignore[misc, name-defined]
            async def async_get_api_instance(self, llm_context: Any) -> Any:
                return llm.APIInstance(self, CONTEXT, llm_context, tools, llm.selector_serializer)

        return HouseAPI(hass=self.hass, id="house", name="House")


@dataclass
class Conversation:
    answers: list[str]
    log: Any

    @property
    def roles(self) -> list[str]:
        """Of all that it is made of, after the system's."""
        return [content.role for content in self.log.content[1:]]

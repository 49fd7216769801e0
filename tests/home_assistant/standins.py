"""What the integrations need of Home Assistant while they are imported, and little more: plain objects of its names."""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import Any

import httpx
import jinja2

NOW = datetime(2026, 2, 14, 7, 30, tzinfo=UTC)


class _Named(type):
    """A member of a class nobody looks into is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class StandIn(metaclass=_Named):
    """A class, a decorator, or a function without effect."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        vars(self).update(fields)


class StandInModule(ModuleType):
    """Whatever is imported from it is there, except from a package of modules alone: there the modules are."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__name__ in OF_MODULES or name in MODULES:
            raise AttributeError(name)
        for module in LEFT_IN.get(self.__name__, ()):
            if name in (there := vars(import_module(f"{self.__name__}.{module}"))):
                return there[name]
        made = type(name, (Selector if name.endswith("Selector") else StandIn,), {})
        setattr(self, name, made)
        return made


OF_MODULES = {
    "homeassistant",
    "homeassistant.components",
    "homeassistant.helpers",
    "homeassistant.util",
}
MODULES = {"trace"}
LEFT_IN = {"homeassistant.components.conversation": ("chat_log", "models", "util")}  # names that a package passes on


def same(thing: Any) -> Any:
    return thing


# ---- what a request is made of --------------------------------------------------------------------------


class AITaskEntityFeature(enum.IntFlag):
    GENERATE_DATA = 1
    SUPPORT_ATTACHMENTS = 2
    GENERATE_IMAGE = 4


@dataclass
class GenDataTask:
    name: str
    instructions: str
    structure: Any = None
    attachments: Any = None
    llm_api: Any = None


@dataclass
class GenDataTaskResult:
    conversation_id: str
    data: Any


@dataclass
class ConversationInput:
    text: str
    language: str = "en"
    extra_system_prompt: str | None = None

    def as_llm_context(self, domain: str) -> Any:
        from homeassistant.helpers import llm  # type: ignore[import-not-found]  # in the wheel

        return llm.LLMContext(
            platform=domain, context=None, language=self.language, assistant="conversation", device_id=None
        )


class Template:
    def __init__(self, text: str, hass: Any) -> None:
        self._template = jinja2.Template(text)

    def async_render(self, variables: dict[str, Any], parse_result: bool) -> str:
        """At the moment of `NOW`."""
        return self._template.render(variables, now=lambda: NOW).strip()


class Selector:
    """What a person picks a value with, in a form or in the structure of an AI task."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config = config or {}

    def __call__(self, value: Any) -> Any:
        return value


def slugify(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


class IntentResponse(StandIn):
    speech = ""

    def async_set_speech(self, text: str) -> None:
        self.speech = text


# ---- errors ---------------------------------------------------------------------------------------------


class HomeAssistantError(Exception):
    def __init__(self, *arguments: object, **translation: object) -> None:
        super().__init__(*arguments)


class ConfigEntryNotReady(HomeAssistantError): ...


class ConfigEntryAuthFailed(HomeAssistantError): ...


class TemplateError(HomeAssistantError): ...


# ---- what is set up -------------------------------------------------------------------------------------


@dataclass
class ConfigSubentry:
    data: dict[str, Any]
    subentry_type: str = "conversation"
    title: str = "House"
    subentry_id: str = "01JSUBENTRY"
    unique_id: str | None = None


@dataclass
class ConfigEntry:
    data: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    subentries: dict[str, ConfigSubentry] = field(default_factory=dict)
    runtime_data: Any = None

    def async_on_unload(self, function: Callable[[], None]) -> None: ...

    def add_update_listener(self, listener: Any) -> Callable[[], None]:
        return lambda: None


STAND_INS: dict[str, dict[str, Any]] = {
    "homeassistant.components.ai_task": {
        "AITaskEntityFeature": AITaskEntityFeature,
        "GenDataTask": GenDataTask,
        "GenDataTaskResult": GenDataTaskResult,
    },
    "homeassistant.components.conversation.models": {"ConversationInput": ConversationInput},
    "homeassistant.config_entries": {"ConfigEntry": ConfigEntry, "ConfigSubentry": ConfigSubentry},
    "homeassistant.const": {
        "CONF_API_KEY": "api_key",
        "CONF_LLM_HASS_API": "llm_hass_api",
        "CONF_URL": "url",
        "MATCH_ALL": "*",
    },
    "homeassistant.core": {"callback": same},
    "homeassistant.exceptions": {
        "ConfigEntryAuthFailed": ConfigEntryAuthFailed,
        "ConfigEntryNotReady": ConfigEntryNotReady,
        "HomeAssistantError": HomeAssistantError,
        "TemplateError": TemplateError,
    },
    "homeassistant.helpers.httpx_client": {"get_async_client": lambda hass: hass.http},
    "homeassistant.helpers.intent": {"IntentResponse": IntentResponse},
    "homeassistant.helpers.selector": {"Selector": Selector},
    "homeassistant.helpers.singleton": {"singleton": lambda key: same},
    "homeassistant.helpers.template": {"Template": Template},
    "homeassistant.util": {"slugify": slugify},
    "homeassistant.util.dt": {"utcnow": lambda: NOW},
    "homeassistant.util.ssl": {"get_default_context": httpx.create_ssl_context},
    "homeassistant.util.ulid": {"ulid_now": lambda: uuid.uuid4().hex},
}

"""Well-known programs by what they call themselves: a readable name for those who have no better one.

Only programs; what an HTTP library says of itself (curl, httpx, axios) tells nobody who is asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from homeai.patterns import compiled

MAX_AGENT_LENGTH: Final = 512  # of a User-Agent that is looked at


@dataclass(frozen=True, slots=True)
class Product:
    name: str
    is_coding: bool = False


OPEN_WEBUI: Final = Product("open-webui")

PRODUCTS: Final = (
    (r"^HomeAssistant/", Product("home-assistant")),
    (r"(?i)\bopen-?webui\b", OPEN_WEBUI),
    (r"(?i)^claude-(cli|code)\b", Product("claude-code", is_coding=True)),
    (r"(?i)^codex([_-][a-z_]+)*/", Product("codex", is_coding=True)),
    (r"(?i)\baider\b", Product("aider", is_coding=True)),
    (r"(?i)^continue/", Product("continue", is_coding=True)),
    (r"(?i)^cline/", Product("cline", is_coding=True)),
    (r"(?i)^roo-?code/", Product("roo-code", is_coding=True)),
    (r"(?i)^opencode/", Product("opencode", is_coding=True)),
    (r"(?i)^zed/", Product("zed", is_coding=True)),
    (r"(?i)^githubcopilot|^copilot", Product("copilot", is_coding=True)),
    (r"(?i)\bllama[._-]?(vim|vscode)\b", Product("llama.vscode", is_coding=True)),
    (r"(?i)^litellm/", Product("litellm")),
    (r"(?i)^n8n\b", Product("n8n")),
    (r"(?i)^langchain", Product("langchain")),
    (r"^ollama-python/", Product("ollama-python")),
    (r"^ollama-js/", Product("ollama-js")),
    (r"^(Async)?OpenAI/Python", Product("openai-python")),
    (r"^OpenAI/JS", Product("openai-js")),
    (r"^(Async)?Anthropic/Python", Product("anthropic-python")),
    (r"^Anthropic/JS", Product("anthropic-js")),
)

_COMPILED: Final = tuple((compiled(pattern), product) for pattern, product in PRODUCTS)


@lru_cache(maxsize=256)
def product_of(user_agent: str) -> Product | None:
    """The program that says so in its User-Agent. Anybody can say anything: good for a name, not for a privilege."""
    agent = user_agent[:MAX_AGENT_LENGTH]
    return next((product for pattern, product in _COMPILED if pattern.search(agent)), None)

"""An error in the words of the API family that was asked: status, body. The path says which family that is.

| family    | body                                                                      | busy |
|-----------|---------------------------------------------------------------------------|------|
| OpenAI    | {"error": {"message", "type", "param", "code"}}                           | 429  |
| Anthropic | {"type": "error", "error": {"type", "message"}, "request_id"}             | 529  |
| Ollama    | {"error": "message"}                                                      | 503  |
| llama.cpp | {"error": {"code": status, "message", "type"}}                            | 429  |
"""

from __future__ import annotations

from typing import Final, Literal

from starlette.types import Scope

from homeai.errors import (
    BodyTooLarge,
    HostNotAllowed,
    ModelNotFound,
    NotAuthenticated,
    NotFound,
    PromptTooLong,
    RequestError,
    TooManyRequests,
)

Value = dict[str, object]
Family = Literal["openai", "anthropic", "ollama", "llamacpp"]

OLLAMA_PATHS: Final = frozenset(
    f"/api/{name}"
    for name in (
        *("chat", "generate", "tags", "ps", "show", "version", "embed", "embeddings", "pull"),
        *("push", "create", "copy", "delete", "me"),
    )
)
LLAMACPP_PATHS: Final = frozenset(
    ("/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/props", "/slots")
)
ANTHROPIC_PATHS: Final = ("/v1/messages", "/messages")

LLAMACPP_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
ANTHROPIC_OVERLOADED: Final = 529


def family_of(path: str) -> Family:
    if path.startswith(ANTHROPIC_PATHS):
        return "anthropic"
    if path in OLLAMA_PATHS or path.startswith("/api/blobs/"):
        return "ollama"
    return "llamacpp" if path in LLAMACPP_PATHS or path.startswith("/slots/") else "openai"


def error_answer(error: RequestError, scope: Scope) -> tuple[int, Value]:
    """Status and body for an HTTP answer to the request of `scope`."""
    match family_of(scope.get("path", "")):
        case "anthropic":
            request_id = scope.get("state", {}).get("request_id", "")
            return anthropic_status(error), anthropic_error(error, request_id)
        case "ollama":
            return ollama_status(error), ollama_error(error)
        case "llamacpp":
            return error.status, llamacpp_error(error)
        case "openai":
            return error.status, openai_error(error)


def openai_error(error: RequestError) -> Value:
    """Which is also what a stream carries as its last event."""
    body: Value = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body | error.details}


def llamacpp_error(error: RequestError) -> Value:
    other = "invalid_request_error" if error.status < 500 else "server_error"
    kind = LLAMACPP_TYPES.get(error.status, other)
    if isinstance(error, PromptTooLong):
        kind = "exceed_context_size_error"
    body: Value = {"code": error.status, "message": error.message, "type": kind}
    return {"error": body | error.details}


def anthropic_error(error: RequestError, request_id: str) -> Value:
    kind = ANTHROPIC_TYPES.get(anthropic_status(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}


def anthropic_status(error: RequestError) -> int:
    """Busy, for whatever reason, is "overloaded": what its SDKs know to come back from."""
    is_known = isinstance(error, BodyTooLarge | HostNotAllowed | ModelNotFound | NotAuthenticated | NotFound)
    return ANTHROPIC_OVERLOADED if error.retryable and not is_known else error.status


def ollama_error(error: RequestError) -> Value:
    if isinstance(error, TooManyRequests):
        return {"error": f"server busy, please try again.  maximum pending requests exceeded: {error.message}"}
    return {"error": error.message}


def ollama_status(error: RequestError) -> int:
    return 503 if isinstance(error, TooManyRequests) else error.status

"""Every error homeai raises on purpose.

HomeAIError
├── ConfigError                 a setting cannot be used                      (exit code 2)
├── ModelLoadError              the model file cannot be loaded               (state FAILED)
├── DeviceUnavailable           no GPU yet, or its memory is taken            (tried again)
├── BrokenLogits                the model's output is unusable                (the engine restarts)
└── RequestError                a client's request cannot be served           4xx/5xx, OpenAI code
    ├── InvalidRequest          400 invalid_request_error
    │   ├── PromptTooLong       400 context_length_exceeded
    │   └── Unsupported         400 unsupported_value
    ├── NotAuthenticated        401 invalid_api_key
    ├── HostNotAllowed          403 host_not_allowed
    ├── NotFound                404 not_found
    ├── ModelNotFound           404 model_not_found
    ├── BodyTooLarge            413 request_too_large
    ├── TooManyRequests         429 rate_limit_exceeded   (Retry-After)
    └── NotReady                503 service_unavailable   (Retry-After)
        ├── QueueTimeout        503 queue_timeout
        └── EngineDied          503 engine_died
"""

from __future__ import annotations


class HomeAIError(Exception):
    """Base of all."""


class ConfigError(HomeAIError):
    """One line: the key, the value, what is allowed."""


class ModelLoadError(HomeAIError):
    """The model file is missing, truncated, or not a GGUF. Restarting does not help."""


class DeviceUnavailable(HomeAIError):
    """The device is not there yet, or has no room for the model now. Trying again later helps; the file is fine."""


class BrokenLogits(HomeAIError):
    """The model's own output is unusable, so the engine is. Never caused by a request's parameters."""

    def __init__(self, row: int, num_rows: int, peak: float) -> None:
        super().__init__(f"logits row {row} of {num_rows} is broken: its maximum is {peak}")
        self.row = row


class RequestError(HomeAIError):
    """Carries what an HTTP answer needs; each API family draws its own body from it."""

    status = 500
    type = "server_error"
    code: str | None = None
    retryable = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def details(self) -> dict[str, int]:
        """Numbers for programs, beside the message for people."""
        return {}


class InvalidRequest(RequestError):
    status = 400
    type = "invalid_request_error"


class PromptTooLong(InvalidRequest):
    """The text is one that every client family recognises by substring."""

    code = "context_length_exceeded"

    def __init__(
        self, num_prompt_tokens: int, max_tokens: int, *, at_least: bool = False, param: str = "messages"
    ) -> None:
        """`at_least`: the text was refused by its size alone, and `num_prompt_tokens` is the fewest it can be."""
        super().__init__(
            f"prompt is too long: {'at least ' if at_least else ''}{num_prompt_tokens} tokens > {max_tokens} maximum "
            "(the request exceeds the available context size)",
            param=param,
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens

    @property
    def details(self) -> dict[str, int]:
        return {"n_prompt_tokens": self.num_prompt_tokens, "n_ctx": self.max_tokens}


class Unsupported(InvalidRequest):
    code = "unsupported_value"


class NotAuthenticated(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(RequestError):
    """No such path, or not with this method (405)."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class HostNotAllowed(RequestError):
    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class ModelNotFound(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class BodyTooLarge(RequestError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class TooManyRequests(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retryable = True


class NotReady(RequestError):
    status = 503
    type = "service_unavailable_error"
    code = "service_unavailable"
    retryable = True


class QueueTimeout(NotReady):
    code = "queue_timeout"


class EngineDied(NotReady):
    """The engine child ended while the request was in it."""

    code = "engine_died"

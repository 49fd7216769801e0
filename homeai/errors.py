"""Every error homeai raises on purpose.

HomeAIError
├── ConfigError                 a setting cannot be used                      (exit code 2)
├── ModelLoadError              the model file cannot be loaded               (state FAILED)
├── DeviceUnavailable           no GPU yet, or its memory is taken            (tried again)
├── PullError                   a model cannot be fetched                     (exit code 1)
├── BrokenLogits                the model's output is unusable                (the engine restarts)
├── GrammarFailed               a grammar cannot be compiled or followed      (its request fails)
└── RequestError                a client's request cannot be served           4xx/5xx, OpenAI code
    ├── InvalidRequest          400 invalid_request_error
    │   ├── PromptTooLong       400 context_length_exceeded
    │   └── Unsupported         400 unsupported_value
    ├── NotAuthenticated        401 invalid_api_key
    ├── HostNotAllowed          403 host_not_allowed
    ├── NotPermitted            403 admin_key_required
    ├── NotFound                404 not_found
    ├── ModelNotFound           404 model_not_found
    ├── RequestTimeout          408 request_timeout
    ├── BodyTooLarge            413 request_too_large
    ├── HeadersTooLarge         431 headers_too_large
    ├── NotSupported            501 not_supported
    ├── PoisonedRequest         500 poisoned_request      (it ended the engine, twice)
    ├── TooManyRequests         429 rate_limit_exceeded   (Retry-After)
    │   └── QuotaExceeded       429 insufficient_quota    (Retry-After)
    └── NotReady                503 service_unavailable   (Retry-After)
        ├── QueueTimeout        503 queue_timeout
        ├── EngineDied          503 engine_died
        ├── GPUUnavailable      503 gpu_unavailable
        └── Yielded             503 gpu_yielded
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


class PullError(HomeAIError):
    """A model cannot be fetched from the hub as it was asked for, or not now. What already came is kept."""


class BrokenLogits(HomeAIError):
    """The model's own output is unusable, so the engine is. Never caused by a request's parameters."""

    def __init__(self, row: int, num_rows: int, peak: float) -> None:
        super().__init__(f"logits row {row} of {num_rows} is broken: its maximum is {peak}")
        self.row = row


class GrammarFailed(HomeAIError):
    """llguidance's reason, one line. Only the request that brought the grammar fails."""


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
        self.at_least = at_least
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


class NotPermitted(RequestError):
    """Whoever asks may ask for answers, but not for this."""

    status = 403
    type = "permission_error"
    code = "admin_key_required"


class ModelNotFound(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class BodyTooLarge(RequestError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class NotSupported(RequestError):
    """This model, or this server, cannot do it, however it is asked."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"


class PoisonedRequest(RequestError):
    """Whoever sends it again ends the engine again."""

    code = "poisoned_request"


class HeadersTooLarge(RequestError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class RequestTimeout(RequestError):
    """The client took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class TooManyRequests(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retryable = True


class QuotaExceeded(TooManyRequests):
    """What the key may use in a day is used up: coming back helps only then, not in a moment."""

    type = "insufficient_quota"
    code = "insufficient_quota"
    retryable = False


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


class GPUUnavailable(NotReady):
    """The device is gone, or has no room. Nothing is computed on another one instead."""

    code = "gpu_unavailable"


class Yielded(NotReady):
    """The device is lent to other programs."""

    code = "gpu_yielded"

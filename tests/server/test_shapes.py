"""Errors in the words of each API family."""

from __future__ import annotations

from typing import Any, cast

import pytest

from homeai.errors import (
    BodyTooLarge,
    InvalidRequest,
    NotAuthenticated,
    NotReady,
    PromptTooLong,
    RequestError,
    RequestTimeout,
    TooManyRequests,
)
from homeai.server.shapes import llamacpp_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("x"), "invalid_request_error"),
        (BodyTooLarge("x"), "invalid_request_error"),
        (RequestTimeout("x"), "invalid_request_error"),
        (TooManyRequests("x", retry_after_s=1.0), "invalid_request_error"),
        (PromptTooLong(9, 5), "exceed_context_size_error"),
        (NotAuthenticated("x"), "authentication_error"),
        (NotReady("x"), "unavailable_error"),
        (RequestError("x"), "server_error"),
    ],
)
def test_llama_server_calls_a_clients_mistake_one(error: RequestError, kind: str) -> None:
    body = cast(Any, llamacpp_error(error))["error"]
    assert (body["type"], body["code"]) == (kind, error.status)

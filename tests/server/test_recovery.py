"""A bug in a route: an answer with an id, a line in the log, and nothing that looks complete but is not."""

from __future__ import annotations

import logging

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from homeai.server.guards import Recovery, RequestId


def app(*, begins: bool) -> ASGIApp:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("secret detail")

    return RequestId(Recovery(broken))


def client(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_bug_is_answered_in_the_usual_shape_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with client(app(begins=False)) as http:
        response = await http.get("/x")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error: ZeroDivisionError"
    assert response.headers["x-request-id"] == response.headers["request-id"]
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "GET /x failed")
    assert record.exc_info is not None


async def test_answer_that_has_begun_breaks_off() -> None:
    async with client(app(begins=True)) as http:
        with pytest.raises(ZeroDivisionError):
            await http.get("/x")

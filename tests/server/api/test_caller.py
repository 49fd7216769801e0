"""What a connection says about who is asking, as it says it."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from homeai.server.api.caller import caller_of
from homeai.server.arrival import Caller
from homeai.server.sources import OpenWebUIUser


def call(client: tuple[str, int] | None = ("192.168.1.7", 1), **headers: str) -> Caller:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    state = {"request_id": "ours", "client_request_id": "theirs"}
    return caller_of(Request({"type": "http", "headers": raw, "client": client, "state": state}))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer hai_1"},
        {"authorization": "bearer   hai_1 "},
        {"x_api_key": "hai_1"},
        {"api_key": "hai_1"},
        {"authorization": "Basic abc", "x_api_key": "hai_1"},
        {"authorization": "Bearer ", "api_key": "hai_1"},
        {"authorization": "Bearer hai_1", "x_api_key": "other", "api_key": "other"},
    ],
)
def test_key_is_where_clients_put_it(headers: dict[str, str]) -> None:
    assert call(**headers).token == "hai_1"


@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"authorization": "Basic abc"}, {"x_api_key": " "}])
def test_no_key_is_none(headers: dict[str, str]) -> None:
    assert call(**headers).token is None


def test_open_webui_names_its_user() -> None:
    caller = call(x_openwebui_user_id="id-1", x_openwebui_user_email="zoe@home", x_openwebui_user_name="Zo%C3%AB P")
    assert caller.openwebui == OpenWebUIUser("id-1", "zoe@home", "Zoë P")
    assert call(x_openwebui_user_id="id-1").openwebui == OpenWebUIUser("id-1")
    assert call(x_openwebui_user_id="", x_openwebui_chat_id="c").openwebui is None


def test_the_rest_is_taken_as_it_is() -> None:
    caller = call(x_homeai_source="kitchen", user_agent="n8n")
    assert (caller.source_header, caller.address) == ("kitchen", "192.168.1.7")
    assert (caller.request_id, caller.client_request_id) == ("ours", "theirs")
    assert caller.headers["user-agent"] == "n8n"
    assert call(client=None).address is None

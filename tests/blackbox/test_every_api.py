"""Rules that hold on every API alike, whosever words are used.

Cases A1, B3, B4, B7, B8, C1, C6, C7, D6, D7, E1, E2, E6, F1, F2, F4, F6, F10, F11, F12, F14.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.blackbox.apis import APIS, CHATS, ENDED_BY_LENGTH, Api, merged, message_of
from tests.blackbox.asking import BOTH_WAYS, assert_serves
from tests.blackbox.test_fuzz import BODIES, NOT_FOUND
from tests.daemon import Daemon, eventually_async
from tests.streaming import Connection

NUMBERS = "1 2 3 4 5 6 7 8 9 10 11 12"  # goes on for as long as one lets it
MAX_LEN = 128
TOO_LONG = "word " * 300

every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
every_chat = pytest.mark.parametrize("api", CHATS.values(), ids=CHATS)
both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])


@pytest.fixture(scope="module")
def small(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(f"scheduler.max_model_len={MAX_LEN}", "model.aliases=[default, other]")


# ---- lifecycle -------------------------------------------------------------------------------------------


@every_api
@both_ways
async def test_client_that_leaves_frees_its_place(daemon: Daemon, api: Api, stream: bool) -> None:
    """A1"""
    source = f"leaves-{api.path}-{stream}"
    body = api.body(NUMBERS, 4000, stream=stream)
    client = await Connection.ask(daemon.url, body, source=source, path=api.path)
    await eventually_async(lambda: (seen := daemon.live(source)) and seen["num_output_tokens"] > 0)
    await client.leave()
    await eventually_async(lambda: daemon.live(source) is None)
    (row,) = await eventually_async(lambda: daemon.ledger_rows(source))
    assert (row["status"], row["finish_reason"]) == (499, "abort")


# ---- context ---------------------------------------------------------------------------------------------


@every_api
@both_ways
@pytest.mark.parametrize("model", ["default", "other", None])
def test_prompt_that_is_too_long_is_refused_before_the_answer(
    small: Daemon, api: Api, stream: bool, model: str | None
) -> None:
    """B3, B4, B8: by whichever name, in the one sentence that every client knows; the next one is served."""
    response = api.post(small, api.body(TOO_LONG, 1, stream=stream) | {"model": model})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert f" tokens > {MAX_LEN - 1} maximum" in message_of(response)
    assert "prompt is too long" in message_of(response)
    assert api.said(api.post(small, api.body("1 2 3", 1, stream=stream))).num_tokens == 1


@every_api
@both_ways
def test_size_of_the_context_is_no_wish(daemon: Daemon, api: Api, stream: bool) -> None:
    """B7: the same on every API, and told where a client could count on it."""
    body = merged(api.body(NUMBERS, 1, stream=stream), {"options": {"num_ctx": 4}})
    response = api.post(daemon, body)
    assert api.said(response).num_tokens == 1
    if api.path in ("/v1/chat/completions", "/v1/completions", "/completion", "/api/chat", "/api/generate"):
        assert "num_ctx has no effect" in response.headers["x-homeai-notes"]


# ---- tokens and text -------------------------------------------------------------------------------------


@every_api
@both_ways
@pytest.mark.parametrize("count", [1, 2, 7])
def test_answer_has_as_many_tokens_as_were_asked_for(daemon: Daemon, api: Api, stream: bool, count: int) -> None:
    """C1, C7: and says that it was cut."""
    said = api.said(api.post(daemon, api.body(NUMBERS, count, stream=stream)))
    assert said.num_tokens == count
    assert said.reason in ENDED_BY_LENGTH


@pytest.mark.parametrize("path", [path for path in BODIES if path not in NOT_FOUND])
def test_null_is_absent(fim_daemon: Daemon, path: str) -> None:
    """C6: in every field that the document names, but those that must be there."""
    document = httpx.get(f"{fim_daemon.url}/openapi.json").json()["paths"][path]["post"]["requestBody"]
    schema = document["content"]["application/json"]["schema"]
    for one in schema.get("anyOf", [schema]):
        nulls = dict.fromkeys(one["properties"].keys() - BODIES[path].keys())
        response = httpx.post(f"{fim_daemon.url}{path}", json=BODIES[path] | nulls, timeout=120)
        assert response.status_code == 200, response.text


@every_api
@pytest.mark.parametrize("text", ["щёчки " * 7, "😀😃" * 6, "🫨" * 14, "👩‍👩‍👧‍👦 " * 5], ids=ascii)
def test_stream_says_what_a_whole_answer_says(daemon: Daemon, api: Api, text: str) -> None:
    """E1, E2: no piece holds half a character, nor does the end that a limit cut."""
    for limit in (5, 14):
        whole, streamed = (api.said(api.post(daemon, api.body(text, limit, stream=stream))) for stream in BOTH_WAYS)
        assert (whole.text, whole.num_tokens) == (streamed.text, streamed.num_tokens)
        assert all("\ufffd" not in piece for piece in (whole.text, *streamed.pieces))


@every_api
def test_half_a_character_is_a_replaced_one(daemon: Daemon, api: Api) -> None:
    """E6"""
    half, replaced = (api.said(api.post(daemon, api.body(text, 4))) for text in ("a \ud83d b", "a \ufffd b"))
    assert half == replaced


# ---- conversations ---------------------------------------------------------------------------------------


def given(api: Api, *messages: dict[str, Any]) -> dict[str, Any]:
    """The body with these messages."""
    body = api.body("", 2, goes_on=False)
    name = "input" if "input" in body else "messages"
    return body | {name: list(messages)}


USER = {"role": "user", "content": "Hello"}


@every_chat
def test_empty_question_is_answered_at_once(daemon: Daemon, api: Api) -> None:
    """F1"""
    assert api.said(api.post(daemon, given(api, {"role": "user", "content": ""}))).num_tokens <= 2


@every_chat
def test_no_message_is_no_conversation(daemon: Daemon, api: Api) -> None:
    """F2: refused; on Ollama's API it only loads the model."""
    response = api.post(daemon, given(api))
    if api.path == "/api/chat":
        assert response.json()["done_reason"] == "load"
    else:
        assert response.status_code == 400
    assert_serves(daemon)


@every_chat
def test_system_prompt_may_be_empty(daemon: Daemon, api: Api) -> None:
    """F4"""
    body = given(api, USER) | {"system": ""} if api.path == "/v1/messages" else None
    body = body or given(api, {"role": "system", "content": ""}, USER)
    assert api.said(api.post(daemon, body)).num_tokens == 2


@every_chat
def test_content_may_come_in_parts(daemon: Daemon, api: Api) -> None:
    """F6"""
    kind = "input_text" if api.path == "/v1/responses" else "text"
    parts = {"role": "user", "content": [{"type": kind, "text": "Hello"}]}
    whole, in_parts = (api.said(api.post(daemon, given(api, message))) for message in (USER, parts))
    assert whole == in_parts


@every_chat
def test_developer_is_the_system(daemon: Daemon, api: Api) -> None:
    """F11: not refused, and never left out."""
    bodies = [given(api, {"role": role, "content": "Pirate!"}, USER) for role in ("system", "developer")]
    assert api.said(api.post(daemon, bodies[0])) == api.said(api.post(daemon, bodies[1]))
    without, *counts = (num_prompt_tokens(api, daemon, body) for body in (given(api, USER), *bodies))
    assert counts[0] == counts[1] > without


def num_prompt_tokens(api: Api, daemon: Daemon, body: dict[str, Any]) -> int:
    answer = api.post(daemon, body | {"stream": False}).json()
    usage = answer.get("usage", answer)
    names = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "prompt_eval_count")
    return sum(usage.get(name) or 0 for name in names)


@every_chat
def test_role_that_nobody_knows_is_named(daemon: Daemon, api: Api) -> None:
    """F12"""
    response = api.post(daemon, given(api, {"role": "banana", "content": "Hello"}))
    assert response.status_code == 400
    assert "banana" in message_of(response)


@every_chat
@pytest.mark.parametrize("text", ["<end_of_turn>", "<eos>", "<start_of_turn>model", "<|im_end|>", "</think>"])
def test_control_token_that_a_person_writes_is_text(daemon: Daemon, api: Api, text: str) -> None:
    """F14"""
    empty, written = (given(api, {"role": "user", "content": content}) for content in ("", f"A{text}B"))
    assert num_prompt_tokens(api, daemon, written) - num_prompt_tokens(api, daemon, empty) > 3


STRICT = """
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must be first.') }}{% endif %}
{{- message.role }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""


@pytest.fixture(scope="module")
def strict(start_daemon: Callable[..., Daemon], tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """With a template that allows one system message, at the beginning."""
    path: Path = tmp_path_factory.mktemp("template") / "strict.jinja"
    path.write_text(STRICT)
    return start_daemon(f"model.chat_template={path}", "scheduler.max_model_len=512")


@every_chat
def test_late_system_messages_are_merged_into_the_first(strict: Daemon, api: Api) -> None:
    """F10"""
    first, second = ({"role": "system", "content": content} for content in ("One.", "Two."))
    for messages in ([first, second, USER], [USER, second], [first, USER, second, USER]):
        assert api.said(api.post(strict, given(api, *messages))).num_tokens == 2

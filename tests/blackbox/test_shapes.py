"""The shapes that clients rely on: whole answers, streams, errors, models, hosts.

Cases B7, E17, H1, H3, H4, H8, H10.
"""

from __future__ import annotations

import datetime
import http.client
import json
from collections.abc import Callable
from typing import cast

import httpx
import pytest

from tests.blackbox.asking import BOTH_WAYS, GREEDY, ONE_TOKEN, ONE_WORD, ask, error_of, events, post
from tests.daemon import Daemon, eventually
from tests.streaming import CHAT, COMPLETIONS, document, exactly

BODIES = {"completion": exactly(4), "chat": {"messages": ONE_WORD["messages"], "max_tokens": 4} | GREEDY}

any_endpoint = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])


# ---- answers ---------------------------------------------------------------------------------------------


@any_endpoint
def test_whole_answer_has_what_sdks_read(daemon: Daemon, body: dict[str, object]) -> None:
    answer = post(daemon, body).json()
    assert answer["object"] == ("chat.completion" if "messages" in body else "text_completion")
    assert answer["model"] == daemon.status()["model"]["name"]
    assert isinstance(answer["created"], int)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"].keys() == {"cached_tokens"}
    (choice,) = answer["choices"]
    assert (choice["index"], choice["logprobs"]) == (0, None)
    if "messages" in body:
        assert choice["message"]["role"] == "assistant"


@any_endpoint
def test_stream_is_text_then_an_end_without_text(daemon: Daemon, body: dict[str, object]) -> None:
    chunks = events(post(daemon, body | {"stream": True}))
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], chunks[0]["model"])
    }
    kind = "chat.completion.chunk" if "messages" in body else "text_completion"
    assert {chunk["object"] for chunk in chunks} == {kind}
    *texts, end = chunks
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in texts)
    assert all("usage" not in chunk for chunk in chunks)
    (choice,) = end["choices"]
    assert choice["finish_reason"] in ("stop", "length")
    assert choice.get("delta", {}) == {}
    assert choice.get("text", "") == ""
    assert end["timings"]["predicted_n"] <= 4


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_role_comes_once_with_the_first_delta(daemon: Daemon, max_tokens: int) -> None:
    chunks = events(post(daemon, ONE_WORD | GREEDY | {"stream": True, "max_tokens": max_tokens}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert isinstance(deltas[0]["content"], str)
    assert all("role" not in delta for delta in deltas[1:])


@any_endpoint
def test_usage_is_a_last_chunk_without_choices_when_asked_for(daemon: Daemon, body: dict[str, object]) -> None:
    body = body | {"cache_prompt": False}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(post(daemon, body | options))
    assert last["choices"] == []
    assert last["usage"] == post(daemon, body).json()["usage"]
    assert all(chunk["choices"] for chunk in chunks)


@both_ways
@any_endpoint
@pytest.mark.parametrize("cache_prompt", [True, False])
def test_part_of_the_prompt_that_was_cached_is_told(
    daemon: Daemon, cache_prompt: bool, body: dict[str, object], stream: bool
) -> None:
    """None of it is when the client wants all of it computed."""
    usages = [ask(daemon, stream=stream, **body, cache_prompt=cache_prompt).usage for _ in range(2)]
    for usage in usages:
        num_cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= num_cached < usage["prompt_tokens"]
        assert cache_prompt or num_cached == 0


def test_long_stream_ends_with_done_h4(daemon: Daemon) -> None:
    *texts, _end = events(post(daemon, exactly(200, stream=True, stop="\n\n\n\n")))
    assert len(texts) > 20


def test_stream_is_silent_only_as_long_as_was_asked_for(daemon: Daemon) -> None:
    """A comment that every client skips, while a long prompt is read; none where nothing is awaited."""
    body = {"prompt": document(1000), "max_tokens": 1, "stream": True, "cache_prompt": False}
    assert b"\n\n:\n\n" in b"\n\n" + post(daemon, body | {"sse_ping_interval": 0.1}).content
    assert b":\n\n" not in post(daemon, ONE_TOKEN | {"stream": True}).content.replace(b"data:", b"")


@both_ways
@any_endpoint
def test_every_choice_is_answered(daemon: Daemon, body: dict[str, object], stream: bool) -> None:
    answer = ask(daemon, stream=stream, **body, n=3)
    assert set(answer.finish_reasons) == {0, 1, 2}
    one = ask(daemon, **body)
    assert answer.usage["prompt_tokens"] == one.usage["prompt_tokens"]
    assert answer.usage["completion_tokens"] == 3 * one.num_tokens


@both_ways
def test_every_prompt_is_answered_in_order(daemon: Daemon, stream: bool) -> None:
    prompts = ["A B C D E F", "1 2 3 4 5 6", "Monday, Tuesday, Wednesday,"]  # what follows is no near-tie
    answer = ask(daemon, stream=stream, prompt=prompts, max_tokens=4, n=2, **GREEDY)
    alone = [ask(daemon, prompt=prompt, max_tokens=1, **GREEDY).text for prompt in prompts]
    assert [text.startswith(alone[index // 2]) for index, text in enumerate(answer.texts)] == [True] * 6


@any_endpoint
def test_too_many_choices_are_refused_with_both_numbers(daemon: Daemon, body: dict[str, object]) -> None:
    error = error_of(post(daemon, body | {"n": 9}))
    assert error["param"] == "n"
    assert "9 > 8" in error["message"]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@both_ways
def test_completion_has_the_log_probabilities_that_were_asked_for(daemon: Daemon, count: int, stream: bool) -> None:
    body = exactly(4, logprobs=count, stream=stream)
    choices = (
        [c for e in events(post(daemon, body)) for c in e["choices"]]
        if stream
        else (post(daemon, body).json()["choices"])
    )
    blocks = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens = [token for block in blocks for token in block["tokens"]]
    assert "".join(tokens) == "".join(choice["text"] for choice in choices)
    assert len(tokens) == 4
    offsets = [offset for block in blocks for offset in block["text_offset"]]
    assert offsets == [len("".join(tokens[:i])) for i in range(4)]
    for block in blocks:
        assert all(logprob <= 0 for logprob in block["token_logprobs"])
        assert all(len(top) <= count for top in block["top_logprobs"])
        if count:  # greedy: the drawn token is the likeliest
            for token, top in zip(block["tokens"], block["top_logprobs"], strict=True):
                assert max(top, key=top.__getitem__) == token


@pytest.mark.parametrize("count", [0, 1, 20])
@both_ways
def test_chat_has_the_log_probabilities_that_were_asked_for(daemon: Daemon, count: int, stream: bool) -> None:
    body = BODIES["chat"] | {"logprobs": True, "top_logprobs": count, "stream": stream}
    choices = (
        [c for e in events(post(daemon, body)) for c in e["choices"]]
        if stream
        else (post(daemon, body).json()["choices"])
    )
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert entries
    for entry in entries:
        assert len(entry["top_logprobs"]) == count
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert all(top["logprob"] <= entry["logprob"] or top["token"] for top in entry["top_logprobs"])


@pytest.mark.parametrize(
    "body", [ONE_TOKEN | {"logprobs": 21}, ONE_WORD | {"logprobs": True, "top_logprobs": 21}], ids=BODIES
)
def test_too_many_log_probabilities_are_refused(daemon: Daemon, body: dict[str, object]) -> None:
    assert "20" in error_of(post(daemon, body))["message"]


# ---- what cannot be done is refused, never dropped --------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@both_ways
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "banana"}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {}}, "response_format.type"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"guided_json": {}}, "guided_json"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0]"),
    ],
)
def test_chat_refuses_by_name_what_it_cannot_do(
    daemon: Daemon, fields: dict[str, object], param: str, stream: bool
) -> None:
    assert error_of(post(daemon, ONE_WORD | fields | {"stream": stream}))["param"] == param


@pytest.mark.parametrize(("fields", "param"), [({"echo": True}, "echo"), ({"best_of": 2}, "best_of")])
def test_completion_refuses_by_name_what_it_cannot_do(daemon: Daemon, fields: dict[str, object], param: str) -> None:
    error = error_of(post(daemon, ONE_TOKEN | fields))
    assert (error["param"], error["code"]) == (param, "unsupported_value")


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/fim/completions"])
def test_model_that_fills_no_gaps_says_so(daemon: Daemon, path: str) -> None:
    error = error_of(post(daemon, ONE_TOKEN | {"suffix": "x"}, path), 501)
    assert (error["param"], error["code"]) == ("suffix", "not_supported")


def test_gap_is_in_a_text(daemon: Daemon) -> None:
    assert error_of(post(daemon, {"prompt": [5], "suffix": "x"}))["param"] == "suffix"


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking"])
def test_model_that_ranks_nothing_says_so(daemon: Daemon, path: str) -> None:
    assert error_of(post(daemon, {"query": "a", "documents": ["b"]}, path), 501)["code"] == "not_supported"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"grammar": ""},
        {"parallel_tool_calls": False, "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"reasoning_effort": "low", "thinking_budget_tokens": 100, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_chat_that_asks_for_text_only_is_answered(daemon: Daemon, fields: dict[str, object]) -> None:
    assert ask(daemon, **ONE_WORD, **fields).num_tokens == 1


@pytest.mark.parametrize("fields", [{"echo": False}, {"suffix": ""}, {"best_of": 1}, {"best_of": 2, "n": 2}])
def test_completion_that_asks_for_nothing_special_is_answered(daemon: Daemon, fields: dict[str, object]) -> None:
    assert post(daemon, ONE_TOKEN | fields).status_code == 200


@any_endpoint
@both_ways
def test_what_has_no_effect_is_said_in_a_header_b7_h10(daemon: Daemon, body: dict[str, object], stream: bool) -> None:
    wishes = {"num_ctx": 100, "keep_alive": "5m", "mirostat": 2, "stream": stream}
    notes = post(daemon, body | wishes).headers["x-homeai-notes"]
    assert {note.split()[0] for note in notes.split("; ")} == {"num_ctx", "mirostat", "keep_alive"}
    assert "x-homeai-notes" not in post(daemon, body | {"stream": stream}).headers


# ---- what llama-server's and vLLM's clients may ask for beside ------------------------------------------------


@any_endpoint
def test_timings_and_usage_come_with_every_chunk_when_asked_for(daemon: Daemon, body: dict[str, object]) -> None:
    options = {"stream": True, "timings_per_token": True, "stream_options": {"continuous_usage_stats": True}}
    chunks = events(post(daemon, body | options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert all(chunk["timings"]["predicted_n"] for chunk in chunks)


@pytest.mark.parametrize(
    "body", [{"prompt": document(1000)}, {"messages": ONE_WORD["messages"]}], ids=["long", "short"]
)
def test_progress_of_a_prompt_is_told_before_its_first_token(daemon: Daemon, body: dict[str, object]) -> None:
    asked = body | {"max_tokens": 1, "stream": True, "return_progress": True, "cache_prompt": False, "ignore_eos": True}
    chunks = events(post(daemon, asked))
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert chunks[len(told) - 1]["prompt_progress"] == told[-1]
    assert told[-1]["processed"] == told[-1]["total"] > 0
    assert [entry["processed"] for entry in told] == sorted(entry["processed"] for entry in told)
    assert all(entry.keys() == {"total", "cache", "processed", "time_ms"} for entry in told)


@any_endpoint
def test_nothing_is_drawn_where_only_the_prompt_is_to_be_read(daemon: Daemon, body: dict[str, object]) -> None:
    body = {name: value for name, value in body.items() if name != "max_tokens"} | {"n_predict": 0}
    answer = ask(daemon, **body)
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("", 0, "length")


def test_last_message_is_continued_or_answered_as_the_client_says(daemon: Daemon) -> None:
    """vLLM's fields; without them an assistant's last message is continued."""
    messages = [*cast(list[object], ONE_WORD["messages"]), {"role": "assistant", "content": "Good"}]
    wishes: list[dict[str, object]] = [{}, {"continue_final_message": True, "add_generation_prompt": False}]
    continued = {ask(daemon, messages=messages, max_tokens=1, **wish).usage["prompt_tokens"] for wish in wishes}
    answered = ask(daemon, messages=messages, max_tokens=1, continue_final_message=False).usage["prompt_tokens"]
    assert len(continued) == 1
    assert answered > continued.pop()


@any_endpoint
def test_only_the_fields_that_were_asked_for_are_told(daemon: Daemon, body: dict[str, object]) -> None:
    fields = ["usage/completion_tokens", "timings/prompt_n", "object", "nope"]
    assert post(daemon, body | {"response_fields": fields}).json().keys() == set(fields[:3])


@any_endpoint
@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.5},
        {"typ_p": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n"]},
        {"t_max_predict_ms": 1},
        {"id_slot": 3},
        {"n_probs": 2},
    ],
    ids=str,
)
def test_llama_servers_ways_to_draw_are_known(
    daemon: Daemon, body: dict[str, object], fields: dict[str, object]
) -> None:
    assert ask(daemon, **body | {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, **fields).num_tokens > 0


def test_text_that_repeats_itself_is_broken_by_dry(daemon: Daemon) -> None:
    """Greedy, the model counts on for ever the same way; with DRY it may not."""
    body = exactly(24, prompt="yes no yes no yes no yes no yes no")
    plain, dry = ask(daemon, **body).text, ask(daemon, **body, dry_multiplier=8.0, dry_allowed_length=1).text
    assert "yes no yes no yes no" in plain
    assert "yes no yes no yes no" not in dry


# ---- models and paths --------------------------------------------------------------------------------------


def test_model_answers_to_its_name_and_its_alias(daemon: Daemon) -> None:
    name = daemon.status()["model"]["name"]
    for model in (name, "default", None, ""):
        assert post(daemon, ONE_TOKEN | {"model": model}).json()["model"] == name


@any_endpoint
@pytest.mark.parametrize("model", ["gpt-4o", "DEFAULT", "a/b:c", "🫨", " ", "../x", "x" * 256])
def test_unknown_model_is_not_found(daemon: Daemon, body: dict[str, object], model: str) -> None:
    error = error_of(post(daemon, body | {"model": model}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_models_are_listed_and_looked_up(daemon: Daemon) -> None:
    with daemon.client() as client:
        listing = client.get("/v1/models").json()
        (listed,) = listing["data"]
        for name in (listed["id"], "default"):
            assert client.get(f"/v1/models/{name}").json() == listed
        assert error_of(client.get("/v1/models/a/b"), 404)["code"] == "model_not_found"
    assert listed["id"] == daemon.status()["model"]["name"]
    assert (listing["first_id"], listing["last_id"], listing["has_more"]) == (listed["id"], listed["id"], False)


def test_model_is_told_in_everybodys_words(daemon: Daemon) -> None:
    """OpenAI's, Anthropic's, vLLM's (`root`), llama.cpp's (`meta`, `owned_by`)."""
    with daemon.client() as client:
        one, again = (client.get("/v1/models").json()["data"][0] for _ in range(2))
    assert one == again
    assert (one["object"], one["type"], one["owned_by"], one["root"]) == ("model", "model", "llamacpp", one["id"])
    assert one["display_name"] == one["id"]
    created_at = datetime.datetime.fromisoformat(one["created_at"])
    assert created_at.timestamp() == one["created"] > 0
    assert one["aliases"] == ["default"]
    assert one["max_input_tokens"] < one["meta"]["n_ctx"] <= one["meta"]["n_ctx_train"]
    assert one["meta"]["n_params"] > 0
    assert one["meta"]["size"] > 0


def test_lm_studios_clients_find_the_model(daemon: Daemon) -> None:
    with daemon.client() as client:
        (listed,) = client.get("/api/v0/models").json()["data"]
        assert client.get(f"/api/v0/models/{listed['id']}").json() == listed
        assert client.get("/api/v0/models/nope").status_code == 404
    assert (listed["type"], listed["state"]) == ("llm", "loaded")
    assert listed["loaded_context_length"] == listed["max_context_length"] > 0


@pytest.mark.parametrize("path", ["/models", "/models/default", "/chat/completions", "/completions"])
def test_v1_may_be_left_out_of_the_base_url(daemon: Daemon, path: str) -> None:
    body = ONE_WORD if "chat" in path else ONE_TOKEN
    method = "POST" if "completions" in path else "GET"
    content = json.dumps(body).encode() if method == "POST" else None
    answers = [
        httpx.request(method, f"{daemon.url}{prefix}{path}", content=content, timeout=120).json()
        for prefix in ("", "/v1")
    ]
    assert answers[0].keys() == answers[1].keys()
    assert answers[0]["object"] == answers[1]["object"]


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/nope", "/v1/chat", "/static/nope", "/v2/models", "/%ff", "/a/../b"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path_is_not_found_in_the_usual_shape(daemon: Daemon, method: str, path: str) -> None:
    response = httpx.request(method, f"{daemon.url}{path}")
    assert error_of(response, 405 if (method, path) == ("POST", "/static/nope") else 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("OPTIONS", COMPLETIONS, "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
    ],
)
def test_unknown_method_names_the_known_one(daemon: Daemon, method: str, path: str, allowed: str) -> None:
    response = httpx.request(method, f"{daemon.url}{path}")
    error_of(response, 405)
    assert response.headers["allow"] == allowed


def test_health_may_be_asked_for_without_a_body(daemon: Daemon) -> None:
    assert httpx.head(f"{daemon.url}/health").status_code == 200


@pytest.mark.parametrize("name", ["x-request-id", "request-id"])
def test_every_answer_says_which_one_it_is(daemon: Daemon, name: str) -> None:
    with daemon.client() as client:
        responses = [client.get(path) for path in ("/", "/health", "/metrics", "/api/status", "/v1/models", "/nope")]
    responses += [post(daemon, ONE_TOKEN), post(daemon, ONE_TOKEN | {"stream": True}), post(daemon, b"")]
    assert len({response.headers[name] for response in responses}) == len(responses)


@any_endpoint
@both_ways
def test_answer_header_and_ledger_share_one_id(daemon: Daemon, body: dict[str, object], stream: bool) -> None:
    path, source = (CHAT if "messages" in body else COMPLETIONS), f"ids-{'messages' in body}-{stream}"
    headers = {"X-HomeAI-Source": source}
    with daemon.client(headers=headers) as client:
        own = client.post(path, json=body | {"stream": stream})
        chosen = client.post(path, json=body | {"stream": stream, "n": 2}, headers={"X-Request-Id": "mine-1"})
        refused = client.post(path, json=body | {"n": 99}, headers={"X-Request-Id": "mine-2"})
    ids = [id_of(own), id_of(chosen)]
    assert own.headers["x-request-id"] == ids[0]
    assert [chosen.headers["x-request-id"], refused.headers["x-request-id"]] == ["mine-1", "mine-2"]
    rows = eventually(lambda: (found := daemon.ledger_rows(source))[3:] and found)
    expected = {(ids[0], None), (ids[1], "mine-1"), (f"{ids[1]}-1", "mine-1")}
    assert {(row["request_id"], row["client_request_id"]) for row in rows if row["status"] == 200} == expected
    assert [row["client_request_id"] for row in rows if row["status"] == 400] == ["mine-2"]


def id_of(response: httpx.Response) -> str:
    """Of the answer, without the prefix of its kind."""
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    answer = events(response)[0] if is_stream else response.json()
    prefix, _, identifier = answer["id"].partition("-")
    assert prefix == ("chatcmpl" if "chat" in answer["object"] else "cmpl")
    return str(identifier)


# ---- hosts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("server.allowed_hosts=[home.lan]")


def status_for(daemon: Daemon, host: str | None, path: str = "/v1/models") -> int:
    """By hand: httpx would not send an empty Host, nor none."""
    url = httpx.URL(daemon.url)
    connection = http.client.HTTPConnection(url.host, url.port or 0, timeout=120)
    try:
        connection.putrequest("GET", path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/status", "/nope"])
@pytest.mark.parametrize(
    "host",
    [
        *(None, "", " ", ":8700", "evil.example", "evil.example:8700", "EVIL.example."),
        *("localhost.evil.example", "127.0.0.1.evil.example", "home.lan.evil.example", "xhome.lan", "evil-localhost"),
        *("evil.example#.local:80@x", "http://localhost", "local", "[evil.example]", "1.2.3", "0x7f000001"),
    ],
)
def test_foreign_host_is_refused_everywhere(named: Daemon, host: str | None, path: str) -> None:
    assert status_for(named, host, path) in ((400, 403) if host is None else (403,))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8700", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.1:1", "192.168.1.20:8700"),
        *("[::1]", "[::1]:8700", "[fe80::1]:80", "server.local", "Server.Local:8700", "home.lan", "Home.LAN:443"),
    ],
)
def test_host_of_ours_is_let_in(named: Daemon, host: str) -> None:
    assert status_for(named, host) == 200

"""llama-server's own API against the daemon: completion, tokens, props, slots; and vLLM's shapes of tokens.

Cases B1, C1, D1, E8, F14, H1.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.blackbox.asking import BOTH_WAYS, assert_serves, assert_unharmed
from tests.daemon import Daemon, eventually

GREEDY: dict[str, object] = {"temperature": 0, "ignore_eos": True}
FRANCE = "The capital of France is"
STORY = "The lighthouse keeper wrote down the weather of every day, the wind, the clouds and the birds. " * 12
SECRET = "the password is swordfish"
TEXTS = ["Hello, world", "щёчки 🙂 日本語", "def f(x):\n    return x\n", "<eos> is text when asked for", ""]
EOS = 1

both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])


def post(daemon: Daemon, path: str, body: object) -> httpx.Response:
    return httpx.post(f"{daemon.url}{path}", json=body, timeout=120)


def good(daemon: Daemon, path: str, **body: object) -> Any:
    response = post(daemon, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def complete(daemon: Daemon, *, stream: bool = False, **body: object) -> Any:
    """One answer; of a stream the last event, with all of the text in it."""
    if not stream:
        return good(daemon, "/completion", **body)
    *parts, last = events(post(daemon, "/completion", body | {"stream": True}))
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert last["content"] == ""
    return last | {"content": "".join(part["content"] for part in parts)}


def refused(response: httpx.Response, status: int = 400) -> Any:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    assert isinstance(error["message"], str)
    return error


# ---- completion ------------------------------------------------------------------------------------------


@both_ways
def test_an_answer_has_all_that_llama_servers_clients_read(daemon: Daemon, stream: bool) -> None:
    answer = complete(daemon, stream=stream, prompt=FRANCE, n_predict=6, **GREEDY)
    assert answer["content"]
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["index"], answer["truncated"]) == (0, False)
    assert answer["model"] == daemon.status()["model"]["name"]
    assert (answer["tokens_predicted"], answer["timings"]["predicted_n"]) == (6, 6)
    assert answer["tokens_evaluated"] == answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + 6
    assert answer["prompt"] == f"<bos>{FRANCE}"
    assert answer["generation_settings"]["n_predict"] == 6
    assert answer["generation_settings"]["temperature"] == 0


def test_a_stream_is_the_whole_answer_in_parts(daemon: Daemon) -> None:
    request = {"prompt": FRANCE, "n_predict": 12, "cache_prompt": False, **GREEDY}  # short: read in one go both times
    whole = complete(daemon, **request)
    parts = complete(daemon, stream=True, **request)
    assert parts["content"] == whole["content"]


@pytest.mark.parametrize("count", [0, 1, 2])
@both_ways
def test_exactly_as_many_tokens_as_asked_for(daemon: Daemon, count: int, stream: bool) -> None:
    """C1"""
    answer = complete(daemon, stream=stream, prompt="a", n_predict=count, **GREEDY)
    assert answer["tokens_predicted"] == count
    assert (answer["content"] == "") == (count == 0)


def test_n_predict_0_reads_the_prompt_for_the_next_request(daemon: Daemon) -> None:
    prompt = f"n_predict 0. {STORY}"
    warmed = complete(daemon, prompt=prompt, n_predict=0)
    assert (warmed["content"], warmed["timings"]["prompt_n"]) == ("", warmed["tokens_evaluated"])
    next_one = complete(daemon, prompt=f"{prompt} And", n_predict=1)
    assert next_one["timings"]["cache_n"] > 0.9 * warmed["tokens_evaluated"]


@both_ways
def test_a_stop_string_is_told(daemon: Daemon, stream: bool) -> None:
    """D1"""
    whole = complete(daemon, prompt=FRANCE, n_predict=8, **GREEDY)["content"]
    stop = whole[len(whole) // 2 :][:4]
    answer = complete(daemon, stream=stream, prompt=FRANCE, n_predict=8, stop=["not this", stop], **GREEDY)
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", stop)
    assert answer["content"] == whole[: whole.index(stop)]


def test_an_end_token_is_told(daemon: Daemon) -> None:
    answer = complete(daemon, prompt=FRANCE, n_predict=8, temperature=0, logit_bias={str(EOS): 100})
    assert (answer["content"], answer["stop_type"]) == ("", "eos")


def test_a_text_that_is_biased_away_does_not_come(daemon: Daemon) -> None:
    usual = complete(daemon, prompt=FRANCE, n_predict=1, **GREEDY)["content"]
    for logit_bias in ([[usual, False]], {usual: -100}):
        assert complete(daemon, prompt=FRANCE, n_predict=1, logit_bias=logit_bias, **GREEDY)["content"] != usual


def test_time_is_up_at_the_end_of_a_line(daemon: Daemon) -> None:
    numbers = "".join(f"{i}\n" for i in range(1, 40))
    answer = complete(daemon, prompt=numbers, n_predict=300, t_max_predict_ms=1, **GREEDY)
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] < 300
    assert answer["has_new_line"]


def test_an_answer_ends_before_a_line_that_is_indented_less(daemon: Daemon) -> None:
    code = "def a():\n    return 1\n\ndef b():\n    return 2\n\ndef c():\n"
    answer = complete(daemon, prompt=code + "    return", n_predict=60, n_indent=4, **GREEDY)
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] < 60
    assert all(not line or line.startswith("    ") for line in answer["content"].split("\n")[1:])


@both_ways
def test_probabilities_of_each_token(daemon: Daemon, stream: bool) -> None:
    body = {"prompt": FRANCE, "n_predict": 3, "n_probs": 2} | GREEDY
    if stream:
        *parts, _last = events(post(daemon, "/completion", body | {"stream": True}))
        entries = [entry for part in parts for entry in part["completion_probabilities"]]
    else:
        entries = good(daemon, "/completion", **body)["completion_probabilities"]
    assert len(entries) == 3
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= 0
        assert [top.keys() for top in entry["top_logprobs"]] == [{"id", "token", "bytes", "logprob"}] * 2
        assert entry["top_logprobs"][0]["id"] == entry["id"]


def test_how_far_a_prompt_is_read(daemon: Daemon) -> None:
    body = {"prompt": f"progress. {STORY}", "n_predict": 2, "stream": True, "return_progress": True} | GREEDY
    told = events(post(daemon, "/completion", body))
    progress = [part["prompt_progress"] for part in told if "prompt_progress" in part]
    assert progress[-1]["processed"] == progress[-1]["total"] > 200
    assert all("prompt_progress" in part for part in told[: len(progress)])


def test_tokens_are_returned_when_asked_for(daemon: Daemon) -> None:
    answer = complete(daemon, prompt=FRANCE, n_predict=4, return_tokens=True, **GREEDY)
    assert len(answer["tokens"]) == 4
    assert good(daemon, "/detokenize", tokens=answer["tokens"])["content"] == answer["content"]
    assert complete(daemon, prompt=FRANCE, n_predict=4, **GREEDY)["tokens"] == []


@both_ways
def test_response_fields_are_these_and_no_others(daemon: Daemon, stream: bool) -> None:
    body = {
        "prompt": FRANCE,
        "n_predict": 2,
        "stream": stream,
        "response_fields": ["content", "timings/prompt_n", "no"],
    }
    response = post(daemon, "/completion", body)
    last = events(response)[-1] if stream else response.json()
    assert last.keys() == {"content", "timings/prompt_n"}


def test_no_response_field_is_an_empty_object(daemon: Daemon) -> None:
    assert good(daemon, "/completion", prompt=FRANCE, n_predict=0, response_fields=[""]) == {}


def test_several_choices_and_several_prompts_are_a_list(daemon: Daemon) -> None:
    """H1"""
    choices = good(daemon, "/completion", prompt=FRANCE, n_predict=2, n_cmpl=3)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    prompts = good(daemon, "/completion", prompt=["one", [2, 3]], n_predict=1)
    assert [answer["tokens_evaluated"] for answer in prompts] == [2, 2]


def test_texts_and_tokens_make_one_prompt(daemon: Daemon) -> None:
    token_ids = good(daemon, "/tokenize", content=FRANCE, add_special=True)["tokens"]
    answers = [
        complete(daemon, prompt=prompt, n_predict=1, return_tokens=True, **GREEDY)
        for prompt in (FRANCE, token_ids, [*token_ids[:2], FRANCE.removeprefix("The")])
    ]
    assert {answer["prompt"] for answer in answers} == {f"<bos>{FRANCE}"}
    assert {tuple(answer["tokens"]) for answer in answers} == {tuple(answers[0]["tokens"])}


def test_control_tokens_in_a_native_prompt_count(daemon: Daemon) -> None:
    """Whoever calls /completion has put the prompt through a template; /v1/completions takes all of it as text."""
    assert complete(daemon, prompt="a<end_of_turn>", n_predict=0)["tokens_evaluated"] == 3


def test_a_note_that_repeats_a_clients_words_is_one_header(daemon: Daemon) -> None:
    body = {"prompt": "a", "n_predict": 0, "samplers": ["日本", "a\r\nset-cookie: b"]}
    response = post(daemon, "/completion", body)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert response.headers["x-homeai-notes"].startswith("not done, of samplers: ")


def test_an_empty_list_of_samplers_draws_from_all_tokens(daemon: Daemon) -> None:
    answer = complete(daemon, prompt=FRANCE, n_predict=2, samplers=[], seed=5)
    drawn = answer["generation_settings"]
    assert (drawn["top_k"], drawn["top_p"], drawn["min_p"], drawn["temperature"]) == (0, 1, 0, 1)


@both_ways
def test_json_schema_and_grammar_are_kept(daemon: Daemon, stream: bool) -> None:
    """G1 and its kind, on this path."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    answer = complete(daemon, stream=stream, prompt=FRANCE, n_predict=40, temperature=0, json_schema=schema)
    assert isinstance(json.loads(answer["content"])["a"], int)
    grammar = 'root ::= " Paris" | " Rome"'
    answer = complete(daemon, stream=stream, prompt=FRANCE, n_predict=8, temperature=0, grammar=grammar)
    assert answer["content"] in (" Paris", " Rome")


def test_a_grammar_that_is_none_is_refused(daemon: Daemon) -> None:
    for fields in ({"grammar": "root ::= ("}, {"json_schema": {"type": "banana"}}, {"json_schema": 5}):
        refused(post(daemon, "/completion", {"prompt": "a", "n_predict": 1} | fields))


# ---- refused ---------------------------------------------------------------------------------------------


@both_ways
def test_too_long_a_prompt_is_told_with_both_counts(daemon: Daemon, stream: bool) -> None:
    """B1, B8"""
    body = {"prompt": "word " * 20_000, "n_predict": 1, "stream": stream}
    error = refused(post(daemon, "/completion", body))
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0
    assert_serves(daemon)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": None}, "prompt"),
        ("/completion", {"prompt": []}, "prompt"),
        ("/completion", {"prompt": {}}, "prompt"),
        ("/completion", {"prompt": [-1]}, "prompt"),
        ("/completion", {"prompt": [5279552648203111001]}, "5279552648203111001"),
        ("/completion", {"prompt": [1, [2]]}, "prompt"),
        ("/completion", {"prompt": "a", "n_predict": "5"}, "n_predict"),
        ("/completion", {"prompt": "a", "n_predict": 1.5}, "n_predict"),
        ("/completion", {"prompt": "a", "samplers": 5}, "samplers"),
        ("/completion", {"prompt": "a", "stop": 5}, "stop"),
        ("/completion", {"prompt": "a", "response_fields": {}}, "response_fields"),
        ("/completion", {"prompt": "a", "n_probs": 10_000}, "n_probs"),
        ("/completion", {"prompt": "a", "n_cmpl": 0}, "n_cmpl"),
        ("/completion", {"prompt": "a", "n_cmpl": 1000}, "1000 > 8"),
        ("/completion", {"prompt": "a", "lora": [{"id": 0}]}, "lora"),
        ("/completion", {"prompt": "a", "top_p": 2.0}, "top_p"),
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [5, {}]}, "content"),
        ("/tokenize", {"content": [300_000]}, "300000"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": "a"}, "messages"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "banana", "content": "a"}]}, "banana"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [262_144]}, "262144"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [5]}, "messages"),
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": 5}, "input_suffix"),
    ],
)
def test_a_wrong_body_is_refused_by_name(daemon: Daemon, path: str, body: object, named: str) -> None:
    """E8 and its kind."""
    error = refused(post(daemon, path, body))
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]


@pytest.mark.parametrize("path", ["/completion", "/infill", "/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"prompt": NaN}', b"\xff\xfe", b'{"a":' * 5000])
def test_what_is_no_body_is_refused(daemon: Daemon, path: str, body: bytes) -> None:
    refused(httpx.post(f"{daemon.url}{path}", content=body, timeout=120))


def test_a_model_that_fills_no_gaps_says_so(daemon: Daemon) -> None:
    error = refused(post(daemon, "/infill", {"input_prefix": "a", "input_suffix": "b"}), 501)
    assert error["type"] == "not_supported_error"
    assert "fill-in-the-middle" in error["message"]


def test_what_only_llama_server_can_do_is_said(daemon: Daemon) -> None:
    for path in ("/slots/0?action=save", "/props"):
        assert refused(post(daemon, path, {}), 501)["type"] == "not_supported_error"


# ---- tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", TEXTS)
def test_tokens_are_the_text_again(daemon: Daemon, content: str) -> None:
    for fields in ({}, {"parse_special": False}, {"add_special": True}):
        token_ids = good(daemon, "/tokenize", content=content, **fields)["tokens"]
        bos = "<bos>" if "add_special" in fields else ""
        assert good(daemon, "/detokenize", tokens=token_ids)["content"] == bos + content


def test_special_texts_are_tokens_only_if_asked_for(daemon: Daemon) -> None:
    assert good(daemon, "/tokenize", content="<eos>")["tokens"] == [EOS]
    assert EOS not in good(daemon, "/tokenize", content="<eos>", parse_special=False)["tokens"]


def test_pieces_are_texts_or_bytes(daemon: Daemon) -> None:
    pieces = good(daemon, "/tokenize", content="a 🫨 媽", with_pieces=True)["tokens"]
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert joined.decode() == "a 🫨 媽"
    assert [p["id"] for p in pieces] == good(daemon, "/tokenize", content="a 🫨 媽")["tokens"]


def test_a_mixed_content_keeps_its_tokens(daemon: Daemon) -> None:
    assert good(daemon, "/tokenize", content=[EOS, "Hello", EOS])["tokens"][::2] == [EOS, EOS]


def test_vllms_shapes_of_tokens(daemon: Daemon) -> None:
    """`vllm bench serve` makes its prompts with these calls."""
    (model,) = httpx.get(f"{daemon.url}/v1/models", timeout=120).json()["data"]
    assert model["root"]
    whole = good(daemon, "/tokenize", model=model["root"], prompt="Hello world")
    assert whole["tokens"][0] == 2
    assert (whole["count"], whole["max_model_len"]) == (3, model["max_model_len"])
    bare = good(daemon, "/tokenize", model=model["id"], prompt="Hello world", add_special_tokens=False)
    assert bare["tokens"] == whole["tokens"][1:]
    shown = good(daemon, "/tokenize", model=model["id"], prompt="Hello world", return_token_strs=True)
    assert shown["token_strs"] == ["<bos>", "Hello", " world"]
    assert good(daemon, "/detokenize", model=model["id"], tokens=bare["tokens"])["prompt"] == "Hello world"


def test_the_tokens_of_a_chat_are_those_of_its_prompt(daemon: Daemon) -> None:
    """F14: what a user wrote is text, in the count too."""
    messages = [{"role": "user", "content": "Is <end_of_turn> a token?"}]
    counted = good(daemon, "/tokenize", messages=messages)
    answer = good(daemon, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    assert 106 not in counted["tokens"]


def test_another_model_is_not_found(daemon: Daemon) -> None:
    for path, body in {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}.items():
        assert refused(post(daemon, path, body | {"model": "other"}), 404)["type"] == "not_found_error"


def test_a_chat_becomes_its_prompt(daemon: Daemon) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is <eos> text?"}]
    prompt = good(daemon, "/apply-template", messages=messages)["prompt"]
    assert prompt == "Be brief.\n\nUser: Is <eos> text?\nAssistant:"


# ---- props, slots ----------------------------------------------------------------------------------------


def test_props_say_what_the_server_is(daemon: Daemon) -> None:
    props = httpx.get(f"{daemon.url}/props", params={"model": "any", "autoload": "false"}, timeout=120).json()
    status = daemon.status()
    assert props["default_generation_settings"]["n_ctx"] == status["model"]["max_model_len"]
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["total_slots"] == status["batch"]["max_num_seqs"]
    assert props["model_alias"] == status["model"]["name"]
    assert props["model_path"]
    assert props["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert (props["bos_token"], props["eos_token"]) == ("<bos>", "<eos>")
    assert props["build_info"]


def test_slots_show_what_runs_but_nobodys_text(daemon: Daemon) -> None:
    idle = httpx.get(f"{daemon.url}/slots", timeout=120).json()
    assert [slot["is_processing"] for slot in idle] == [False] * 8
    body = {"prompt": f"{STORY}{SECRET}", "n_predict": 2000, "stream": True} | GREEDY
    with httpx.stream("POST", f"{daemon.url}/completion", json=body, timeout=120) as response:
        lines = response.iter_lines()  # letting go of it would close the connection
        next(lines)
        text = httpx.get(f"{daemon.url}/slots?fail_on_no_slot=1", timeout=120).text
    assert "swordfish" not in text
    busy, *others = json.loads(text)
    assert busy["is_processing"]
    assert busy["n_prompt_tokens"] > 200
    assert busy["next_token"][0]["n_decoded"] >= 1
    assert not any(slot["is_processing"] for slot in others)
    eventually(lambda: not daemon.status()["requests"])


def test_tokens_are_counted_while_everybody_generates(daemon: Daemon) -> None:
    """Nothing of it queues behind generations."""
    started = threading.Barrier(9)

    def stream() -> None:
        body = {"prompt": FRANCE, "n_predict": 4000, "stream": True} | GREEDY
        with httpx.stream("POST", f"{daemon.url}/completion", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            started.wait(120)
            done.wait(120)

    done = threading.Event()
    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait(120)
    try:
        assert good(daemon, "/tokenize", content=FRANCE)["tokens"]
        assert good(daemon, "/apply-template", messages=[{"role": "user", "content": "a"}])["prompt"]
        assert httpx.get(f"{daemon.url}/slots?fail_on_no_slot=1", timeout=120).status_code == 503
    finally:
        done.set()
        for thread in threads:
            thread.join(120)
    eventually(lambda: not daemon.status()["requests"])
    assert_unharmed(daemon)

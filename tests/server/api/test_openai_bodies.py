"""What the bodies mean: limits, seeds, prompts, tools; and that a million mistakes cost no more than one."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody, CompletionBody
from homeai.server.keep_alive import keep_alive_s


def completion(**fields: object) -> CompletionBody:
    return parse_body(json.dumps({"prompt": "a"} | fields).encode(), CompletionBody)


def chat(**fields: object) -> ChatBody:
    return parse_body(json.dumps({"messages": [{"role": "user", "content": "a"}]} | fields).encode(), ChatBody)


def test_defaults_are_those_of_the_sampler() -> None:
    assert completion().ask().sampling == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({}, 16),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3.0}, 3),
        ({"max_tokens": 10**30}, 10**30),
        ({"max_tokens": -1}, None),
        ({"n_predict": 3}, 3),
        ({"n_predict": 3, "max_tokens": 4}, 4),
    ],
)
def test_limit_of_tokens_is_what_was_asked_for(fields: dict[str, object], num_tokens: int | None) -> None:
    assert completion(**fields).ask().max_tokens == num_tokens


def test_chat_goes_on_to_its_natural_end() -> None:
    assert chat().ask().max_tokens is None


def test_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=2).ask().max_tokens == 2
    assert chat(max_tokens=5).ask().max_tokens == 5


@pytest.mark.parametrize(("seed", "fixed"), [(None, None), (-1, None), (0, 0), (42, 42), (-2, 2**64 - 2), (7.0, 7)])
def test_seed_is_drawn_where_none_is_given(seed: object, fixed: int | None) -> None:
    assert completion(seed=seed).fixed_seed == fixed


def test_penalty_has_two_names() -> None:
    for name in ("repeat_penalty", "repetition_penalty"):
        assert completion(**{name: 1.5}).ask().sampling.repeat_penalty == 1.5


@pytest.mark.parametrize("stop", ["x", ["x"]])
def test_stop_may_be_one_string(stop: object) -> None:
    assert completion(stop=stop).stop == ["x"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_prompt_is_texts_or_ids(prompt: object, prompts: list[object]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_logprobs_count_the_alternatives() -> None:
    assert completion().num_logprobs is None
    assert completion(logprobs=0).num_logprobs == 0
    assert chat(top_logprobs=3).num_logprobs is None
    assert chat(logprobs=True, top_logprobs=3).num_logprobs == 3


@pytest.mark.parametrize(
    "fields",
    [
        *({"modalities": ["audio"]}, {"audio": {"voice": "x"}}, {"web_search_options": {}}, {"lora": [{"id": 0}]}),
        *({"guided_json": {}}, {"guided_regex": "x"}, {"guided_choice": ["a"]}, {"structured_outputs": {"json": {}}}),
        {"dynatemp_range": 0.5},
    ],
    ids=str,
)
def test_what_would_change_the_answer_and_cannot_be_done_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Unsupported) as caught:
        chat(**fields)
    assert [caught.value.param] == list(fields)


@pytest.mark.parametrize("fields", [{"dynatemp_range": 0, "dynatemp_exponent": 2.0}, {"top_n_sigma": -1}], ids=str)
def test_filter_that_is_not_known_may_be_off(fields: dict[str, object]) -> None:
    assert completion(**fields).ask().sampling == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"typical_p": 0.9}, {"typical_p": 0.9}),
        ({"typ_p": 0.9}, {"typical_p": 0.9}),
        ({"typical_p": 1, "typ_p": None}, {}),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
        ({"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3}, None),
        ({"dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", "--"]}, None),
        ({"dry_base": 0}, {}),
    ],
    ids=str,
)
def test_rarer_filters_are_passed_on(fields: dict[str, object], params: dict[str, object] | None) -> None:
    expected = params if params is not None else fields
    if "dry_sequence_breakers" in expected:
        expected = expected | {"dry_sequence_breakers": ("\n", "--")}
    assert completion(**fields).ask().sampling == SamplingParams(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ChatBody.ignored))
def test_what_is_ignored_may_be_anything(name: str) -> None:
    assert name not in ChatBody.model_fields
    assert chat(**{name: {"any": ["thing"]}}).notes() == []


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({}, []),
        ({"num_ctx": 8192}, ["num_ctx"]),
        ({"options": {"num_ctx": 8192, "unknown": 1}}, ["num_ctx"]),
        ({"options": [5]}, []),
        ({"mirostat": 2, "mirostat_tau": 5.0}, ["mirostat", "mirostat_tau"]),
        ({"thinking_budget_tokens": 100}, ["thinking_budget_tokens"]),
        ({"thinking_budget_tokens": 0}, []),
        ({"thinking_budget_tokens": -1}, []),
    ],
    ids=str,
)
def test_what_has_no_effect_is_said_b7(fields: dict[str, object], noted: list[str]) -> None:
    notes = chat(**fields).notes()
    assert [note.split()[0] for note in notes] == noted
    assert all(note.isascii() for note in notes)


@pytest.mark.parametrize("value", ["-1", "0", 0, -1, "5m", "24h", "-2m", 1800])
def test_wish_to_stay_may_be_said_in_any_way_h9(value: object) -> None:
    assert chat(keep_alive=value).ask().keep_alive_s == keep_alive_s(value)


@pytest.mark.parametrize("value", ["banana", {}, True, "5 minutes"])
def test_wish_to_stay_that_means_nothing_is_refused_h10(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(keep_alive=value)
    assert caught.value.param == "keep_alive"


def test_llama_servers_names_for_log_probabilities_and_time() -> None:
    assert completion(n_probs=3).num_logprobs == chat(n_probs=3).num_logprobs == 3
    assert completion(n_probs=3, logprobs=1).num_logprobs == 1
    assert completion(n_probs=0).num_logprobs is None
    assert completion(t_max_predict_ms=1500).ask().max_predict_s == 1.5
    assert completion(t_max_predict_ms=0).ask().max_predict_s is None


@pytest.mark.parametrize("n_predict", [-1, -2])
def test_llama_servers_limits_mean_to_the_models_length(n_predict: int) -> None:
    assert completion(n_predict=n_predict).ask().max_tokens is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"prompt": [-1] * 100_000}, "prompt[0]"),
        ({"prompt": [5] * 50_000 + ["x"] * 50_000}, "prompt[50000]"),
        ({"prompt": ["x"] * 100_000}, "100000"),
        ({"prompt": [[5]] * 100_000}, "100000"),
        ({"stop": [5] * 100_000}, "stop[0]"),
        ({"logit_bias": {str(i): 1000 for i in range(100_000)}}, "100000"),
        ({"messages": [5] * 100_000}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [5] * 100_000}]}, "messages[0].content[0]"),
    ],
    ids=["ids", "mixed", "texts", "id-lists", "stops", "biases", "messages", "parts"],
)
def test_first_of_many_mistakes_is_the_only_one_looked_at(
    fields: dict[str, object], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a body of a few megabytes holds the event loop for a minute."""
    model = ChatBody if "messages" in fields else CompletionBody
    with pytest.raises(InvalidRequest) as caught:
        parse_body(json.dumps({"prompt": "a"} | fields).encode(), model)
    assert where in caught.value.message
    cause = caught.value.__context__
    assert cause is None or getattr(cause, "error_count", lambda: 1)() == 1
